#include "kernels/cpu/store_sums.h"

#include <algorithm>

#include "kernels/device/activate_values.h"

namespace sparsellm {

void store_sums(const float* sums, int64_t stride, int64_t first_token, int64_t tokens,
                int64_t first_row, int64_t rows, const Epilogue& epilogue, const Tensor& y) {
  for (int64_t t = 0; t < tokens; ++t) {
    float* const out = y.row<float>(first_token + t) + first_row;
    std::copy_n(sums + t * stride, rows, out);
    if (!epilogue.bias.empty()) {
      visit_float(epilogue.bias.dtype(), [&]<class B>(B) {
        const B* const bias = epilogue.bias.data<B>() + first_row;
        for (int64_t r = 0; r < rows; ++r) {
          out[r] += to_float(bias[r]);
        }
      });
    }
    activate_values(epilogue.activation, out, rows);
  }
}

}  // namespace sparsellm
