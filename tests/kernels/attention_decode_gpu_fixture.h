#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/paged_kv.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"

namespace sparsellm::testing {

// Attention of decode rows on the GPU against its CPU twin.
class AttentionDecode : public GpuTest {
 protected:
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

  struct Heads {
    int64_t query;
    int64_t kv;
  };

  // Pages on both devices. Requests may share them: the first kFullPages are full, page
  // kFullPages + n - 1 ends a request with n tokens in its last page, and holds NaN after them, and
  // page kFirstBorder + n - 1 holds NaN in the n slots before a window.
  class Pool {
   public:
    static constexpr int64_t kFullPages = 24;
    static constexpr int64_t kFirstBorder = kFullPages + kPageSize - 1;
    static constexpr int64_t kPages = kFirstBorder + kPageSize - 1;

    Pool(DType dtype, int64_t kv_heads, int64_t head_dim, Random& random);

    // After a change of k or v.
    void upload();

    KvLayer gpu() const { return {.k = k_.view(), .v = v_.view()}; }
    KvLayer twin() const { return {.k = k_twin_.view(), .v = v_twin_.view()}; }
    size_t index(int64_t page, int64_t kv_head, int64_t slot, int64_t dim) const;

    // Pages before the window are out of range.
    static StepRequest request(int64_t kv_length, Random& random, int64_t window = 0);
    // kv_length 0 is padding.
    static std::vector<StepRequest> requests(const std::vector<int64_t>& kv_lengths, Random& random,
                                             int64_t window = 0);

    std::vector<double> k;  // [kPages, kv_heads, kPageSize, head_dim]
    std::vector<double> v;

   private:
    GuardedTensor k_;
    GuardedTensor v_;
    GuardedTensor k_twin_;
    GuardedTensor v_twin_;
  };

  // With the workspace that the op says it needs.
  void decode(const Tensor& q, const KvLayer& kv, const std::vector<StepRequest>& requests,
              const AttentionParams& params, const Tensor& y);

  // The CPU twin's results; 0 for padding.
  Expected twin(const Tensor& q, const KvLayer& kv, const std::vector<StepRequest>& requests,
                const AttentionParams& params);

  void expect_twin(const Pool& pool, const std::vector<StepRequest>& requests,
                   const GuardedTensor& q, const AttentionParams& params, double factor = 16.0);
  void expect_twin(const Pool& pool, const std::vector<int64_t>& kv_lengths, int64_t heads,
                   double factor = 16.0, int64_t window = 0);

  // Rows of all lengths with padding among them; few of them are long.
  static std::vector<int64_t> mixed_lengths(int64_t rows);

  Random random{91};

 private:
  Layout next_layout();

  int layouts_ = 0;
};

}  // namespace sparsellm::testing
