#include "tools/run/continuation.h"

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tools/cli/interrupt.h"
#include "tools/run/results.h"

namespace sparsellm {
namespace {

void write_out(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  require(std::ferror(stdout) == 0, "cannot write to standard output");
}

// Prints samples that are made at once one after the other.
class SamplePrinter {
 public:
  // What stands in front of each text is `prompt`.
  SamplePrinter(int32_t samples, std::string prompt)
      : samples_(static_cast<size_t>(samples)), prompt_(std::move(prompt)) {}

  void start() { write_out(head()); }

  void add(const TokenEvent& event) {
    Sample& sample = samples_.at(static_cast<size_t>(event.sample));
    sample.unprinted += event.text;
    sample.finished = sample.finished || event.finish.has_value();
    while (shown_ < samples_.size()) {
      Sample& current = samples_[shown_];
      write_out(std::exchange(current.unprinted, {}));
      if (!current.finished) {
        return;
      }
      ++shown_;
      write_out(shown_ < samples_.size() ? "\n" + head() : "\n");
    }
  }

 private:
  struct Sample {
    std::string unprinted;
    bool finished = false;
  };

  std::string head() const {
    return samples_.size() == 1
               ? prompt_
               : fmt::format("--- sample {} of {} ---\n{}", shown_ + 1, samples_.size(), prompt_);
  }

  std::vector<Sample> samples_;
  std::string prompt_;
  size_t shown_ = 0;  // the first that is not printed to its end
};

}  // namespace

void continue_prompt(Engine& engine, const Prompt& prompt, const ContinuationOptions& options) {
  Results results(prompt.request.samples);
  SamplePrinter printer(prompt.request.samples, prompt.echo ? prompt.text.value_or("") : "");
  Request request =
      make_request(engine.tokenizer(), prompt, options.parse_special, engine.context_size());
  check_log_probs(request, engine.context_size());
  const NeuronCounts before = engine.stats().neurons;
  const int64_t id = engine.submit(std::move(request), [&](const TokenEvent& event) {
    results.add(event);
    if (!options.json) {
      printer.add(event);
    }
  });
  try {
    if (!options.json) {
      printer.start();
    }
    while (engine.step()) {
      if (interrupted()) {
        engine.cancel(id);
      }
    }
  } catch (...) {
    engine.cancel(id);  // its callback refers to this call's variables
    throw;
  }
  require(results.error().empty(), "{}", results.error());
  require(results.finished(), "the engine has lost the request");
  if (options.json) {
    NeuronCounts counts = engine.stats().neurons;
    counts -= before;
    write_out(result_json({}, engine.tokenizer(), prompt, results,
                          {.mode = engine.config().activation_sparsity.mode, .counts = counts}) +
              "\n");
  }
}

}  // namespace sparsellm
