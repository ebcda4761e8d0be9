#include "engine/step_runner.h"

#include <algorithm>

#include "engine/device_tables.h"
#include "engine/resolve_options.h"
#include "kernels/base/comm_layout.h"
#include "kernels/base/token_buckets.h"
#include "kernels/paged_kv.h"

namespace sparsellm {

RunnerOptions runner_options(const EngineOptions& options, const ModelConfig& config) {
  return {.device = options.device,
          .threads = options.threads,
          .cpu_isa = options.cpu_isa,
          .sums = options.deterministic ? Sums::batch_invariant : Sums::fastest,
          .limits = scheduler_limits(options),
          .pages_per_request = pages_for(choose_context_size(options, config)),
          .traces = options.traces,
          .neurons = options.neuron_observer,
          .eos = config.eos_token_ids,
          .ranks = options.tensor_parallel.degree,
          .comm_timeout = options.tensor_parallel.timeout,
          .leaves_out_sums = options.tensor_parallel.leaves_out_sums,
          .log = options.log};
}

StepRows step_rows(const RunnerOptions& options) {
  if (!options.device.is_cuda()) {
    return {.hidden = options.limits.step_tokens, .logits = kLogitRows};
  }
  const int64_t decode = token_bucket(options.limits.max_requests);
  return {.hidden = std::max(options.limits.step_tokens, decode),
          .logits = std::max(kLogitRows, decode),
          .decode = decode};
}

int64_t runner_memory_bytes(const Decoder& decoder, const RunnerOptions& options) {
  const StepRows rows = step_rows(options);
  const int64_t tensors =
      rows.hidden * decoder.hidden_size() * size_of(DType::f32) +
      decoder.workspace_bytes(rows.hidden, rows.logits, options.device, options.sums);
  if (!options.device.is_cuda()) {
    return tensors;
  }
  const int64_t tokens =
      (options.limits.max_requests + std::ssize(options.eos)) * size_of(DType::i32);
  return tensors + tokens + CudaContext::kWorkspaceBytes + comm_bytes(options.ranks) +
         DeviceTables::bytes_of(rows.decode, rows.decode, options.pages_per_request) +
         DeviceTables::bytes_of(options.limits.step_tokens, options.limits.max_requests,
                                options.pages_per_request) +
         SamplingTables::bytes_of(sampling_limits(decoder, options));
}

SamplingTables::Limits sampling_limits(const Decoder& decoder, const RunnerOptions& options) {
  return {.max_requests = options.limits.max_requests,
          .step_tokens = options.limits.step_tokens,
          .vocabulary = decoder.vocab_size()};
}

std::unique_ptr<StepRunner> make_runner(const Decoder& decoder, const RunnerOptions& options) {
  return options.device.is_cuda() ? make_cuda_runner(decoder, options)
                                  : make_cpu_runner(decoder, options);
}

int64_t comm_bytes(int ranks) {
  return ranks > 1 && ranks <= CommLayout::kMaxRanks ? CommLayout::of(ranks).bytes : 0;
}

}  // namespace sparsellm
