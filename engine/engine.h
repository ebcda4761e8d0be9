#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_options.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "kernels/base/open_directory.h"
#include "models/config.h"
#include "models/format_sum.h"
#include "models/neuron_counts.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm {

struct BlockWeight;    // models/block_weight.h
struct FormatChoice;   // models/format_choice.h
struct RandomWeights;  // models/weights/random_weights.h

// A model, its KV cache and the requests that it is working on. Not thread-safe. Destroying it
// drops its requests without another event; callbacks must neither destroy nor move it.
//
// A device that is lost (DeviceLost) takes the engine with it: the step that meets it throws, ends
// the requests of all steps that were enqueued, and sets failed(); from then on submit(), check(),
// step(), generate() and decode_seconds() throw DeviceLost with the same text. All else may be
// called as before. Of several ranks that share a model (EngineOptions::tensor_parallel) all are
// lost with one of them, whatever it is that goes wrong there.
class Engine {
 public:
  // Throws Error for anything that is wrong with the directory or the options.
  static Engine load(const OpenDirectory& directory, const EngineOptions& options);

  // Random weights with the shapes of a config.json, made on the device; without a tokenizer. For
  // benchmarks.
  static Engine load_random(const std::filesystem::path& config_file, const RandomWeights& weights,
                            const EngineOptions& options);

  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  // Queues a request and returns its id. on_token is called from step() and cancel(), on_logits
  // from step(). Throws Error if the request can never run: an empty prompt, one that leaves the
  // context no room for a token to generate, one that does not fit the KV cache with all it may
  // generate, an id outside the vocabulary, a parameter out of range.
  int64_t submit(Request request, OnToken on_token);
  // The same errors, except those of the prompt: throws Error if no prompt could be submitted with
  // the other fields of `request`.
  void check(const Request& request) const;

  // Computes the next tokens of the requests at hand and tells their listeners. False when there
  // was nothing to do. Not to be called from a callback. If a step fails as a whole, its requests
  // end with FinishReason::error and the exception is thrown on; requests that wait are not
  // touched.
  bool step();

  // What the device was lost by; nothing as long as it is there.
  const std::optional<std::string>& failed() const;

  // Ends a request with all its samples; on_token is called once more for each, now. Unknown ids
  // are ignored. Callbacks may call this, and submit().
  void cancel(int64_t id);

  // submit() and step() until all are done; results in the order of the requests and their
  // samples. A request that submit refuses becomes one Completion with FinishReason::error.
  std::vector<Completion> generate(std::vector<Request> requests);

  const ModelConfig& config() const;
  const GenerationDefaults& generation_defaults() const;
  const Tokenizer& tokenizer() const;  // throws Error if the engine was loaded without
  int64_t context_size() const;
  // On CUDA neurons are counted by the device, whose sums are copied now.
  const EngineStats& stats() const;
  std::vector<FormatSum> linear_weights() const;    // Decoder::linear_weights()
  std::vector<BlockWeight> block_weights() const;   // Decoder::block_weights(), of rank 0
  std::vector<NeuronCounts> neuron_counts() const;  // of each layer
  // What the weight format "auto" came to; empty with any other.
  const std::vector<FormatChoice>& format_choices() const;
  // Seconds by group of the decode rows of the latest step, with EngineOptions::traces.
  std::vector<std::pair<std::string, double>> decode_seconds() const;
  int64_t free_pages() const;
  int64_t total_pages() const;

 private:
  struct State;
  class CallScope;
  explicit Engine(std::unique_ptr<State> state);
  struct Origin;  // of the weights
  static Engine build(ModelConfig config, const Origin& origin, const EngineOptions& options,
                      std::chrono::steady_clock::time_point start);

  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
