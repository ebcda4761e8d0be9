// Which share of a model each rank has.

#include "models/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::throws_error;

TEST(Shard, ElementsAreInOneShareEach) {
  for (const int64_t size : {1,   2,   63,  64,  65,  72,  127,  128,   130,   191,   192,
                             500, 574, 575, 576, 577, 640, 1000, 11008, 50272, 128256}) {
    for (int64_t degree = 1; degree <= 9; ++degree) {
      SCOPED_TRACE(std::to_string(size) + " by " + std::to_string(degree));
      int64_t next = 0;
      int64_t most = 0;
      int64_t fewest = size;
      for (int64_t rank = 0; rank < degree; ++rank) {
        const Range share = shared_elements(size, {.rank = rank, .degree = degree});
        EXPECT_EQ(share.begin, next);
        EXPECT_GE(share.count, rank == 0 ? 1 : 0);
        EXPECT_TRUE(share.begin % kShareStep == 0 || share.count == 0) << share.begin;
        most = std::max(most, share.count);
        fewest = std::min(fewest, share.count);
        next = share.begin + share.count;
      }
      EXPECT_EQ(next, size);
      EXPECT_LE(most - fewest, kShareStep);
      const std::vector<int64_t> borders = share_borders(size, degree);
      ASSERT_EQ(std::ssize(borders), degree + 1);
      EXPECT_EQ(borders.front(), 0);
      EXPECT_EQ(borders.back(), size);
      EXPECT_TRUE(std::ranges::is_sorted(borders));
    }
  }
}

TEST(Shard, HeadsAreSharedEquallyOrRepeated) {
  for (int64_t rank = 0; rank < 4; ++rank) {
    const Shard shard{.rank = rank, .degree = 4};
    EXPECT_EQ(shared_heads(8, shard).begin, 2 * rank);
    EXPECT_EQ(shared_heads(8, shard).count, 2);
    EXPECT_EQ(shared_heads(2, shard).begin, rank / 2);
    EXPECT_EQ(shared_heads(2, shard).count, 1);
    EXPECT_EQ(shared_heads(1, shard).begin, 0);
  }
}

// The heads of queries that a rank has are of the group of its head of keys and values.
TEST(Shard, QueriesAreWithTheirKeys) {
  ModelConfig config;
  for (const int64_t kv : {1, 2, 3, 4, 8, 12}) {
    config.num_kv_heads = kv;
    config.num_heads = 24;
    for (int64_t degree = 1; degree <= 24; ++degree) {
      if (!why_not_shared(config, degree).empty()) {
        EXPECT_TRUE(24 % degree != 0 || (kv % degree != 0 && degree % kv != 0));
        continue;
      }
      for (int64_t rank = 0; rank < degree; ++rank) {
        const Shard shard{.rank = rank, .degree = degree};
        const Range queries = query_heads(config, shard);
        const Range keys = kv_heads(config, shard);
        ASSERT_EQ(queries.count % keys.count, 0);
        for (int64_t i = 0; i < queries.count; ++i) {
          EXPECT_EQ((queries.begin + i) / (24 / kv), keys.begin + i / (queries.count / keys.count));
        }
      }
    }
  }
}

TEST(Shard, RefusesWhatCannotBeShared) {
  ModelConfig config;
  config.num_heads = 40;
  config.num_kv_heads = 40;
  EXPECT_EQ(why_not_shared(config, 1), "");
  EXPECT_EQ(why_not_shared(config, 8), "");
  EXPECT_EQ(why_not_shared(config, 3), "3 GPUs cannot share 40 attention heads");
  EXPECT_EQ(why_not_shared(config, 0), "0 GPUs cannot share 40 attention heads");
  EXPECT_EQ(why_not_shared(config, -1), "-1 GPUs cannot share 40 attention heads");
  config.num_heads = 12;
  config.num_kv_heads = 3;
  EXPECT_EQ(why_not_shared(config, 6), "");
  EXPECT_EQ(why_not_shared(config, 4), "4 GPUs cannot share 3 heads of keys and values");
  EXPECT_EQ(why_not_shared(config, 2), "2 GPUs cannot share 3 heads of keys and values");
  EXPECT_NO_THROW(require_shared(config, {.rank = 2, .degree = 3}));
  EXPECT_TRUE(throws_error([&] { require_shared(config, {.rank = 3, .degree = 3}); }, "rank 3 of"));
  EXPECT_TRUE(throws_error([&] { require_shared(config, {.rank = -1, .degree = 3}); }, "rank -1"));
  EXPECT_TRUE(throws_error([&] { require_shared(config, {.rank = 0, .degree = 4}); }, "3 heads"));
}

}  // namespace
}  // namespace sparsellm
