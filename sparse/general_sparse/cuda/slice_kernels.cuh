#pragma once

#include <algorithm>

#include "sparse/general_sparse/cuda/general_workspace.h"
#include "sparse/general_sparse/cuda/slice_product.cuh"

// The kernels of slice_product.cuh that are compiled with the program, in a file for each dtype and
// code of positions.
namespace sparsellm::general_sparse {

using SliceKernel = void (*)(SliceMatrix, SliceOperands, int tiles);

struct SliceKernelChoice {
  SliceKernel kernel = nullptr;  // none
  int most_threads = 0;          // of a block
};

struct SliceKernelKind {
  int shared_rows = 1;
  int tile_tokens = 1;
  bool staged = true;  // x; else there is a kernel for one token
};
SliceKernelChoice f16_differences_kernel(const SliceKernelKind& kind);
SliceKernelChoice f16_columns_kernel(const SliceKernelKind& kind);
SliceKernelChoice bf16_differences_kernel(const SliceKernelKind& kind);
SliceKernelChoice bf16_columns_kernel(const SliceKernelKind& kind);

template <class ValueType, PositionCode kPositions, int kRows, int kTile, bool kStagedX>
struct CompiledSlices {
  using Value = ValueType;
  static constexpr PositionCode kCode = kPositions;
  static constexpr bool kStaged = kStagedX;
  static constexpr int R = kRows;
  static constexpr int V = 16 / static_cast<int>(sizeof(Value)) / R;
  static constexpr int T = kTile;
  // As many warps as registers allow, with all sums: 64 of a thread, 128 or 255. Columns of 16 bits
  // in 128 leave the compiler room to load x of 8 tokens earlier, which is worth more than warps.
  static constexpr bool kFewWarps = R * T > 8 || (T == 8 && kCode == PositionCode::u16);
  static constexpr int kThreads = R * T > 32 ? 256 : kFewWarps ? 512 : 1024;
  // Enough for the time that a load takes, about 800 cycles, in which the warps of a scheduler
  // multiply one batch each, if there are registers for two of them.
  static constexpr int kUnitInstructions = V * (2 + T + R + R * T);
  static constexpr int kUnitRegisters = 4 + (kCode == PositionCode::i8 ? V + 3 : 2 * V + 3) / 4;
  static constexpr int kWantedBatch = 800 / (kUnitInstructions * (kThreads / 128)) + 1;
  // Neither sums nor batches.
  static constexpr int kOtherRegisters = kThreads == 1024 ? 36 : 48;
  static constexpr int kMostBatch =
      (65536 / kThreads - R * T - kOtherRegisters) / (2 * kUnitRegisters);
  static constexpr int kBatch = std::clamp(kWantedBatch, 1, std::max(kMostBatch, 1));
  static constexpr bool kEarlyPieces = T == 1 && kCode == PositionCode::i8;
};

template <class Value, PositionCode kCode>
SliceKernelChoice compiled_slice_kernel(const SliceKernelKind& kind) {
  SliceKernelChoice choice;
  const auto try_kernel = [&]<int kRows, int kTile, bool kStaged = true>() {
    if (kind.shared_rows == kRows && kind.tile_tokens == kTile && kind.staged == kStaged) {
      using C = CompiledSlices<Value, kCode, kRows, kTile, kStaged>;
      choice = {.kernel = slice_product_kernel<C>, .most_threads = C::kThreads};
    }
  };
  const auto try_tiles = [&]<int kRows>() {
    try_kernel.template operator()<kRows, 1, false>();
    try_kernel.template operator()<kRows, 1>();
    try_kernel.template operator()<kRows, 2>();
    try_kernel.template operator()<kRows, 4>();
    try_kernel.template operator()<kRows, 8>();
  };
  try_tiles.template operator()<1>();
  try_tiles.template operator()<2>();
  try_tiles.template operator()<4>();
  try_tiles.template operator()<8>();
  return choice;
}

}  // namespace sparsellm::general_sparse
