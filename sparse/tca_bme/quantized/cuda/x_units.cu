#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "sparse/tca_bme/quantized/cuda/x_columns.cuh"
#include "sparse/tca_bme/quantized/cuda/x_units.h"

namespace sparsellm::tca_bme {
namespace {

constexpr int kUnitThreads = 128;

// A thread for kThreadColumns of token blockIdx.x.
__global__ void __launch_bounds__(kUnitThreads)
    x_units_kernel(const uint16_t* x, int64_t x_stride, int64_t columns, bool aligned, XUnits to) {
  launch_dependents();
  wait_on_dependencies();  // until here x may be written and the workspace be read
  const int64_t column = (int64_t{blockIdx.y} * kUnitThreads + threadIdx.x) * kThreadColumns;
  if (column >= to.stride) {
    return;
  }
  const int64_t token = blockIdx.x;
  uint32_t pairs[kThreadColumns / 2];
  load_columns(pairs, x + token * x_stride, column, columns, aligned);
  auto* const own =
      reinterpret_cast<uint4*>(static_cast<uint16_t*>(to.data) + token * to.stride + column);
  own[0] = make_uint4(pairs[0], pairs[2], pairs[4], pairs[6]);
  own[1] = make_uint4(pairs[1], pairs[3], pairs[5], pairs[7]);
}

}  // namespace

void make_x_units(const XRows& x, const XUnits& units, const ExecContext& ctx) {
  const int64_t blocks = ceil_div(units.stride, int64_t{kUnitThreads * kThreadColumns});
  launch(ctx, x_units_kernel,
         {.blocks = dim3(static_cast<unsigned>(x.tokens), static_cast<unsigned>(blocks)),
          .threads = kUnitThreads,
          .pdl = true},
         static_cast<const uint16_t*>(x.data), x.stride, x.columns, has_aligned_rows(x), units);
}

}  // namespace sparsellm::tca_bme
