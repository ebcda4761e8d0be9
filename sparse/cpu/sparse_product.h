#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/base/exec.h"
#include "kernels/base/simd.h"
#include "kernels/base/tensor.h"
#include "kernels/epilogue.h"
#include "sparse/encoded_weight.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// What the CPU products of all sparse formats share. An element of y is one sum over the nonzeros
// of its row, in the order in which the format walks over them, so that its bits do not depend on
// the other tokens of the call.

// Tokens that a nonzero is multiplied with at a time, at most.
inline constexpr int64_t kProductTokens = 32;

// What sparse_product() takes from the workspace.
int64_t sparse_product_workspace_bytes(int64_t columns);

// Throw Error for arguments that WeightMatrix::matmul() and expand() do not take.
struct WeightSizes {
  int64_t out = 0;
  int64_t in = 0;
};
void check_product(std::string_view format, const WeightSizes& sizes, const Tensor& x,
                   const Tensor& y, const Epilogue& epilogue, const ExecContext& ctx);
void check_expand(const EncodedWeight& e, Range rows, const Tensor& dense, const ExecContext& ctx);

// x [tokens, columns] -> columns x kGroup values, the tokens of the group side by side; places of
// tokens that are not there are 0.
void gather_tokens(const Tensor& x, int64_t first_token, int64_t tokens, int64_t group,
                   const Tensor& gathered, ThreadPool& threads);

// y[first_token + t][first_row + r] = epilogue(sums[r * group + t]).
struct ProductBlock {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_token = 0;
  int64_t tokens = 0;
};
void store_block(const float* sums, int64_t group, const ProductBlock& block,
                 const Epilogue& epilogue, const Tensor& y);

// y f32 [tokens, rows] = epilogue(x f32 [tokens, columns] * W^T). The rows of W are walked in
// blocks of `block_rows`, each on one thread: walk(block, f) calls f(row, column, value) for every
// nonzero of the block, `row` counting from the block's first, value in f32; always in the same
// order.
template <class Walk>
void sparse_product(const Tensor& x, Tensor y, const Epilogue& epilogue, int64_t block_rows,
                    ExecContext& ctx, const Walk& walk) {
  const int64_t rows = y.size(1);
  const int64_t tokens = x.size(0);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  auto scratch = ctx.workspace.scope();
  const Tensor gathered = scratch.tensor(DType::f32, {x.size(1), kProductTokens});
  const auto run_group = [&]<int kGroup>(std::integral_constant<int, kGroup>, int64_t first_token,
                                         int64_t count) {
    if constexpr (kGroup > 1) {
      gather_tokens(x, first_token, count, kGroup, gathered, ctx.threads);
    }
    const float* const values = kGroup > 1 ? gathered.data<float>() : x.row<float>(first_token);
    ctx.threads.parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> sums(static_cast<size_t>(block_rows * kGroup));
      for (int64_t block = begin; block < end; ++block) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        walk(block, [&](int64_t row, int64_t column, float value) {
          float* const sum = sums.data() + row * kGroup;
          const float* const xs = values + column * kGroup;
          if constexpr (kGroup == 1) {
            *sum = std::fma(value, *xs, *sum);
          } else {
            const F32x8 w = F32x8::all(value);
            for (int t = 0; t < kGroup; t += F32x8::kWidth) {
              fma(w, F32x8::load(xs + t), F32x8::load(sum + t)).store(sum + t);
            }
          }
        });
        store_block(sums.data(), kGroup,
                    {.first_row = block * block_rows,
                     .rows = std::min(block_rows, rows - block * block_rows),
                     .first_token = first_token,
                     .tokens = count},
                    epilogue, y);
      }
    });
  };
  for (int64_t first = 0; first < tokens;) {
    const int64_t left = tokens - first;
    if (left == 1) {
      run_group(std::integral_constant<int, 1>{}, first, 1);
      first += 1;
    } else if (left <= F32x8::kWidth) {
      run_group(std::integral_constant<int, F32x8::kWidth>{}, first, left);
      first += left;
    } else {
      const int64_t count = std::min(left, kProductTokens);
      run_group(std::integral_constant<int, kProductTokens>{}, first, count);
      first += count;
    }
  }
}

}  // namespace sparsellm
