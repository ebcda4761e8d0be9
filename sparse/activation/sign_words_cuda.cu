#include <cstdint>

#include "kernels/base/launch.cuh"
#include "kernels/base/warp.cuh"
#include "sparse/activation/sign_words_device.h"

namespace sparsellm {
namespace {

constexpr int kPackWarps = 8;
constexpr int kWordColumns = 32;
constexpr int kWordsPerWarp = kWarpSize;  // a lane keeps one
constexpr int kWordsAtOnce = 8;           // whose elements are loaded before the first is looked at
constexpr unsigned kEveryLane = ~0u;

// Elements are taken as bits: the highest is the sign, and an element with no other bit is zero.
template <class T>
constexpr T kSignBit = T(T{1} << (8 * sizeof(T) - 1));

template <class T>
struct PackSource {
  const T* data;
  int64_t stride;
  int64_t rows;
  int64_t columns;
  int64_t warps_per_row;
};

// The places of the results; *has_zeros becomes 1 if an element is zero, and is 0 at first.
struct PackResult {
  uint32_t* signs;
  uint32_t* nonzero;
  uint32_t* has_zeros;
};

// A warp packs up to 32 words of a row. Lane i loads element i of each word, and a ballot is the
// word; lane i keeps word i, so that the words of the warp are stored by one access.
template <class T>
__global__ void __launch_bounds__(kPackWarps* kWarpSize)
    pack_sign_words_kernel(PackSource<T> w, PackResult result) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t warp = int64_t{blockIdx.x} * kPackWarps + threadIdx.x / kWarpSize;
  const int64_t row = warp / w.warps_per_row;
  bool found_zero = false;
  if (row < w.rows) {
    const int64_t words = (w.columns + kWordColumns - 1) / kWordColumns;
    const int64_t first_word = warp % w.warps_per_row * kWordsPerWarp;
    const auto count = static_cast<int>(min(words - first_word, int64_t{kWordsPerWarp}));
    const int64_t first_column = first_word * kWordColumns + lane;
    const T* const from = w.data + row * w.stride + first_column;
    const int64_t left = w.columns - first_column;
    uint32_t signs = 0;
    uint32_t nonzero = 0;
    for (int first = 0; first < count; first += kWordsAtOnce) {
      T elements[kWordsAtOnce];
#pragma unroll
      for (int i = 0; i < kWordsAtOnce; ++i) {
        const int column = (first + i) * kWordColumns;
        elements[i] = column < left ? from[column] : T{0};
      }
#pragma unroll
      for (int i = 0; i < kWordsAtOnce; ++i) {
        const bool is_negative = (elements[i] & kSignBit<T>) != 0;
        const bool is_nonzero = (elements[i] & T(~kSignBit<T>)) != 0;
        const uint32_t signs_of_word = __ballot_sync(kEveryLane, is_negative);
        const uint32_t nonzero_of_word = __ballot_sync(kEveryLane, is_nonzero);
        if (lane == first + i) {
          signs = signs_of_word;
          nonzero = nonzero_of_word;
        }
        found_zero |= !is_nonzero && (first + i) * kWordColumns < left;
      }
    }
    if (lane < count) {
      const int64_t word = row * words + first_word + lane;
      result.signs[word] = signs;
      result.nonzero[word] = nonzero;
    }
  }
  if (__syncthreads_or(found_zero) != 0 && threadIdx.x == 0) {
    atomicExch(result.has_zeros, 1u);
  }
}

template <class T>
void launch_pack(const Tensor& w, const PackResult& result, ExecContext& ctx) {
  const int64_t warps_per_row = (sign_word_count(w.size(1)) + kWordsPerWarp - 1) / kWordsPerWarp;
  const int64_t warps = checked_mul(w.size(0), warps_per_row, "warps");
  const int64_t blocks = warps / kPackWarps + (warps % kPackWarps != 0 ? 1 : 0);
  require(blocks <= INT32_MAX, "sign words of a weight {}, which is too large", w.shape_string());
  launch(ctx, pack_sign_words_kernel<T>,
         {.blocks = static_cast<unsigned>(blocks), .threads = kPackWarps * kWarpSize},
         PackSource<T>{.data = static_cast<const T*>(w.raw()),
                       .stride = w.row_stride(),
                       .rows = w.size(0),
                       .columns = w.size(1),
                       .warps_per_row = warps_per_row},
         result);
}

}  // namespace

OwnedSignWords pack_sign_words_cuda(const Tensor& w, ExecContext& ctx) {
  const auto allocate = [&] {
    return allocate_tensor(ctx.device, DType::u32, {w.size(0), sign_word_count(w.size(1))},
                           "sign words");
  };
  // Freed after the scratch memory, whose destructor waits for the kernel that uses both.
  OwnedSignWords packed{.signs = allocate(), .nonzero = allocate(), .columns = w.size(1)};
  uint32_t has_zeros = 0;
  const Buffer found = Buffer::scratch(ctx, sizeof(has_zeros), "sign words");
  check_cuda(cudaMemsetAsync(found.data(), 0, sizeof(has_zeros), cuda_queue(ctx).stream));
  const PackResult result{.signs = packed.signs.view.data<uint32_t>(),
                          .nonzero = packed.nonzero.view.data<uint32_t>(),
                          .has_zeros = static_cast<uint32_t*>(found.data())};
  if (size_of(w.dtype()) == sizeof(uint16_t)) {
    launch_pack<uint16_t>(w, result, ctx);
  } else {
    launch_pack<uint32_t>(w, result, ctx);
  }
  ctx.cuda->copy(&has_zeros, found.data(), sizeof(has_zeros), ctx.queue);
  if (has_zeros == 0) {
    packed.nonzero = {};
  }
  return packed;
}

}  // namespace sparsellm
