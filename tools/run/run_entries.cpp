#include "tools/run/run_entries.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/crc32c.h"
#include "kernels/base/error.h"
#include "kernels/base/json_writer.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/model_metadata.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm {
namespace {

std::string entry_of(const InputFile& input) {
  constexpr size_t kBlockBytes = 1 << 20;
  const MappedFile file(input);
  std::vector<std::byte> block(std::min(kBlockBytes, file.bytes().size()));
  uint32_t checksum = 0;
  for (auto rest = file.bytes(); !rest.empty();) {
    const auto piece = rest.first(std::min(rest.size(), block.size()));
    file.read(piece, block.data());
    checksum = crc32c(std::span(block).first(piece.size()), checksum);
    rest = rest.subspan(piece.size());
  }
  return file_entry(file.size(), checksum_text(checksum));
}

std::string to_json(const std::vector<std::string>& texts) {
  JsonWriter json;
  json.array();
  for (const std::string& text : texts) {
    json.value(text);
  }
  json.end();
  return std::move(json).text();
}

// The header has the checksums of all tensors. It is not taken at its word: it may be damaged.
std::string entry_of(const SafetensorsFile& file) {
  const bool has_checksums = file.metadata().contains(std::string(kHeaderChecksumKey));
  return file_entry(file.file().size(),
                    has_checksums ? checksum_text(header_checksum(file.tensors(), file.metadata()))
                                  : std::string());
}

}  // namespace

RunEntries model_entries(const Checkpoint& checkpoint) {
  RunEntries entries;
  std::vector<std::string> names = tokenizer_files(checkpoint.directory());
  names.emplace_back("config.json");
  if (is_there(checkpoint.directory() / "generation_config.json")) {
    names.emplace_back("generation_config.json");
  }
  for (const std::string& name : names) {
    entries[name] = entry_of(checkpoint.directory() / name);
  }
  for (const SafetensorsFile& file : checkpoint.files()) {
    entries[file.path().filename().string()] = entry_of(file);
  }
  return entries;
}

RunEntries generation_entries(const Prompt& defaults) {
  const Request& request = defaults.request;
  const SamplingParams& sampling = request.sampling;
  std::vector<std::string> biases;
  for (const LogitBias& bias : sampling.logit_bias) {
    biases.push_back(fmt::format("{}{:+}", bias.token, bias.bias));
  }
  return {
      {"--temp", fmt::format("{}", sampling.temperature)},
      {"--top-k", fmt::format("{}", sampling.top_k)},
      {"--top-p", fmt::format("{}", sampling.top_p)},
      {"--min-p", fmt::format("{}", sampling.min_p)},
      {"--repeat-penalty", fmt::format("{}", sampling.repetition_penalty)},
      {"--frequency-penalty", fmt::format("{}", sampling.frequency_penalty)},
      {"--presence-penalty", fmt::format("{}", sampling.presence_penalty)},
      {"--logit-bias", fmt::format("{}", fmt::join(biases, ","))},
      {"--seed", request.seed ? fmt::format("{}", *request.seed) : "-1"},
      {"--predict", fmt::format("{}", request.max_tokens)},
      {"--ignore-eos", fmt::format("{}", request.ignore_eos)},
      {"--stop", to_json(request.stop)},
      {"--stop-token", fmt::format("{}", fmt::join(request.stop_token_ids, ","))},
      {"--samples", fmt::format("{}", request.samples)},
      {"--logprobs", request.log_probs ? fmt::format("{}", *request.log_probs) : "none"},
      {"--echo", fmt::format("{}", defaults.echo)},
  };
}

}  // namespace sparsellm
