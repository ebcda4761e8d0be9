#include <cstdint>
#include <cstring>

#include "kernels/base/launch.cuh"
#include "kernels/transpose_device.h"

namespace sparsellm {
namespace {

constexpr int kTransposeThreads = 256;
constexpr int kAccessBytes = 16;    // of global memory
constexpr int kAccessesPerRow = 8;  // of a tile: 128 bytes

template <class T>
constexpr int kPerAccess = kAccessBytes / sizeof(T);
template <class T>
constexpr int kTileSide = kAccessesPerRow* kPerAccess<T>;

template <class T>
struct StridedRows {
  T* data;
  int64_t stride;
  bool aligned;  // all of them, to kAccessBytes

  __device__ T* at(int64_t row, int64_t column) const { return data + row * stride + column; }
};

// As many elements as an access has, but at most `count`, by one access where that is possible.
template <class T>
__device__ void load_elements(const T* from, int count, bool aligned,
                              T (&elements)[kPerAccess<T>]) {
  if (aligned && count >= kPerAccess<T>) {
    const uint4 access = *reinterpret_cast<const uint4*>(from);
    memcpy(elements, &access, kAccessBytes);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerAccess<T>; ++i) {
    elements[i] = i < count ? from[i] : T{0};
  }
}
template <class T>
__device__ void store_elements(const T (&elements)[kPerAccess<T>], T* to, int count, bool aligned) {
  if (aligned && count >= kPerAccess<T>) {
    uint4 access;
    memcpy(&access, elements, kAccessBytes);
    // An assignment would become a store for each element, as the branch below has them.
    __stcs(reinterpret_cast<uint4*>(to), access);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerAccess<T>; ++i) {
    if (i < count) {
      to[i] = elements[i];
    }
  }
}

// The row of a tile that eight lanes load: of four such groups, which are a warp, every second one
// if two elements share a word.
template <class T>
__device__ int loaded_row(int group) {
  constexpr int kStep = sizeof(uint32_t) / sizeof(T);
  constexpr int kGroups = 8 / kStep;
  return group / 8 * 8 + group % kGroups * kStep + group % 8 / kGroups;
}

// A block transposes a square tile through shared memory: 64 x 64 elements of 2 bytes, 32 x 32
// of 4. Eight lanes access 128 consecutive bytes of a row, of x first and then of y. A row of the
// tile is one element longer than a row of x: with that, and loaded_row(), what the lanes of a warp
// store or load at once lies in different banks, or in one word. It is 8 KiB or 4 KiB of shared
// memory, so that a multiprocessor takes as many blocks as it has threads for.
template <class T>
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_kernel(StridedRows<const T> x, StridedRows<T> y, int64_t rows, int64_t columns,
                     unsigned tiles_across) {
  constexpr int kSide = kTileSide<T>;
  __shared__ T tile[kSide][kSide + 1];
  const int64_t first_row = int64_t{blockIdx.x / tiles_across} * kSide;
  const int64_t first_column = int64_t{blockIdx.x % tiles_across} * kSide;
  const auto down = static_cast<int>(min(rows - first_row, int64_t{kSide}));
  const auto across = static_cast<int>(min(columns - first_column, int64_t{kSide}));
  constexpr int kTurns = kSide * kAccessesPerRow / kTransposeThreads;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = turn * kTransposeThreads + threadIdx.x;
    const int row = loaded_row<T>(i / kAccessesPerRow);
    const int column = i % kAccessesPerRow * kPerAccess<T>;
    if (row < down) {
      T elements[kPerAccess<T>];
      load_elements(x.at(first_row + row, first_column + column), across - column, x.aligned,
                    elements);
#pragma unroll
      for (int j = 0; j < kPerAccess<T>; ++j) {
        tile[row][column + j] = elements[j];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = turn * kTransposeThreads + threadIdx.x;
    const int column = i / kAccessesPerRow;
    const int row = i % kAccessesPerRow * kPerAccess<T>;
    if (column < across) {
      T elements[kPerAccess<T>];
#pragma unroll
      for (int j = 0; j < kPerAccess<T>; ++j) {
        elements[j] = tile[row + j][column];
      }
      store_elements(elements, y.at(first_column + column, first_row + row), down - row, y.aligned);
    }
  }
}

template <class T>
StridedRows<T> strided_rows(const Tensor& x) {
  const auto stride_bytes = static_cast<uintptr_t>(x.row_stride() * size_of(x.dtype()));
  const bool aligned = (reinterpret_cast<uintptr_t>(x.raw()) | stride_bytes) % kAccessBytes == 0;
  return {.data = static_cast<T*>(x.raw()), .stride = x.row_stride(), .aligned = aligned};
}

template <class T>
void launch_transpose(const Tensor& x, const Tensor& y, ExecContext& ctx) {
  constexpr int64_t kSide = kTileSide<T>;
  const int64_t across = (x.size(1) + kSide - 1) / kSide;
  const int64_t tiles = checked_mul(across, (x.size(0) + kSide - 1) / kSide, "tiles");
  require(tiles <= INT32_MAX, "transpose: a matrix {} is too large", x.shape_string());
  launch(ctx, transpose_kernel<T>,
         {.blocks = static_cast<unsigned>(tiles), .threads = kTransposeThreads},
         strided_rows<const T>(x), strided_rows<T>(y), x.size(0), x.size(1),
         static_cast<unsigned>(across));
}

}  // namespace

void transpose_cuda(const Tensor& x, Tensor y, ExecContext& ctx) {
  if (size_of(x.dtype()) == sizeof(uint16_t)) {
    launch_transpose<uint16_t>(x, y, ctx);
  } else {
    launch_transpose<uint32_t>(x, y, ctx);
  }
}

}  // namespace sparsellm
