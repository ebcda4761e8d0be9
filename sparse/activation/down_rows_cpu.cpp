#include <algorithm>
#include <array>
#include <bit>

#include "kernels/base/workspace.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/store_sums.h"
#include "sparse/activation/active_rows_device.h"

namespace sparsellm {
namespace {

using gemm_cpu_kernels::kBlockColumns;
using gemm_cpu_kernels::kLanes;

// A neuron is a column of the down projection, and its place in the sums goes by its number: gemm()
// takes kLanes partial sums in a block of kBlockColumns columns, adds up those that are
// kLanes / 2 apart, then kLanes / 4, and so on, and adds up the blocks. The same is done here for
// kColumns columns of the transpose at a time: one partial sum after the other, in an order in
// which those that are added up come together.
constexpr std::array<int, kLanes> kLaneOrder = {0, 8, 4, 12, 2, 10, 6, 14,
                                                1, 9, 5, 13, 3, 11, 7, 15};
constexpr int kDepth = std::bit_width(unsigned{kLanes});
constexpr int64_t kColumns = 1024;  // whose partial sums stay in the L1
// Whose lists and sums of blocks are in the workspace at a time.
constexpr int64_t kTokens = 16;

// Without neurons there is one, whose sum is 0.
int64_t block_count(int64_t neurons) {
  return std::max<int64_t>((neurons + kBlockColumns - 1) / kBlockColumns, 1);
}

// The neurons of some tokens that are not zero, partial sum by partial sum. Those of a block begin
// where all of its neurons would.
struct Lists {
  Tensor neurons;  // i32 [tokens, neurons]
  Tensor factors;  // f32 [tokens, neurons]
  Tensor ends;     // i32 [tokens, blocks * kLanes], of the partial sums in kLaneOrder
};

void fill_lists(const Tensor& h, int64_t token, int64_t block, const Lists& lists) {
  const int64_t begin = block * kBlockColumns;
  const int64_t end = std::min(begin + kBlockColumns, h.size(1));
  const float* const values = h.row<float>(token);
  int32_t* const neurons = lists.neurons.row<int32_t>(token);
  float* const factors = lists.factors.row<float>(token);
  int32_t* ends = lists.ends.row<int32_t>(token) + block * kLanes;
  int64_t count = begin;
  for (const int lane : kLaneOrder) {
    for (int64_t i = begin + lane; i < end; i += kLanes) {
      neurons[count] = static_cast<int32_t>(i);
      factors[count] = values[i];
      count += values[i] != 0.0f ? 1 : 0;  // without a branch
    }
    *ends++ = static_cast<int32_t>(count);
  }
}

void add(const float* more, int64_t count, float* sums) {
  for (int64_t i = 0; i < count; ++i) {
    sums[i] += more[i];
  }
}

// sums [columns.count] of a block.
void sum_block(const RowAccess& wt, const Lists& lists, int64_t token, int64_t block, Range columns,
               CpuIsa isa, float* sums) {
  const int32_t* const neurons = lists.neurons.row<int32_t>(token);
  const float* const factors = lists.factors.row<float>(token);
  const int32_t* const ends = lists.ends.row<int32_t>(token) + block * kLanes;
  int64_t begin = block * kBlockColumns;
  if (ends[kLanes - 1] == begin) {
    std::fill_n(sums, columns.count, 0.0f);
    return;
  }
  alignas(64) float parts[kDepth][kColumns];  // that wait for the one they are added to
  int waiting = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    wt.sum({.rows = {neurons + begin, neurons + ends[lane]},
            .factors = factors + begin,
            .next = ends[kLanes - 1] - ends[lane]},
           columns, parts[waiting++], isa);
    begin = ends[lane];
    for (int pairs = std::countr_one(lane); pairs > 0; --pairs) {
      --waiting;
      add(parts[waiting], columns.count, parts[waiting - 1]);
    }
  }
  std::copy_n(parts[0], columns.count, sums);
}

}  // namespace

int64_t down_rows_workspace_bytes_cpu(int64_t neurons, int64_t out, int64_t tokens) {
  const int64_t at_once = std::min(tokens, kTokens);
  const int64_t blocks = block_count(neurons);
  return Workspace::tensor_bytes(DType::i32, {at_once, neurons}) +
         Workspace::tensor_bytes(DType::f32, {at_once, neurons}) +
         Workspace::tensor_bytes(DType::i32, {at_once, blocks * kLanes}) +
         Workspace::tensor_bytes(DType::f32, {blocks * at_once, out});
}

void down_rows_cpu(const Tensor& h, const RowAccess& wt, const Tensor& bias, Tensor y,
                   ExecContext& ctx) {
  const int64_t neurons = wt.rows();
  const int64_t out = wt.columns();
  const int64_t blocks = block_count(neurons);
  const int64_t strips = (out + kColumns - 1) / kColumns;
  for (int64_t first = 0; first < h.size(0); first += kTokens) {
    const int64_t tokens = std::min(h.size(0) - first, kTokens);
    auto scratch = ctx.workspace.scope();
    const Lists lists{.neurons = scratch.tensor(DType::i32, {tokens, neurons}),
                      .factors = scratch.tensor(DType::f32, {tokens, neurons}),
                      .ends = scratch.tensor(DType::i32, {tokens, blocks * kLanes})};
    const Tensor sums = scratch.tensor(DType::f32, {blocks * tokens, out});
    const Tensor hs = h.rows(first, tokens);
    constexpr int64_t kListsAtOnce = 8;
    ctx.threads.parallel_for(tokens * blocks, kListsAtOnce, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        fill_lists(hs, i % tokens, i / tokens, lists);
      }
    });
    // Rows that several tokens want are read from memory once.
    ctx.threads.parallel_for(blocks * strips, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t block = i / strips;
        const int64_t column = i % strips * kColumns;
        const Range columns{.begin = column, .count = std::min(out - column, kColumns)};
        for (int64_t t = 0; t < tokens; ++t) {
          sum_block(wt, lists, t, block, columns, ctx.isa,
                    sums.row<float>(block * tokens + t) + column);
        }
      }
    });
    ctx.threads.parallel_for(strips, 4, [&](int64_t begin, int64_t end) {
      const int64_t column = begin * kColumns;
      const int64_t count = std::min(end * kColumns, out) - column;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t block = 1; block < blocks; ++block) {
          add(sums.row<float>(block * tokens + t) + column, count, sums.row<float>(t) + column);
        }
      }
      store_sums(sums.data<float>() + column, out, first, tokens, column, count,
                 {.bias = bias, .activation = {}}, y);
    });
  }
}

}  // namespace sparsellm
