#include "tools/bench/suite/suite_engine.h"

#include <algorithm>

#include "engine/memory_fit.h"
#include "engine/resolve_options.h"
#include "kernels/base/error.h"
#include "kernels/paged_kv.h"

namespace sparsellm {
namespace {

int64_t memory_of_cell(const EngineCell& cell, const SuiteMachine& machine) {
  int64_t memory = 0;
  for (const int64_t limit : {cell.gpu_memory_bytes, machine.gpu_memory}) {
    memory = limit > 0 && (memory == 0 || limit < memory) ? limit : memory;
  }
  return memory;
}

}  // namespace

BenchModelArgs suite_model_args(const SuiteCell& cell, const SuiteMachine& machine) {
  const EngineCell& engine = *cell.engine();
  BenchModelArgs args;
  args.model = machine.model;
  args.config = engine.config.string();
  args.model.weight_format = cell.format;
  args.model.records = cell.records;
  args.model.ranks.degree = engine.gpus;
  if (cell.dtype) {
    args.model.dtype = name_of(*cell.dtype);
  }
  args.sparsity = cell.zeros.sparsity;
  args.plan = cell.zeros.plan_file.string();
  args.pattern = cell.zeros.pattern;
  args.keeps_planned_formats = true;  // layers that a plan keeps dense are dense in any format
  args.gpu_memory_utilization = machine.gpu_memory_utilization;
  args.gpu_memory = memory_of_cell(engine, machine);
  ActivationSparsityRequest& request = args.model.activation_sparsity;
  request.mode = engine.activation.mode;
  if (engine.activation.mode == ActivationSparsity::Mode::predict) {
    request.votes = engine.activation.votes;
  }
  return args;
}

BenchEngineSize suite_engine_size(const EngineCell& cell) {
  return {.max_requests = cell.batch,
          .prompt = cell.prompt,
          .context_size = checked_add(cell.prompt, cell.output, "tokens of a request"),
          .traces = cell.breakdown,
          .warm_up = true,
          .decode_tokens = {cell.batch}};
}

SuiteFit fit_suite_cell(const SuiteCell& cell, const SuiteMachine& machine) {
  const EngineCell& engine = *cell.engine();
  BenchModelArgs args = suite_model_args(cell, machine);
  if (engine.activation.mode == ActivationSparsity::Mode::predict) {
    args.model.activation_sparsity.alpha = ActivationSparsityRequest::Alpha();  // any takes as much
  }
  const bool on_gpus = machine.gpu_memory_here > 0 || args.gpu_memory > 0;
  args.model.on_planned_gpus = on_gpus;
  if (on_gpus && args.gpu_memory == 0) {
    args.gpu_memory = machine.gpu_memory_here;
  }
  EngineOptions options = bench_engine_options(args, suite_engine_size(engine));
  RandomWeights weights = random_weights(args, options);
  const DType dtype = weights.dtype;
  const MemoryFit fit =
      fit_memory(read_bench_config(args), dtype, options, {.random = std::move(weights)});
  const int64_t tokens = checked_mul(
      engine.batch, pages_for(engine.prompt + engine.output) * kPageSize, "tokens of the KV cache");
  const int64_t kept = on_gpus ? kept_bytes(options, fit.device) : 0;
  SuiteFit result{.needed = checked_add(fit.weights + fit.step,
                                        checked_mul(tokens, fit.kv_per_token, "the KV cache"),
                                        "bytes of a cell"),
                  .step = fit.step,
                  .there = fit.device.free - kept};
  result.fits = result.needed <= result.there;
  return result;
}

}  // namespace sparsellm
