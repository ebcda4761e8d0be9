#include "kernels/base/token_buckets.h"

#include <gtest/gtest.h>

namespace sparsellm {
namespace {

TEST(TokenBuckets, AreTheNextPowersOfTwo) {
  EXPECT_EQ(token_bucket(0), 1);
  EXPECT_EQ(token_bucket(1), 1);
  EXPECT_EQ(token_bucket(2), 2);
  EXPECT_EQ(token_bucket(3), 4);
  EXPECT_EQ(token_bucket(4), 4);
  EXPECT_EQ(token_bucket(5), 8);
  EXPECT_EQ(token_bucket(2048), 2048);
  EXPECT_EQ(token_bucket(2049), 4096);
  for (int64_t tokens = 1; tokens < 5000; ++tokens) {
    const int64_t bucket = token_bucket(tokens);
    EXPECT_GE(bucket, tokens);
    EXPECT_LT(bucket, 2 * tokens);
    EXPECT_EQ(token_bucket(bucket), bucket);
  }
}

TEST(TokenBuckets, UpToOne) {
  using Buckets = std::vector<int64_t>;
  EXPECT_EQ(token_buckets_up_to(0), (Buckets{1}));
  EXPECT_EQ(token_buckets_up_to(1), (Buckets{1}));
  EXPECT_EQ(token_buckets_up_to(2), (Buckets{1, 2}));
  EXPECT_EQ(token_buckets_up_to(5), (Buckets{1, 2, 4, 8}));
  EXPECT_EQ(token_buckets_up_to(8), (Buckets{1, 2, 4, 8}));
}

}  // namespace
}  // namespace sparsellm
