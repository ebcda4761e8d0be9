#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What one generated kernel does: a point of GeneralSparse's search space (Wang et al., ATC 2025:
// its dense and sparse division, adjustment and reductions) with what this format adds to it, the
// places of x.
namespace sparsellm::general_sparse {

// What of the matrix's rows the nonzeros of a thread, a warp or a block are. Threads of a group
// have the same nonzeros.
enum class RowCount : uint8_t { one, several };
enum class RowEnds : uint8_t { whole, split };  // split: rows go on in the next thread, warp, block
struct Division {
  RowCount rows = RowCount::several;
  RowEnds ends = RowEnds::whole;

  bool operator==(const Division&) const = default;
};

// device/reductions.cuh
enum class Reduction : uint8_t { none, total, bitmap, segment };

enum class XSource : uint8_t {
  registers,      // a group keeps the x of some columns of a panel, and has their nonzeros
  shared_panels,  // a block copies a panel of columns into its shared memory
  l1,             // gathered from device memory
};

// Where the tokens of a column are.
enum class XOrder : uint8_t {
  by_token,                 // [tokens, in], as x is
  transposed_while_staged,  // [in, tokens] in the shared memory
  transposed_before,        // [in, tokens], by a kernel before
};

// A block that has done its part takes the next one: how many parts there are is no matter of the
// plan. By default a thread has a row.
struct KernelPlan {
  // Dense division. A block's tile has the product of these tokens.
  int tokens_per_thread = 1;  // 1, 2, 4, 8
  int threads_per_group = 1;  // with the same nonzeros and other tokens; 1, 2, 4, ..., 32
  int warps_per_group = 1;    // likewise, of a block; 1, 2, 4, 8

  // Sparse division, as three arrays of offsets into the nonzeros.
  Division block{};
  Division warp{};
  Division thread{.rows = RowCount::one};
  // All threads have as many, 1, 2, 4, ..., 64; 0: as the rows, or the offsets, have it.
  int thread_nonzeros = 0;

  // Adjustment.
  int step_nonzeros = 1;  // that a thread loads before it multiplies them; 1, 2, 4, 8
  int a_vector = 1;       // values of the matrix in one load; 1, 2, 4, 8
  int x_vector = 1;       // tokens of x in one load; 1, 2, 4, 8

  XSource x_source = XSource::l1;
  int panel_columns = 0;  // 16 to 65536, a power of 2; 0 without panels (l1)
  XOrder x_order = XOrder::by_token;

  Reduction thread_reduction = Reduction::total;
  Reduction warp_reduction = Reduction::none;
  Reduction block_reduction = Reduction::none;

  int threads = 128;  // of a block; 32, 64, ..., 1024

  bool operator==(const KernelPlan&) const = default;

  int tile_tokens() const { return tokens_per_thread * threads_per_group * warps_per_group; }
  int groups() const { return 32 / threads_per_group; }                // of a warp
  int sparse_warps() const { return threads / 32 / warps_per_group; }  // with other nonzeros
};

// Why no kernel is made of the plan, in one line; nothing if one is. Besides what the fields above
// take:
//   - A warp of one group has the division of its threads, a block of one sparse warp that of it.
//   Else
//     what has a part with several rows, or whole ones, has several, and whole ones then.
//   - Whole rows end the chain of reductions, rows that are split over parts go on: above a total,
//     and above nothing, one row is a total, several are a bitmap; above a bitmap or a segment is a
//     segment. A level of one part has none.
//   - A thread of one nonzero skips the thread's level. Threads of whole rows, and those that share
//     one whole row, have no fixed number of nonzeros.
//   - The steps of a thread divide its nonzeros, loads divide a step, or the tokens of a thread;
//     several tokens are in one load only if x is transposed.
//   - x in registers is by panels of whole groups, at most 64 registers a thread, and a warp then
//     has one row: threads have the nonzeros of their columns, however many these are.
std::optional<std::string> why_invalid(const KernelPlan& plan);

// What plans are for.
struct PlanLimits {
  int64_t tokens = 1;    // the tile is the smallest power of 2 that has them all, up to most_tokens
  int most_tokens = 32;  // a power of 2
  int value_bytes = 2;   // of an element; loads have at most 16 bytes
  int64_t columns = 65536;           // of the matrix: panels are not twice as wide
  int64_t shared_bytes = 48 * 1024;  // for panels
  // The values that these fields take.
  std::vector<int> threads{128, 256, 512};
  std::vector<int> thread_nonzeros{0, 1, 4, 16};
  std::vector<int> steps{1, 2, 4, 8};
  std::vector<int> panels{256, 1024, 4096};
};

// All valid plans within the limits, each once, in an order that is always the same.
std::vector<KernelPlan> enumerate_plans(const PlanLimits& limits);

// One line, for caches and messages, and back:
//   tokens=2 group=4 token-warps=1 block=several,split warp=several,split thread=one,split
//   thread-nonzeros=4 step=2 a-vector=2 x-vector=1 x=l1 panel=0 x-order=by-token
//   reductions=total,bitmap,segment threads=256
// (reductions of thread, warp and block; one space between fields). plan_from() takes what
// to_text() gives of a valid plan and nothing else; the text may be hostile, and what is wrong with
// it, or with the plan, is an Error of one line.
std::string to_text(const KernelPlan& plan);
KernelPlan plan_from(std::string_view text);

}  // namespace sparsellm::general_sparse
