#include "engine/engine_options.h"

#include <unistd.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "kernels/paged_kv.h"

namespace sparsellm {
namespace {

int64_t physical_memory() {
  return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
}

}  // namespace

SchedulerLimits scheduler_limits(const EngineOptions& options) {
  require(options.kv_tokens >= 0, "a KV cache of {} tokens is negative", options.kv_tokens);
  require(options.kv_bytes >= 0, "a KV cache of {} bytes is negative", options.kv_bytes);
  require(options.kv_tokens == 0 || options.kv_bytes == 0,
          "the KV cache is given in tokens ({}) and in bytes ({}); give one", options.kv_tokens,
          options.kv_bytes);
  require(options.threads >= 0 && options.threads <= ThreadPool::kMaxThreads,
          "{} threads; use 0 (all cores) to {}", options.threads, ThreadPool::kMaxThreads);
  require(options.steps_ahead == 0 || options.steps_ahead == 1, "{} steps ahead; use 0 or 1",
          options.steps_ahead);
  require(options.max_requests >= 1 && options.max_requests <= 1 << 16,
          "{} requests at once; use 1 to 65536", options.max_requests);
  require(options.step_tokens >= options.max_requests && options.step_tokens <= 1 << 20,
          "{} tokens per step; use {} (one for each request) to 1048576", options.step_tokens,
          options.max_requests);
  return {.step_tokens = options.step_tokens, .max_requests = options.max_requests};
}

int64_t choose_context_size(const EngineOptions& options, const ModelConfig& config) {
  require(options.context_size >= 0, "a context of {} tokens is negative", options.context_size);
  require(options.context_size <= config.max_positions,
          "a context of {} tokens is more than the {} positions of the model", options.context_size,
          config.max_positions);
  return options.context_size > 0 ? options.context_size : config.max_positions;
}

int64_t choose_kv_pages(const EngineOptions& options, int64_t context_size, const KvShape& shape) {
  if (options.kv_tokens > 0) {
    return pages_for(options.kv_tokens);
  }
  const int64_t page_bytes = shape.bytes_per_token() * kPageSize;
  if (options.kv_bytes > 0) {
    require(options.kv_bytes >= page_bytes,
            "a KV cache of {} bytes is smaller than a page of {} tokens, which takes {} bytes",
            options.kv_bytes, kPageSize, page_bytes);
    return options.kv_bytes / page_bytes;
  }
  const int64_t affordable = physical_memory() / 2 / page_bytes;
  const int64_t wanted =
      checked_mul(pages_for(context_size), options.max_requests, "pages of the KV cache");
  return std::max(pages_for(context_size), std::min(wanted, affordable));
}

}  // namespace sparsellm
