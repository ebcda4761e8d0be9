#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "sparse/tca_bme/format/record_layout.h"
#include "sparse/tca_bme/quantized/cuda/x_integers.cuh"
#include "sparse/tca_bme/quantized/cuda/x_planes.h"

namespace sparsellm::tca_bme {
namespace {

static_assert(kPlaneBlock == kXBlock);
constexpr int kPlaneThreads = 128;
constexpr int kLaneColumns = 16;
static_assert(32 * kLaneColumns == kXBlock);

// A warp for each block of columns of a token, which is blockIdx.y.
template <class T>
__global__ void __launch_bounds__(kPlaneThreads)
    x_planes_kernel(const T* x, int64_t x_stride, int columns, bool aligned, XPlanes to) {
  launch_dependents();
  wait_on_dependencies();  // until here x may be written and the workspace be read
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t block = int64_t{blockIdx.x} * (kPlaneThreads / 32) + threadIdx.x / 32;
  if (block >= to.blocks) {
    return;
  }
  const int64_t token = blockIdx.y;
  const int column = static_cast<int>(block) * kXBlock + lane * kLaneColumns;
  const T* const from = x + token * x_stride + column;
  uint32_t pairs[kLaneColumns / 2] = {};
  if (aligned && column + kLaneColumns <= columns) {
    const uint4 first = *reinterpret_cast<const uint4*>(from);
    const uint4 second = *reinterpret_cast<const uint4*>(from + kLaneColumns / 2);
    pairs[0] = first.x, pairs[1] = first.y, pairs[2] = first.z, pairs[3] = first.w;
    pairs[4] = second.x, pairs[5] = second.y, pairs[6] = second.z, pairs[7] = second.w;
  } else {
#pragma unroll
    for (int k = 0; k < kLaneColumns; ++k) {
      if (column + k < columns) {
        uint16_t bits;
        memcpy(&bits, from + k, sizeof bits);
        pairs[k / 2] |= static_cast<uint32_t>(bits) << (k % 2 * 16);
      }
    }
  }
  const float largest = largest_magnitude<T>(pairs);
  const float steps = steps_of(largest);
  const int64_t tile = token / to.tile;
  const int in_tile = static_cast<int>(token % to.tile);
  if (lane == 0) {
    to.scales[(tile * to.blocks + block) * to.tile + in_tile] = scale_of(largest);
  }
  if (column < to.stride) {
    uint32_t high[4], low[4];
    split<T>(pairs, steps, high, low);
    constexpr int kEight = 8;
    const int row = in_tile / kEight * (kPlanes * kEight) + in_tile % 2 * kEight +
                    in_tile % kEight / 2 * kPlanes;
    uint8_t* const own = to.planes + (tile * kPlanes * to.tile + row) * to.stride + column;
    *reinterpret_cast<uint4*>(own) = make_uint4(high[0], high[1], high[2], high[3]);
    *reinterpret_cast<uint4*>(own + to.stride) = make_uint4(low[0], low[1], low[2], low[3]);
  }
}

}  // namespace

void make_x_planes(const XRows& x, const XPlanes& planes, const ExecContext& ctx) {
  constexpr int64_t kAligned = 8;  // elements of 16 bytes
  const bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % kAligned == 0;
  const LaunchShape shape{
      .blocks = dim3(static_cast<unsigned>(ceil_div(planes.blocks, int64_t{kPlaneThreads / 32})),
                     static_cast<unsigned>(x.tokens)),
      .threads = kPlaneThreads,
      .pdl = true};
  const int columns = static_cast<int>(x.columns);
  if (x.dtype == DType::f16) {
    launch(ctx, x_planes_kernel<__half>, shape, static_cast<const __half*>(x.data), x.stride,
           columns, aligned, planes);
  } else {
    launch(ctx, x_planes_kernel<__nv_bfloat16>, shape, static_cast<const __nv_bfloat16*>(x.data),
           x.stride, columns, aligned, planes);
  }
}

}  // namespace sparsellm::tca_bme
