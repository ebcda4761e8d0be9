#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/general_sparse/device/kernel_plan.h"

// The search space of generated kernels (GeneralSparse, Wang et al., ATC 2025), of which a
// KernelPlan is a point. All of these kernels gather B through L1 from device memory, in the order
// in which it is given: who wants it transposed transposes it before (kernels/transpose.h). B in
// shared memory, which the paper's space does not have either, takes encodings with panels and
// interleaved lanes; those kernels are written by hand (cuda/slice_product.cuh).
namespace sparsellm::general_sparse {

constexpr int tile_tokens(const KernelPlan& plan) {
  return plan.tokens_per_thread * plan.threads_per_group * plan.warps_per_group;
}
// Of a warp.
constexpr int groups(const KernelPlan& plan) { return 32 / plan.threads_per_group; }
// Of a block: warps that have other nonzeros.
constexpr int sparse_warps(const KernelPlan& plan) {
  return plan.threads / 32 / plan.warps_per_group;
}

// The three divisions come down to one array of offsets, that of the parts into which the nonzeros
// are cut. A part is of one group of threads, of the groups of a warp, or of those of a block;
// parts of a warp, or of a block, are consecutive. By the division of the threads:
//   whole rows        A group has a part, of one row or of several.
//   one row, split    A part has one row, too: it is of a block or of a warp, if these have one
//                     row, else of a group. Its groups take turns, a step each: adjacent nonzeros
//                     are loaded at once.
//   several, split    A part is of a warp of whole rows, else of a block, and its groups share it
//                     evenly. Each of them has consecutive nonzeros.
// Beyond this the divisions of the levels above say which rows may be in a part, or that the parts
// of a row are all of one warp or block.
enum class PartLevel : unsigned char { group, warp, block };

constexpr PartLevel part_level(const KernelPlan& plan) {
  if (plan.thread.ends == RowEnds::whole) {
    return PartLevel::group;
  }
  if (plan.thread.rows == RowCount::several) {
    return plan.warp.ends == RowEnds::whole ? PartLevel::warp : PartLevel::block;
  }
  return plan.block.rows == RowCount::one  ? PartLevel::block
         : plan.warp.rows == RowCount::one ? PartLevel::warp
                                           : PartLevel::group;
}

constexpr Division part_division(const KernelPlan& plan) {
  switch (part_level(plan)) {
    case PartLevel::group:
      return plan.thread;
    case PartLevel::warp:
      return plan.warp;
    default:
      return plan.block;
  }
}

// Nothing else says where rows start then.
constexpr bool part_is_row(const KernelPlan& plan) {
  return part_division(plan) == Division{RowCount::one, RowEnds::whole};
}

// How many groups have a part.
constexpr int part_groups(const KernelPlan& plan) {
  switch (part_level(plan)) {
    case PartLevel::group:
      return 1;
    case PartLevel::warp:
      return groups(plan);
    default:
      return groups(plan) * sparse_warps(plan);
  }
}

// How many parts a block has.
constexpr int block_parts(const KernelPlan& plan) {
  return groups(plan) * sparse_warps(plan) / part_groups(plan);
}

// Why no kernel is made of the plan, in one line; nothing if one is. Besides what the fields above
// take:
//   - A warp of one group has the division of its threads, a block of one sparse warp that of it.
//     Else what has a part with several rows, or whole ones, has several, and whole ones then.
//   - Whole rows end the chain of reductions, rows that are split over parts go on: above a total,
//     and above nothing, one row is a total, several are a bitmap; above a bitmap or a segment is a
//     segment. A level of one part has none.
//   - A thread of one nonzero skips the thread's level. Threads of whole rows, and those that share
//     one whole row, have no fixed number of nonzeros.
//   - The steps of a thread divide its nonzeros, loads divide a step, or the tokens of a thread;
//     several tokens are in one load only if x is transposed.
std::optional<std::string> why_invalid(const KernelPlan& plan);

// What plans are for.
struct PlanLimits {
  int64_t tokens = 1;    // the tile is the smallest power of 2 that has them all, up to most_tokens
  int most_tokens = 32;  // a power of 2
  int value_bytes = 2;   // of an element; loads have at most 16 bytes
  // The values that these fields take.
  std::vector<int> threads{128, 256, 512};
  std::vector<int> thread_nonzeros{0, 1, 4, 16};
  std::vector<int> steps{1, 2, 4, 8};
};

// All valid plans within the limits, each once, in an order that is always the same.
std::vector<KernelPlan> enumerate_plans(const PlanLimits& limits);

// One line, for caches and messages, and back:
//   tokens=2 group=4 token-warps=1 block=several,split warp=several,split thread=one,split
//   thread-nonzeros=4 step=2 a-vector=2 x-vector=1 x-order=by-token
//   reductions=total,bitmap,segment threads=256
// (reductions of thread, warp and block; one space between fields). plan_from() takes what
// to_text() gives of a valid plan and nothing else; the text may be hostile, and what is wrong with
// it, or with the plan, is an Error of one line.
std::string to_text(const KernelPlan& plan);
KernelPlan plan_from(std::string_view text);

}  // namespace sparsellm::general_sparse
