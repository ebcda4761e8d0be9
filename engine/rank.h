#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_options.h"
#include "engine/rank_message.h"
#include "engine/rank_step.h"
#include "engine/step_runner.h"
#include "kernels/base/tune_cache.h"
#include "models/config.h"
#include "models/decoder.h"
#include "models/kv_cache.h"
#include "models/neuron_counts.h"
#include "models/weights/weight_loader.h"

namespace sparsellm {

// All that a device has of a model: its weights, the pages of the KV cache, the memory and the
// queue of a step. It knows nothing of requests: it computes steps.
//
// It is made in these steps, in this order, since each takes device memory that those before it
// leave: the constructor, prepare(), start().
class Rank {
 public:
  // Loads the weights. Throws Error for a model that does not fit, or that cannot be loaded. The
  // options are those of this device; the config is one that runs (config_to_run()); comm, which
  // lives longer, is for models on several devices, else nullptr.
  Rank(EngineOptions options, ModelConfig config, WeightLoader& weights,
       Communicator* comm = nullptr);

  // Makes the memory of a step, and on CUDA chooses kernels for every number of rows that a step
  // may have. Of several ranks on CUDA all are here at once: rank 0 chooses, and the others take
  // its choices.
  void prepare();

  // Pages of a KV cache that the options ask for, or for which there is room.
  int64_t fitting_pages() const;

  // Makes the KV cache; with EngineOptions::warm_up, all that the first steps would do once.
  void start(int64_t kv_pages);

  // StepRunner's.
  int launch(const RankStep& step) { return runner_->launch(step, *kv_); }
  std::optional<Tensor> next_logits() { return runner_->next_logits(); }
  void give_up() noexcept { runner_->give_up(); }
  std::span<const int32_t> finish(int number) { return runner_->finish(number); }
  std::span<const LogProbs> log_probs() const { return runner_->log_probs(); }
  std::vector<std::pair<std::string, double>> decode_seconds() const {
    return runner_->decode_seconds();
  }
  bool samples() const { return runner_->samples(); }
  int64_t waits() const { return runner_->waits(); }
  ExecContext& exec() { return runner_->exec(); }  // for work between steps

  RankLimits limits() const;                                // after start()
  int64_t tuned_choices() const { return tuned_choices_; }  // of kernels, that were measured
  const Decoder& decoder() const { return *decoder_; }
  const KvCache& kv() const { return *kv_; }        // after start()
  std::vector<NeuronCounts> neuron_counts() const;  // of each layer
  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t step_bytes() const { return runner_->memory_bytes(); }

 private:
  void give_choices(const TuneCache& cache);
  void take_choices(TuneCache& cache);

  EngineOptions options_;
  ModelConfig config_;
  std::unique_ptr<Decoder> decoder_;
  Communicator* comm_;
  int64_t weight_bytes_ = 0;
  int64_t tuned_choices_ = 0;
  std::optional<KvCache> kv_;
  // The last, so that it is destroyed first: it waits for what uses the weights and the KV cache.
  std::unique_ptr<StepRunner> runner_;
};

}  // namespace sparsellm
