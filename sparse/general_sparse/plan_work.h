#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparse/general_sparse/device/plan_operands.h"
#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/offset_function.h"
#include "sparse/general_sparse/plan.h"

// How the nonzeros of an encoding are divided among the threads of a plan's kernel: the offset
// arrays of GeneralSparse (Wang et al., ATC 2025). Of its three, for blocks, warps and threads, one
// is kept: the others are functions of it (plan.h). "Row" is a group of rows that share
// positions below; a load is `a_vector` entries, which is what everything is counted in.
namespace sparsellm::general_sparse {

// Which rows of an encoding have which entries: all that a division needs of it. It views arrays of
// the host.
struct EncodedRows {
  EncodedRows(const Layout& of_layout, const ChunkGrid& of_grid,
              std::span<const uint32_t> all_starts, std::span<const uint16_t> order)
      : layout(of_layout), grid(of_grid), starts(all_starts), row_order(order) {}
  EncodedRows(const Parts& parts)  // NOLINT(google-explicit-constructor): a view of these
      : EncodedRows(parts.layout, parts.grid, parts.starts, parts.row_order) {}

  Layout layout;
  ChunkGrid grid;
  std::span<const uint32_t> starts;
  std::span<const uint16_t> row_order;  // empty if not sorted
};

struct PlanWork {
  int64_t loads = 0;
  int64_t parts = 0;
  int64_t part_blocks = 0;
  // The loads of each group of threads, if no part has more for each of its groups; 0: they have
  // what their part has, evenly.
  int group_loads = 0;

  // [parts + 1]: where parts begin. The end of the last one may be beyond the loads.
  std::vector<uint32_t> part_begins;
  // Of C, for each row that has entries, in the order of the encoding.
  std::vector<uint32_t> rows;
  // A bit for each load, where threads have several rows, or for each part, where these have some
  // of one row: set if a row starts there. None where a part is a row.
  std::vector<RowStarts> starts;
  std::vector<uint32_t> empty_rows;  // of C
  std::vector<BlockRow> block_rows;  // that several thread blocks have
};

// Parts of whole rows, or of equally many loads, or pieces of rows. A part has `thread_nonzeros`
// for each of its groups, as far as its rows allow. If these are 0,
//   with one row a thread the mean length of rows that have entries, at most 64;
//   with several rows four times the mean, from 16 to 256.
// Where a warp or a block has whole rows, but threads pieces of them, parts without entries fill it
// up.
//
// The encoding is valid. The same arrays on every machine. Throws Error for a plan that is not
// valid, for a layout other than groups apart in one panel of u16 or u32 positions, for units that
// the vectors of A do not divide, and for 2^31 loads and more.
PlanWork plan_work(const EncodedRows& rows, const KernelPlan& plan);

// What of matrix and plan a kernel is made of (plan_source.h).
struct PlanFacts {
  DType dtype = DType::f32;
  PositionCode positions = PositionCode::u16;
  int shared_rows = 1;
  int group_loads = 0;
  OffsetFunction part_begin;
  OffsetFunction row;
};
PlanFacts plan_facts(const Layout& layout, DType dtype, const PlanWork& work);

}  // namespace sparsellm::general_sparse
