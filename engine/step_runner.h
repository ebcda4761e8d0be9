#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/delivery.h"
#include "engine/engine_options.h"
#include "engine/scheduler.h"
#include "kernels/base/cpu_isa.h"
#include "kernels/base/parallel.h"
#include "models/decoder.h"
#include "models/kv_cache.h"

namespace sparsellm {

// An enqueued step whose tokens have not been delivered.
struct Step {
  Scheduler::Plan plan;
  std::vector<Choice> choices;  // of the plan
  int slot = 0;                 // the runner's
};

// Runs planned steps on a device, in the order in which they are launched. It owns the memory of a
// step but for weights and KV cache, at fixed addresses.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Enqueues a step; all steps have the same KV cache. What its requests want to see of logits
  // (on_logits, log-probabilities) or have sampled on the host is done when this returns. Throws
  // Error.
  virtual void launch(Step& step, const KvCache& kv) = 0;

  // Waits for the oldest step that was launched: its choices are complete. Throws Error for
  // everything that went wrong on the device; then the steps launched after it are lost, too.
  virtual void finish(Step& step) = 0;

  // Does now what else is done once, in the first step of a size, for all sizes; before the first
  // step. Throws Error for everything that went wrong on the device.
  virtual void warm_up(const KvCache& kv) = 0;

  virtual ExecContext& exec() = 0;           // for work between steps
  virtual int64_t memory_bytes() const = 0;  // that it holds on the device
  // Of the latest decode pass, by group (kernels/base/step_trace.h); empty if nothing was traced.
  // Only when no step is in flight.
  virtual std::vector<std::pair<std::string, double>> decode_seconds() const = 0;
  virtual int64_t waits() const = 0;  // times that the host waited for the device
};

struct RunnerOptions {
  Device device;
  int threads = 0;
  CpuIsa cpu_isa = best_cpu_isa();
  Sums sums = Sums::fastest;
  SchedulerLimits limits;
  int64_t pages_per_request = 0;
  bool traces = false;                // measures the parts of decode passes; on CUDA only
  NeuronObserver* neurons = nullptr;  // ExecContext::neurons
  std::vector<int32_t> eos;           // ids that requests with ignore_eos do not choose
  spdlog::logger* log = nullptr;
};
RunnerOptions runner_options(const EngineOptions& options, const ModelConfig& config);

// What a runner with these options will hold on the device.
int64_t runner_memory_bytes(const Decoder& decoder, const RunnerOptions& options);

// The decoder outlives the runner.
std::unique_ptr<StepRunner> make_cpu_runner(const Decoder& decoder, const RunnerOptions& options);
std::unique_ptr<StepRunner> make_cuda_runner(const Decoder& decoder, const RunnerOptions& options);
std::unique_ptr<StepRunner> make_runner(const Decoder& decoder, const RunnerOptions& options);

// How many rows the tensors of a step have.
struct StepRows {
  int64_t hidden = 0;
  int64_t logits = 0;
  int64_t decode = 0;  // the largest token bucket of decode rows; on CUDA only
};
StepRows step_rows(const RunnerOptions& options);

// Rows whose logits are computed and looked at together, at most.
inline constexpr int64_t kLogitRows = 128;

}  // namespace sparsellm
