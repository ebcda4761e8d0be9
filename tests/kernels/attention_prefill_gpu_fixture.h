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

// Paged causal attention on tensor cores: against its CPU twin, and its promises about bits, NaNs
// and padding.
class AttentionPrefill : public GpuTest {
 protected:
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

  struct Heads {
    int64_t heads;
    int64_t kv_heads;
  };

  using Pages = std::vector<int32_t>;

  // The keys or the values of a pool of pages on the host. What no token uses is NaN.
  class Pool {
   public:
    Pool(int64_t pages, int64_t kv_heads, int64_t head_dim);

    double& at(const Pages& pages, int64_t token, int64_t head, int64_t i);
    void fill(const Pages& pages, int64_t length, Random& random);
    void copy(const Pages& from, const Pages& to, int64_t length);
    // The first `length` tokens become NaN.
    void poison(const Pages& pages, int64_t length);
    GuardedTensor upload(DType dtype) const;

   private:
    template <class Body>
    void for_each(int64_t length, Body&& body) const {
      for (int64_t token = 0; token < length; ++token) {
        for (int64_t head = 0; head < kv_heads_; ++head) {
          for (int64_t i = 0; i < head_dim_; ++i) {
            body(token, head, i);
          }
        }
      }
    }

    int64_t pages_;
    int64_t kv_heads_;
    int64_t head_dim_;
    std::vector<double> values_;
  };

  // Keys and values of sequences whose pages are taken in random order.
  struct Cache {
    Cache(int64_t pages, int64_t kv_heads, int64_t head_dim, Random& generator);

    Pages take(int64_t length);
    Pages add(int64_t length);

    Random& random;
    Pool k;
    Pool v;
    Pages free;
  };

  // Pages that no row reaches by the window are out of range.
  static StepRequest request(const Pages& pages, int64_t kv_length, int64_t rows,
                             int64_t window = 0);
  // The first token that the first row of a request sees.
  static int64_t first_seen(int64_t kv_length, int64_t rows, int64_t window);
  static float scale_of(int64_t head_dim);

  GuardedTensor on_gpu(int64_t rows, int64_t features, const std::vector<double>& values) const;

  // The result of `requests` on the GPU, for queries q.
  GuardedTensor attend(const Cache& cache, const std::vector<StepRequest>& requests, int64_t rows,
                       int64_t features, const std::vector<double>& q,
                       const AttentionParams& params) const;

  // Compares with attention() in f32 on the CPU, for values of at most 1.
  void expect_twin(const GuardedTensor& y, const Tensor& q, const KvLayer& kv,
                   const std::vector<StepRequest>& requests, const AttentionParams& params);

  Random random{91};
};

}  // namespace sparsellm::testing
