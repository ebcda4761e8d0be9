#pragma once

#include <spdlog/fwd.h>

#include <cstdint>

#include "engine/scheduler.h"
#include "kernels/base/device.h"
#include "models/config.h"
#include "models/kv_cache.h"
#include "models/weights.h"

namespace sparsellm {

struct EngineOptions {
  Device device;
  int64_t context_size = 0;    // tokens of prompt and continuation; 0: the model's maximum
  int64_t max_requests = 32;   // samples computed at once
  int64_t step_tokens = 2048;  // computed in one step
  // Capacity of the KV cache, in tokens or in bytes; both 0: max_requests full contexts, or as many
  // as fit in half of the machine's memory, at least one.
  int64_t kv_tokens = 0;
  int64_t kv_bytes = 0;
  // The bits of a result depend on the request alone: not on what else is computed, nor on
  // preemption. The CPU device is always so.
  bool deterministic = false;
  // Steps that are enqueued before the tokens of the one before are read, 0 or 1. Results are the
  // same; a request that turns out to be finished has one row computed for nothing.
  int steps_ahead = 0;
  int threads = 0;  // of the CPU device; 0: all cores
  bool with_tokenizer = true;
  LoadProgress progress;
  spdlog::logger* log = nullptr;  // has to outlive the engine
};

// What the options come to. All throw Error for an option that is out of range.
SchedulerLimits scheduler_limits(const EngineOptions& options);
int64_t choose_context_size(const EngineOptions& options, const ModelConfig& config);
int64_t choose_kv_pages(const EngineOptions& options, int64_t context_size, const KvShape& shape);

}  // namespace sparsellm
