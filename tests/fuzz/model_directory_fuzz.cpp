// The input is a model of model_bases() and how it is used, in a line such as "3 verify tca_bme",
// then the edits that make a directory of it (tests/fuzz/model_edits.h). The directory is loaded
// as sparsellm-run does, and continues a text.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/memory_fit.h"
#include "models/storage/model_directory.h"
#include "models/storage/model_file.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/weight_store.h"
#include "sparse/registry.h"
#include "tests/fuzz/check_message.h"
#include "tests/fuzz/check_undamaged.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/model_edits.h"
#include "tests/fuzz/random_edits.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::fuzz {
namespace {

struct Use {
  size_t base = 0;
  bool verify = false;
  bool fit = false;
  bool whole_context = false;
  std::string format;
};

Use read_use(std::string_view line) {
  Use use;
  while (!line.empty()) {
    const std::string_view word = line.substr(0, line.find(' '));
    line.remove_prefix(std::min(word.size() + 1, line.size()));
    const auto formats = weight_formats();
    if (word == "verify") {
      use.verify = true;
    } else if (word == "fit") {
      use.fit = true;
    } else if (word == "context") {
      use.whole_context = true;
    } else if (std::any_of(formats.begin(), formats.end(),
                           [&](const WeightFormat* format) { return format->name() == word; })) {
      use.format = word;
    } else if (!word.empty()) {
      use.base = static_cast<unsigned char>(word.front() - '0') % model_bases().size();
    }
  }
  return use;
}

EngineOptions options_of(const Use& use) {
  EngineOptions options;
  options.threads = 1;
  options.max_requests = 1;
  options.step_tokens = 8;
  options.kv_tokens = 64;  // whatever a config says of the context
  options.context_size = use.whole_context ? 0 : 32;
  options.weight_format = use.format;
  options.verify = use.verify;
  return options;
}

void check_fit(const OpenDirectory& directory, const EngineOptions& options) {
  const ModelConfig config = read_model_config(directory);
  const Checkpoint checkpoint(directory);
  const WeightStore store(checkpoint);
  const MemoryFit fit = fit_memory(config, weight_dtype(checkpoint, options.device, options.dtype),
                                   options, {.store = &store});
  expect(fit.weights >= 0 && fit.step >= 0, "numbers of bytes");
}

void check_completion(const Completion& done, const ModelConfig& config) {
  if (done.finish == FinishReason::error) {
    check_message(Error(done.error));
    return;
  }
  expect(done.log_probs.size() == done.tokens.size(), "a log-probability of every token");
  for (const TokenLogProbs& log_probs : done.log_probs) {
    const auto is_chance = [](const TokenLogProb& of) {
      return std::isfinite(of.log_prob) && of.log_prob <= 1e-3f;
    };
    expect(is_chance(log_probs.token) &&
               std::all_of(log_probs.top.begin(), log_probs.top.end(), is_chance),
           "finite log-probabilities");
  }
  expect(std::all_of(done.tokens.begin(), done.tokens.end(),
                     [&](int32_t id) { return id >= 0 && id < config.vocab_size; }),
         "ids inside the vocabulary");
}

void continue_text(Engine& engine) {
  Request request;
  request.prompt = engine.tokenizer().encode("once upon", {.max_tokens = 100});
  request.max_tokens = 3;
  request.log_probs = 2;
  for (const Completion& done : engine.generate({request})) {
    check_completion(done, engine.config());
  }
}

// What --verify accepts is as it was written.
void verify(const OpenDirectory& directory) {
  const Checkpoint checkpoint(directory);
  const std::string not_compared = ModelFile(checkpoint).verify({});
  check_undamaged(checkpoint, Padding::compared);
  if (not_compared.empty()) {
    check_manifest(directory.path());
  }
}

}  // namespace

const std::string_view kFirstLineWords = "verify fit context tca_bme tiled_csl dense";

void fuzz_one(std::string_view input) {
  static const testing::TempDir scratch;
  static EditedFolder folder(scratch.path() / "model");
  const std::string_view line = input.substr(0, input.find('\n'));
  const Use use = read_use(line);
  input.remove_prefix(std::min(line.size() + 1, input.size()));
  folder.write(edited_model(model_bases()[use.base], input));

  const EngineOptions options = options_of(use);
  const OpenDirectory directory = open_model_directory(folder.path());
  if (use.fit) {
    return check_fit(directory, options);
  }
  Engine engine = Engine::load(directory, options);
  continue_text(engine);
  try {
    verify(directory);
  } catch (const Error& error) {
    check_message(error);
    expect(!use.verify, "a model that was verified before it was loaded");
  }
}

}  // namespace sparsellm::fuzz
