#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparse/tca_bme/format/record_layout.h"

namespace sparsellm::tca_bme {

// How unevenly the nonzeros of a matrix lie, as far as the kernels care: matrices of one shape and
// density may have records of very different sizes.
struct RecordSizes {
  uint32_t largest = 0;  // bytes
  // Bytes that all records but a few have at most. Kernels make room for a number of records of
  // this size, and have fewer in flight while one is larger; `largest` where that is not much more.
  uint32_t common = 0;
  // Where the records of each 64 rows begin, and where the last end, in units of
  // kRecordAlignment; empty if no 64 rows have many more bytes than others.
  std::vector<uint32_t> block_starts;
};

// `starts` as in the layout, [grid.count() + 1].
RecordSizes record_sizes(std::span<const uint32_t> starts, const RecordGrid& grid);

// Bytes past the values that loads of kernels reach: 2 of version 2, 8 of version 3.
inline constexpr int32_t kPastValues = 8;

// What a record of this many bytes takes of shared memory: a multiple of 128, which makes bulk
// copies faster, with the bytes past the values.
int64_t record_room(int64_t bytes);

// A ring of shared memory in which records lie one after the other, each from a multiple of 128
// bytes on.
struct Ring {
  int count = 0;      // records in flight or in use, at most
  int bytes = 0;      // of the ring, a multiple of 128
  bool wide = false;  // records may have more than 1 / count of it
};

// For `most` records, or fewer if there is no room for that many common ones; a large record among
// them takes the room of no other as long as `room` suffices. None if the largest record does not
// fit.
Ring ring_for(uint32_t largest, uint32_t common, int64_t room, int most);

// Cuts items, of which `starts` are the running totals of weights, into `parts` runs of 1 to `most`
// items, so that the heaviest run is about as light as possible. Returns where each run begins, and
// the number of items: [parts + 1]. Throws Error if there are fewer items than parts, or more than
// `most` for each.
std::vector<int> balanced_runs(std::span<const uint32_t> starts, int parts, int most);

}  // namespace sparsellm::tca_bme
