#pragma once

#include "sparse/general_sparse/cuda/row_product.cuh"

// The kernels of row_product.cuh that are compiled with the program, in a file for each dtype.
namespace sparsellm::general_sparse {

using RowKernel = void (*)(RowMatrix, RowOperands);

struct RowKernelChoice {
  RowKernel product = nullptr;
  RowKernel add_pieces = nullptr;
  int thread_tokens = 0;
  int group_threads = 0;
};

inline constexpr int kRowThreads = 256;    // of a block
inline constexpr int kMostRowTokens = 64;  // of a tile

// For positions of u32, or else u16; units of one entry, or else four; a tile with so many tokens,
// or the largest one. More tokens are several tiles.
RowKernelChoice f32_row_kernel(bool wide_positions, bool single_entries, int tokens);
RowKernelChoice f16_row_kernel(bool wide_positions, bool single_entries, int tokens);
RowKernelChoice bf16_row_kernel(bool wide_positions, bool single_entries, int tokens);

template <class ValueType, class PositionType, int kEntries, int kTokens, int kGroup>
struct CompiledRows {
  using Value = ValueType;
  using Position = PositionType;
  static constexpr int V = kEntries;
  static constexpr int T = kTokens;
  static constexpr int G = kGroup;
  static constexpr int kThreads = kRowThreads;
};

template <class Value>
RowKernelChoice compiled_row_kernel(bool wide_positions, bool single_entries, int tokens) {
  RowKernelChoice choice;
  const auto take = [&]<class Position, int kEntries, int kTokens, int kGroup>() {
    using C = CompiledRows<Value, Position, kEntries, kTokens, kGroup>;
    choice = {.product = row_product_kernel<C>,
              .add_pieces = add_pieces_kernel<C>,
              .thread_tokens = kTokens,
              .group_threads = kGroup};
  };
  const auto try_tile = [&]<int kTokens, int kGroup>() {
    const bool fits = tokens <= kTokens * kGroup || kTokens * kGroup == kMostRowTokens;
    if (choice.product != nullptr || !fits) {
      return;
    }
    if (wide_positions) {
      single_entries ? take.template operator()<uint32_t, 1, kTokens, kGroup>()
                     : take.template operator()<uint32_t, 4, kTokens, kGroup>();
    } else {
      single_entries ? take.template operator()<uint16_t, 1, kTokens, kGroup>()
                     : take.template operator()<uint16_t, 4, kTokens, kGroup>();
    }
  };
  constexpr int kMost = 16 / static_cast<int>(sizeof(Value));  // tokens of a load
  try_tile.template operator()<1, 1>();
  try_tile.template operator()<2, 1>();
  try_tile.template operator()<4, 1>();
  try_tile.template operator()<kMost, 8 / kMost>();
  try_tile.template operator()<kMost, 16 / kMost>();
  try_tile.template operator()<kMost, 32 / kMost>();
  try_tile.template operator()<kMost, 64 / kMost>();
  return choice;
}

}  // namespace sparsellm::general_sparse
