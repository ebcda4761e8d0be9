#pragma once

#include <cstdint>

#include "engine/engine_options.h"
#include "tools/cli/cli_fwd.h"

namespace sparsellm {

// The flags that say how large an engine is; shared by the tools that generate text.
struct EngineArgs {
  int64_t context_size = 0;
  int64_t step_tokens = EngineOptions().step_tokens;
  int64_t kv_bytes = 0;
  double gpu_memory_utilization = EngineOptions().gpu_memory_utilization;
  int64_t gpu_memory = 0;
  bool deterministic = false;
};
void add_engine_args(CLI::App& app, EngineArgs& args);

// Throws UsageError for a step that is smaller than the requests (--parallel) that are computed at
// once.
void check_engine_args(const EngineArgs& args, int64_t max_requests);

EngineOptions engine_size_options(const EngineArgs& args, int64_t max_requests);

}  // namespace sparsellm
