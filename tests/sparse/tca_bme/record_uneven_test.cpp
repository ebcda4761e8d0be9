// 10,000 encodings of uneven matrices: what is checked of them on the way to a GPU, and what
// kernels know of the sizes of their records.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sparse/count_nonzeros.h"
#include "sparse/tca_bme/format/record_sizes.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/tca_bme/check_in_pieces.h"
#include "tests/sparse/tca_bme/records.h"
#include "tests/sparse/uneven_weights.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tca_bme::RecordParts;
using tca_bme::RecordSizes;
using tca_bme::Ring;

void check_sizes(const RecordParts& parts, const RecordSizes& sizes) {
  int64_t larger = 0;  // than what is common
  uint32_t largest = 0;
  for (int64_t r = 0; r < parts.grid.count(); ++r) {
    const auto bytes = static_cast<uint32_t>(parts.record(r).size());
    largest = std::max(largest, bytes);
    larger += bytes > sizes.common ? 1 : 0;
  }
  ASSERT_EQ(sizes.largest, largest);
  ASSERT_LE(sizes.common, largest);
  ASSERT_GE(sizes.common, static_cast<uint32_t>(parts.layout.header_bytes()));
  ASSERT_LE(larger * 64, parts.grid.count());
  if (!sizes.block_starts.empty()) {
    ASSERT_EQ(std::ssize(sizes.block_starts), parts.grid.row_blocks + 1);
    for (int64_t block = 0; block <= parts.grid.row_blocks; ++block) {
      ASSERT_EQ(sizes.block_starts[static_cast<size_t>(block)],
                parts.starts[static_cast<size_t>(block * parts.grid.columns)]);
    }
  }
}

void check_ring(const RecordSizes& sizes, int64_t room, int most) {
  const Ring ring = tca_bme::ring_for(sizes.largest, sizes.common, room, most);
  const int64_t large = tca_bme::record_room(sizes.largest);
  if (ring.count == 0) {
    ASSERT_LT(room, large);
    return;
  }
  ASSERT_LE(ring.count, most);
  ASSERT_LE(ring.bytes, room);
  ASSERT_GE(ring.bytes, large);
  ASSERT_GE(ring.bytes, ring.count * tca_bme::record_room(sizes.common));
  ASSERT_EQ(ring.wide, large > tca_bme::record_room(sizes.common));
}

// Of the records themselves, which are more than row blocks.
void check_runs(std::span<const uint32_t> starts, int parts, int most) {
  const auto items = static_cast<int>(std::ssize(starts)) - 1;
  const std::vector<int> begins = tca_bme::balanced_runs(starts, parts, most);
  ASSERT_EQ(std::ssize(begins), parts + 1);
  ASSERT_EQ(begins.front(), 0);
  ASSERT_EQ(begins.back(), items);
  for (int i = 0; i < parts; ++i) {
    const int run = begins[static_cast<size_t>(i) + 1] - begins[static_cast<size_t>(i)];
    ASSERT_GE(run, 1);
    ASSERT_LE(run, most);
  }
}

TEST(TcaBmeRecordUneven, TenThousandEncodings) {
  constexpr uint64_t kCount = 10'000;
  Random random(211);
  ThreadPool caller(1);
  int with_larger = 0;
  int shared_by_bytes = 0;
  int layouts[3] = {};
  for (uint64_t seed = 0; seed < kCount; ++seed) {
    SCOPED_TRACE(seed);
    const OwnedTensor w = uneven_weight(seed);
    const EncodedWeight e = encode(w.view);
    ASSERT_EQ(e.nonzeros, count_nonzeros(w.view, caller));
    const int64_t most_bytes = random.below(4) == 0 ? 2 << 20 : random.below(40'000);
    ASSERT_TRUE(check_in_pieces(e, most_bytes, seed));
    if (seed % 16 == 0) {
      clear_negative_zeros(w.view);
      ASSERT_TRUE(same_matrix(format().decode(e, caller).view, w.view));
    }

    const RecordParts parts(e);
    const RecordSizes sizes = tca_bme::record_sizes(parts.starts, parts.grid);
    ASSERT_NO_FATAL_FAILURE(check_sizes(parts, sizes));
    for (int i = 0; i < 4; ++i) {
      const int64_t room = random.below(i % 2 == 0 ? 227 * 1024 : 30'000);
      ASSERT_NO_FATAL_FAILURE(check_ring(sizes, room, 1 + static_cast<int>(random.below(6))));
    }
    const auto count = static_cast<int>(parts.grid.count());
    const int runs = 1 + static_cast<int>(random.below(count));
    const int most = (count + runs - 1) / runs + static_cast<int>(random.below(3));
    ASSERT_NO_FATAL_FAILURE(check_runs(parts.starts, runs, most));

    with_larger += sizes.common < sizes.largest ? 1 : 0;
    shared_by_bytes += sizes.block_starts.empty() ? 0 : 1;
    ++layouts[parts.layout.pairs() ? 2 : parts.layout.chunks / 4 - 1];
  }
  // The matrices are such that all of this is there.
  EXPECT_GT(shared_by_bytes, 3'000);
  EXPECT_GT(with_larger, 30);
  for (const int layout : layouts) {
    EXPECT_GT(layout, 1'000);
  }
}

}  // namespace
}  // namespace sparsellm
