// Tells how much of a decode step no kernel runs: a library that the CUDA driver loads into a
// program (CUDA_INJECTION64_PATH) and that writes to stderr when it ends. A decode step is a launch
// of the graph that was launched the most. Compiled by bench.sh; it needs CUPTI, a part of the CUDA
// toolkit.
//
// The span of a kernel that begins early includes its waiting for those before. So time in which
// several run counts once, for the one that began first, and is no gap, whatever they wait for.

#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace {

struct Span {
  uint64_t start;
  uint64_t end;
  bool is_product;
};

// CUPTI calls back from its own thread, and a library that is injected has no object to hang data
// on.
struct Trace {
  std::mutex mutex;
  // By graph, then by launch.
  std::map<uint32_t, std::map<uint32_t, std::vector<Span>>> launches;
};
Trace& trace() {
  static Trace* const instance = new Trace;  // outlives static destructors: CUPTI may call late
  return *instance;
}

// Kernels of cuBLAS are, and of namespace sparsellm those that multiply, or expand a weight.
bool is_product(const char* kernel) {
  const auto has = [kernel](const char* part) { return std::strstr(kernel, part) != nullptr; };
  return !has("sparsellm") || has("gemm_stream_kernel") || has("record_");
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *size = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(trace().mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      if (kernel->graphId != 0) {
        trace().launches[kernel->graphId][kernel->correlationId].push_back(
            {kernel->start, kernel->end, is_product(kernel->name)});
      }
    }
  }
  std::free(buffer);
}

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0.0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void report() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(trace().mutex);
  const auto& graphs = trace().launches;
  const auto most = std::max_element(graphs.begin(), graphs.end(), [](auto& a, auto& b) {
    return a.second.size() < b.second.size();
  });
  if (most == graphs.end()) {
    std::fprintf(stderr, "no graph was launched\n");
    return;
  }
  std::vector<double> lengths;
  std::vector<double> idle;
  std::vector<double> gaps;
  std::vector<double> products;
  size_t kernels = 0;
  for (auto [launch, spans] : most->second) {
    std::sort(spans.begin(), spans.end(), [](auto& a, auto& b) { return a.start < b.start; });
    uint64_t last = spans.front().start;
    uint64_t without = 0;
    uint64_t in_products = 0;
    for (const Span& span : spans) {
      const uint64_t gap = span.start > last ? span.start - last : 0;
      without += gap;
      gaps.push_back(static_cast<double>(gap));
      if (span.is_product && span.end > last) {
        in_products += span.end - std::max(span.start, last);
      }
      last = std::max(last, span.end);
    }
    const auto length = static_cast<double>(last - spans.front().start);
    lengths.push_back(length);
    idle.push_back(static_cast<double>(without) / length);
    products.push_back(static_cast<double>(in_products));
    kernels = spans.size();
  }
  std::fprintf(
      stderr,
      "%zu decode steps of %zu kernels: %.3f ms from the first to the last, matrix products "
      "%.3f ms; gaps are %.2f %% of it, %.2f us each in the median\n",
      lengths.size(), kernels, median(lengths) * 1e-6, median(products) * 1e-6,
      100.0 * median(idle), median(gaps) * 1e-3);
}

}  // namespace

extern "C" int InitializeInjection() {
  std::atexit(report);
  return cuptiActivityRegisterCallbacks(give_buffer, take_buffer) == CUPTI_SUCCESS &&
                 cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == CUPTI_SUCCESS
             ? 1
             : 0;
}
