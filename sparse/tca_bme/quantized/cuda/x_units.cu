#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "sparse/tca_bme/quantized/cuda/x_units.h"

namespace sparsellm::tca_bme {
namespace {

constexpr int kUnitThreads = 128;
constexpr int kThreadColumns = 16;

// A thread for each 16 columns of token blockIdx.y.
__global__ void __launch_bounds__(kUnitThreads)
    x_units_kernel(const uint16_t* x, int64_t x_stride, int64_t columns, bool aligned, XUnits to) {
  launch_dependents();
  wait_on_dependencies();  // until here x may be written and the workspace be read
  const int64_t column = (int64_t{blockIdx.x} * kUnitThreads + threadIdx.x) * kThreadColumns;
  if (column >= to.stride) {
    return;
  }
  const int64_t token = blockIdx.y;
  const uint16_t* const from = x + token * x_stride + column;
  uint32_t pairs[kThreadColumns / 2] = {};
  if (aligned && column + kThreadColumns <= columns) {
    const uint4 first = *reinterpret_cast<const uint4*>(from);
    const uint4 second = *reinterpret_cast<const uint4*>(from + kThreadColumns / 2);
    pairs[0] = first.x, pairs[1] = first.y, pairs[2] = first.z, pairs[3] = first.w;
    pairs[4] = second.x, pairs[5] = second.y, pairs[6] = second.z, pairs[7] = second.w;
  } else {
#pragma unroll
    for (int k = 0; k < kThreadColumns; ++k) {
      if (column + k < columns) {
        pairs[k / 2] |= static_cast<uint32_t>(from[k]) << (k % 2 * 16);
      }
    }
  }
  auto* const own =
      reinterpret_cast<uint4*>(static_cast<uint16_t*>(to.data) + token * to.stride + column);
  own[0] = make_uint4(pairs[0], pairs[2], pairs[4], pairs[6]);
  own[1] = make_uint4(pairs[1], pairs[3], pairs[5], pairs[7]);
}

}  // namespace

void make_x_units(const XRows& x, const XUnits& units, const ExecContext& ctx) {
  constexpr int64_t kAligned = 8;  // elements of 16 bytes
  const bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % kAligned == 0;
  launch(ctx, x_units_kernel,
         {.blocks = dim3(
              static_cast<unsigned>(ceil_div(units.stride, int64_t{kUnitThreads * kThreadColumns})),
              static_cast<unsigned>(x.tokens)),
          .threads = kUnitThreads,
          .pdl = true},
         static_cast<const uint16_t*>(x.data), x.stride, x.columns, aligned, units);
}

}  // namespace sparsellm::tca_bme
