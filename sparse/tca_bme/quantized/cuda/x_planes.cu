#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "sparse/tca_bme/format/record_layout.h"
#include "sparse/tca_bme/quantized/cuda/x_columns.cuh"
#include "sparse/tca_bme/quantized/cuda/x_integers.cuh"
#include "sparse/tca_bme/quantized/cuda/x_planes.h"

namespace sparsellm::tca_bme {
namespace {

static_assert(kPlaneBlock == kXBlock);
constexpr int kPlaneThreads = 128;
static_assert(32 * kThreadColumns == kXBlock);

// A warp for each block of columns of a token, which is blockIdx.x.
template <class T>
__global__ void __launch_bounds__(kPlaneThreads)
    x_planes_kernel(const uint16_t* x, int64_t x_stride, int columns, bool aligned, XPlanes to) {
  launch_dependents();
  wait_on_dependencies();  // until here x may be written and the workspace be read
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t block = int64_t{blockIdx.y} * (kPlaneThreads / 32) + threadIdx.x / 32;
  if (block >= to.blocks) {
    return;
  }
  const int64_t token = blockIdx.x;
  const int column = static_cast<int>(block) * kXBlock + lane * kThreadColumns;
  uint32_t pairs[kThreadColumns / 2];
  load_columns(pairs, x + token * x_stride, column, columns, aligned);
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
  const int64_t blocks = ceil_div(planes.blocks, int64_t{kPlaneThreads / 32});
  launch(ctx, x.dtype == DType::f16 ? x_planes_kernel<__half> : x_planes_kernel<__nv_bfloat16>,
         {.blocks = dim3(static_cast<unsigned>(x.tokens), static_cast<unsigned>(blocks)),
          .threads = kPlaneThreads,
          .pdl = true},
         static_cast<const uint16_t*>(x.data), x.stride, static_cast<int>(x.columns),
         has_aligned_rows(x), planes);
}

}  // namespace sparsellm::tca_bme
