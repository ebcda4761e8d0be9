#include "tokenizer/vocab_merges.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/lfs_pointer.h"
#include "kernels/base/mapped_file.h"
#include "tokenizer/byte_level.h"

namespace sparsellm {
namespace {

std::unordered_map<std::string, int32_t> read_vocabulary(const InputFile& file) {
  const JsonDocument document =
      read_json_file(file, kMaxTokenizerFileBytes, kMaxTokenizerJsonDepth);
  return JsonValue(document, file.string()).integer_map(0, INT32_MAX);
}

// Lines of two tokens with a space between them, after an optional "#version" line.
std::vector<std::pair<std::string, std::string>> read_merges(const InputFile& file) {
  const std::string text = read_text_file(file, kMaxTokenizerFileBytes);
  require_no_lfs_pointer(file.path(), text);
  std::vector<std::pair<std::string, std::string>> merges;
  std::string_view rest = text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.starts_with("#version")) {
      continue;
    }
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      fail("{}:{}: {} is not a pair of tokens", file.string(), number, quote(line));
    }
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

void name_default_tokens(const BpeModel& model, TokenizerConfig& config) {
  for (const char* token : {"<|endoftext|>", "</s>"}) {
    if (!config.bos_token && !config.eos_token && model.find(token)) {
      AddedToken named;
      named.content = token;
      named.special = true;
      config.named_tokens.push_back(std::move(named));
      config.bos_token = token;
      config.eos_token = token;
      config.add_bos_token = config.add_bos_token.value_or(token == std::string_view("</s>"));
    }
  }
}

}  // namespace

std::unique_ptr<Tokenizer> load_vocab_merges(const InputFile& vocab, const InputFile& merges,
                                             TokenizerConfig config) {
  const std::string& name = config.tokenizer_class;
  require(name.empty() || name == "GPT2Tokenizer" || name == "GPT2TokenizerFast",
          "{}: tokenizer_class is {}; with a vocab.json only \"GPT2Tokenizer\" is supported",
          config.path.string(), quote(name));
  ByteLevelParts parts;
  parts.source = vocab.string();
  parts.model.vocabulary = read_vocabulary(vocab);
  parts.model.merges = read_merges(merges);
  parts.pretokenizer.add_prefix_space = config.add_prefix_space.value_or(false);
  name_default_tokens(parts.model, config);
  parts.special_tokens =
      resolve_special_tokens(config.added_tokens, config,
                             [&](const std::string& content) { return parts.model.find(content); });
  const auto& [added_tokens, bos_id, eos_id] = parts.special_tokens;
  parts.frame = make_frame(config, false, bos_id, eos_id);
  return make_byte_level_tokenizer(parts);
}

}  // namespace sparsellm
