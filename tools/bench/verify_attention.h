#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/base/tensor.h"
#include "kernels/paged_kv.h"

namespace sparsellm {

// A head's part of a row of attention()'s result.
struct AttentionPlace {
  int64_t request = 0;
  int64_t row = 0;  // of the request's rows
  int64_t head = 0;
};

// The right results of attention() at some places, computed by plain loops in double on the host
// from what the device's memory holds, and how far a result may be from them: the error of f32 sums
// as in tools/bench/verify_product.h, in the scores and over the values, and the rounding of the
// softmax weights and of the result to the dtype. All tensors are contiguous, and nothing still
// writes to them.
class AttentionReference {
 public:
  AttentionReference(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
                     const AttentionParams& params, std::span<const AttentionPlace> places);

  // The largest |y - reference| at the places in units of what is allowed: at most 1 if y is right,
  // infinity if there is a NaN.
  double worst_error(const Tensor& y) const;

 private:
  struct Result {
    int64_t row = 0;     // of y
    int64_t column = 0;  // of y, the head's first
    std::vector<double> values;
    std::vector<double> tolerances;
  };

  std::vector<Result> results_;
};

}  // namespace sparsellm
