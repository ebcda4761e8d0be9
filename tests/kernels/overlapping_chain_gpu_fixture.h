#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <vector>

#include "kernels/attention.h"
#include "kernels/paged_kv.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"

namespace sparsellm::testing {

// Calls whose kernels begin early, as those of a decode step do, against the same calls one by one.
class OverlappingChain : public GpuTest {
 protected:
  static constexpr int64_t kPadding = -1;  // in the place of a number of tokens

  struct Heads {
    int64_t query;
    int64_t kv;
    int64_t dim;

    constexpr int64_t query_features() const { return query * dim; }
    constexpr int64_t kv_features() const { return kv * dim; }
    int64_t workspace_bytes() const { return attention_workspace_bytes(kGpu, query, kv, dim); }
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(dim)); }
  };

  // Requests with so many tokens, or padding, that get one more in each step. Their pages lie in
  // any order in a pool, some of which belong to no request.
  class Requests {
   public:
    Requests(std::vector<int64_t> lengths, int64_t steps, Random& random);

    int64_t pool_pages() const { return std::ssize(pages_); }

    // What they have before the first step.
    std::vector<StepRequest> prompts() const;
    // Steps count from 0. Pages before the window are out of range.
    std::vector<StepRequest> step(int64_t number, int64_t window = 0) const;

   private:
    int64_t length_of(int64_t request) const { return lengths_[static_cast<size_t>(request)]; }
    std::vector<int32_t> pages_of(int64_t request, int64_t length) const;

    std::vector<int64_t> lengths_;
    int64_t most_pages_;  // of a request
    std::vector<int32_t> pages_;
  };

  // All of it NaN at first.
  struct Cache {
    Cache(DType dtype, int64_t pages, const Heads& heads)
        : k(dtype, {pages, heads.kv, kPageSize, heads.dim}, Layout::contiguous, kGpu),
          v(dtype, {pages, heads.kv, kPageSize, heads.dim}, Layout::contiguous, kGpu) {}

    KvLayer layer() const { return {.k = k.view(), .v = v.view()}; }

    GuardedTensor k;
    GuardedTensor v;
  };

  // Of rows with keys, and values after them.
  static void append(const Tensor& kv, const PagedBatch& batch, const KvLayer& to,
                     ExecContext& exec);
  static bool has_nan(const Tensor& x);

  GuardedTensor on_gpu(std::initializer_list<int64_t> sizes, double most = 1.0);
  GuardedTensor result(DType dtype, int64_t rows, int64_t columns);
  ExecContext context(Workspace& workspace, Launches launches);
  // After every call: ordinary launches are those that overlapping ones are compared with.
  void called(const ExecContext& exec) const;
  // Of both streams.
  void expect_counters_of_zero() const;

  Random random{83};
};

}  // namespace sparsellm::testing
