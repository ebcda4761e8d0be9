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

// What of an encoding its kernel depends on.
struct RowKernelKind {
  bool wide_positions = false;  // u32, else u16
  bool single_entries = false;  // units of one entry, else of four
  int shared_rows = 1;          // with several, entries are single
};

// The smallest tile that has this many tokens, or the largest tile: more tokens take several.
RowKernelChoice f32_row_kernel(const RowKernelKind& kind, int tokens);
RowKernelChoice f16_row_kernel(const RowKernelKind& kind, int tokens);
RowKernelChoice bf16_row_kernel(const RowKernelKind& kind, int tokens);

template <class ValueType, class PositionType, int kRows, int kEntries, int kTokens, int kGroup>
struct CompiledRows {
  using Value = ValueType;
  using Position = PositionType;
  static constexpr int R = kRows;
  static constexpr int V = kEntries;
  static constexpr int T = kTokens;
  static constexpr int G = kGroup;
  static constexpr int kThreads = kRowThreads;
};

template <class Value>
RowKernelChoice compiled_row_kernel(const RowKernelKind& kind, int tokens) {
  RowKernelChoice choice;
  const auto take = [&]<class Position, int kRows, int kEntries, int kTokens, int kGroup>() {
    using C = CompiledRows<Value, Position, kRows, kEntries, kTokens, kGroup>;
    choice = {.product = row_product_kernel<C>,
              .add_pieces = add_pieces_kernel<C>,
              .thread_tokens = kTokens,
              .group_threads = kGroup};
  };
  const auto try_kind = [&]<int kRows, int kEntries, int kTokens, int kGroup>() {
    if (kind.shared_rows != kRows || (kind.single_entries ? 1 : 4) != kEntries) {
      return;
    }
    kind.wide_positions ? take.template operator()<uint32_t, kRows, kEntries, kTokens, kGroup>()
                        : take.template operator()<uint16_t, kRows, kEntries, kTokens, kGroup>();
  };
  const auto try_tile = [&]<int kTokens, int kGroup>() {
    if (choice.product == nullptr &&
        (tokens <= kTokens * kGroup || kTokens * kGroup == kMostRowTokens)) {
      try_kind.template operator()<1, 1, kTokens, kGroup>();
      try_kind.template operator()<1, 4, kTokens, kGroup>();
      try_kind.template operator()<2, 1, kTokens, kGroup>();
      try_kind.template operator()<4, 1, kTokens, kGroup>();
      try_kind.template operator()<8, 1, kTokens, kGroup>();
    }
  };
  constexpr int kMost = 16 / static_cast<int>(sizeof(Value));  // tokens of a load
  try_tile.template operator()<1, 1>();
  try_tile.template operator()<4, 1>();
  try_tile.template operator()<kMost, 8 / kMost>();
  try_tile.template operator()<kMost, 16 / kMost>();
  try_tile.template operator()<kMost, 32 / kMost>();
  try_tile.template operator()<kMost, 64 / kMost>();
  return choice;
}

}  // namespace sparsellm::general_sparse
