#include "kernels/add_device.h"
#include "kernels/cpu_loops.h"

namespace sparsellm {

void add_cpu(const Tensor& x, Tensor y, ExecContext& ctx, float scale) {
  for_each_row(y.size(0), y.size(1), ctx, [&](int64_t row) {
    const float* from = x.row<float>(row);
    float* to = y.row<float>(row);
    for_each_vector(y.size(1), [&](int64_t i, auto lanes) {
      store(fma(load(from + i, lanes), F32x8::all(scale), load(to + i, lanes)), to + i, lanes);
    });
  });
}

}  // namespace sparsellm
