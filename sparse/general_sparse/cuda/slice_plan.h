#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/parallel.h"
#include "sparse/general_sparse/cuda/slice_matrix.h"
#include "sparse/general_sparse/format/chunks.h"
#include "sparse/general_sparse/format/parts.h"

namespace sparsellm::general_sparse {

// Arrays that the kernels of slice_product.cuh need, made of an encoding's content when it is
// loaded (the paper's offset arrays).

// Which thread block multiplies which slices (SliceMatrix::schedule). Each block has those of one
// panel, or of two where the border between them falls into its share, and what it has of either
// takes longer than copying another part of x. Of a panel the longest slice that is left goes to
// the block with the least work, so that blocks end at the same time although slices have very
// different lengths. Deterministic.
struct SliceSchedule {
  std::vector<ScheduledSlice> slices;
  std::vector<uint32_t> share_begins;
};
SliceSchedule slice_schedule(const Layout& layout, const ChunkGrid& grid,
                             std::span<const uint32_t> starts, int shares);

// For how many thread blocks there are schedules, ascending, the first 1; at most `slices`.
std::vector<int> scheduled_shares(int multiprocessors, int64_t slices);
// Those schedules as they are on a device, one after the other.
std::vector<uint32_t> slice_schedules(const Layout& layout, const ChunkGrid& grid,
                                      std::span<const uint32_t> starts, std::span<const int> shares,
                                      ThreadPool& threads);
// Where in this the schedule for `share_counts[number]` begins, and its share_begins, in words; of
// the number after the last one: where the last one ends.
struct SchedulePlace {
  int64_t slices = 0;
  int64_t share_begins = 0;
};
SchedulePlace schedule_place(std::span<const int> share_counts, int64_t slices, size_t number);

// SliceMatrix::border_positions of an encoding of differences.
std::vector<uint16_t> border_positions(const Parts& parts, ThreadPool& threads);

}  // namespace sparsellm::general_sparse
