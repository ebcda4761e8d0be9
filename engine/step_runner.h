#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_options.h"
#include "engine/rank_step.h"
#include "engine/sampling_tables.h"
#include "engine/scheduler.h"
#include "kernels/base/cpu_isa.h"
#include "kernels/base/parallel.h"
#include "models/decoder.h"
#include "models/kv_cache.h"

namespace sparsellm {

// Computes steps on a device, in the order in which they are launched. It owns the memory of a step
// but for weights and KV cache, at fixed addresses.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Begins a step; all steps have the same KV cache. Before anything else is called but exec(),
  // next_logits() is, until it returns nothing: until then `step` stays as it is. Returns the
  // number by which finish() knows the step, another one than that of the step before. Throws
  // Error; then give_up() has to be called.
  virtual int launch(const RankStep& step, const KvCache& kv) = 0;

  // Goes on with the step that was launched last, up to the next logits that the host looks at: f32
  // [n, vocabulary] in host memory, valid until the next call, of the next n of the step's
  // host_rows. Nothing: all of the step is enqueued. Throws as launch() does.
  virtual std::optional<Tensor> next_logits() = 0;

  // The step that is being launched, if there is one, ends as if it had never begun.
  virtual void give_up() noexcept = 0;

  // Waits for a step that was launched, the oldest of those that are in flight. What the device
  // chose for it, by SampleRow::slot, or kNoToken; valid until the next launch(); elsewhere the
  // values mean nothing, and there may be none where the device chooses nothing. Throws Error for
  // everything that went wrong on the device; then the steps launched after it are lost, too.
  virtual std::span<const int32_t> finish(int number) = 0;

  // Of the step that finish() has waited for last: the log-probabilities of the log_prob_rows of
  // its decode part, and then of the other; valid until the next launch().
  virtual std::span<const LogProbs> log_probs() const = 0;

  // Does now what else is done once, in the first step of a size, for all sizes; before the first
  // step. Throws Error for everything that went wrong on the device.
  virtual void warm_up(const KvCache& kv) = 0;

  // Whether the device chooses tokens, of rows with a place for theirs (SampleRow::slot); then
  // decode rows are a part of their own. Else the host looks at all logits.
  virtual bool samples() const = 0;

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
  // Of several ranks: on the CPU ExecContext::comm; on CUDA it joins their hosts, and the runner
  // makes that of their devices, together with the other ranks' runners.
  Communicator* comm = nullptr;
  int ranks = 1;
  std::chrono::milliseconds comm_timeout{60000};
  bool leaves_out_sums = false;  // Communicator::leave_out_sums()
  spdlog::logger* log = nullptr;
};
RunnerOptions runner_options(const EngineOptions& options, const ModelConfig& config);

// On CUDA, of a runner with these options.
SamplingTables::Limits sampling_limits(const Decoder& decoder, const RunnerOptions& options);

// What a runner with these options will hold on the device.
int64_t runner_memory_bytes(const Decoder& decoder, const RunnerOptions& options);

// Of a GPU's memory, what ranks write to whose GPUs reach each other's.
int64_t comm_bytes(int ranks);

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
