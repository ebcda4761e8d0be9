// Which kernel a product takes on a GPU of each kind. Planning is arithmetic on the host: no GPU is
// needed.

#include "sparse/tiled_csl/cuda/tile_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/token_buckets.h"
#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/tiled_csl/format/tile_record.h"

namespace sparsellm {
namespace {

using tiled_csl::plan_from;
using tiled_csl::TileKey;
using tiled_csl::TilePlan;
using tiled_csl::to_text;

constexpr int64_t kRecordBytes[] = {16, 1616, 2768, 5504, 6272, tiled_csl::kMaxRecordBytes};
constexpr TileMultistageDevice kAmpere{.multiprocessors = 108, .shared_bytes = 163 << 10};
constexpr TileMultistageDevice kAda{.multiprocessors = 128, .shared_bytes = 99 << 10};

TileMatrix matrix_on_hopper(int64_t rows, int64_t columns, int64_t largest_record) {
  return {.rows = rows,
          .columns = columns,
          .largest_record = largest_record,
          .multiprocessors = 132,
          .multistage = {.multiprocessors = 132, .shared_bytes = 227 << 10}};
}

// Whether the build has code for them.
bool has_warpgroups() {
  return tile_matmul_fits(matrix_on_hopper(1000, 1000, 16), {.tiles = 8, .groups = 1}, 64);
}

std::vector<std::string> names_of(const std::vector<TileMatmulConfig>& configs) {
  std::vector<std::string> names;
  std::ranges::transform(configs, std::back_inserter(names), tile_matmul_name);
  return names;
}

TEST(TiledCslPlan, BeforeHopperUpTo64TokensAreTheMultistageKernels) {
  for (const TileMultistageDevice& device : {kAmpere, kAda}) {
    for (const int64_t bytes : kRecordBytes) {
      const TileMatrix matrix{
          .rows = 1000, .columns = 1000, .largest_record = bytes, .multistage = device};
      EXPECT_TRUE(tile_multistage_fits(matrix));
      for (const int64_t tokens : {1, 32, 33, 64}) {
        const std::optional<TileMatmulConfig> config = tile_matmul_rule(matrix, tokens);
        ASSERT_TRUE(config.has_value()) << tokens << " tokens";
        EXPECT_TRUE(config == tile_matmul_for_any_tokens(matrix)) << tokens << " tokens";
        EXPECT_EQ(tile_matmul_name(*config), "multistage");
      }
      EXPECT_FALSE(tile_matmul_rule(matrix, 65).has_value()) << "they are expanded";
    }
  }
}

TEST(TiledCslPlan, HopperHasKernelsOfItsOwn) {
  for (const int64_t bytes : kRecordBytes) {
    const TileMatrix matrix = matrix_on_hopper(1000, 1000, bytes);
    for (const int64_t tokens : {1, 32, 64, 128}) {
      const std::optional<TileMatmulConfig> config = tile_matmul_rule(matrix, tokens);
      ASSERT_TRUE(config.has_value()) << tokens << " tokens";
      EXPECT_FALSE(config->multistage) << tokens << " tokens";
    }
    for (const int64_t tokens : {129, 1024}) {
      const std::optional<TileMatmulConfig> config = tile_matmul_rule(matrix, tokens);
      ASSERT_EQ(config.has_value(), has_warpgroups()) << tokens << " tokens";
      EXPECT_TRUE(!config.has_value() || config->gemm) << tokens << " tokens";
    }
    EXPECT_FALSE(tile_matmul_rule(matrix, 1025).has_value()) << "they are expanded";
    EXPECT_FALSE(tile_matmul_for_any_tokens(matrix)->multistage);
    EXPECT_FALSE(tile_matmul_for_any_tokens(matrix)->gemm) << "its sums depend on the tokens";
  }
}

TEST(TiledCslPlan, OthersExpand) {
  for (const TileMultistageDevice& device :
       {TileMultistageDevice{},
        TileMultistageDevice{.multiprocessors = 40, .shared_bytes = 16 << 10}}) {
    const TileMatrix matrix{
        .rows = 1000, .columns = 1000, .largest_record = 16, .multistage = device};
    EXPECT_FALSE(tile_multistage_fits(matrix));
    EXPECT_FALSE(tile_matmul_rule(matrix, 1).has_value());
    EXPECT_FALSE(tile_matmul_for_any_tokens(matrix).has_value());
    EXPECT_TRUE(tile_matmul_candidates(matrix, 1).empty());
  }
}

TEST(TiledCslPlan, CandidatesAreForTheirNumberOfTokens) {
  if (!has_warpgroups()) {
    GTEST_SKIP() << "the build has no products of warpgroups";
  }
  using Names = std::vector<std::string>;
  const TileMatrix matrix = matrix_on_hopper(1000, 1000, 1616);
  const Names few{"11 tiles", "10 tiles", "9 tiles", "8 tiles"};
  for (const int64_t tokens : {1, 2, 4, 8}) {
    EXPECT_EQ(names_of(tile_matmul_candidates(matrix, tokens)), few) << tokens;
  }
  EXPECT_EQ(names_of(tile_matmul_candidates(matrix, 16)),
            (Names{"11 tiles", "10 tiles", "9 tiles", "8 tiles", "8 tiles, 1 warpgroup"}));
  for (const int64_t tokens : {32, 64}) {
    EXPECT_EQ(names_of(tile_matmul_candidates(matrix, tokens)),
              (Names{"8 tiles, 1 warpgroup", "8 tiles"}))
        << tokens;
  }
  EXPECT_EQ(names_of(tile_matmul_candidates(matrix, 128)),
            (Names{"8 tiles, 2 warpgroups", "256 tokens at a time"}));
  for (const int64_t tokens : {256, 512}) {
    EXPECT_EQ(names_of(tile_matmul_candidates(matrix, tokens)),
              (Names{"256 tokens at a time", "8 tiles, 2 warpgroups"}))
        << tokens;
  }
  for (const int64_t tokens : {1024, 4096}) {
    EXPECT_EQ(names_of(tile_matmul_candidates(matrix, tokens)), Names{"256 tokens at a time"})
        << tokens;
  }
}

TEST(TiledCslPlan, MultistageCandidates) {
  const TileMatrix matrix{
      .rows = 1000, .columns = 1000, .largest_record = 6272, .multistage = kAmpere};
  for (const int64_t tokens : {1, 32, 128}) {
    EXPECT_EQ(names_of(tile_matmul_candidates(matrix, tokens)),
              std::vector<std::string>{"multistage"});
  }
  EXPECT_TRUE(tile_matmul_candidates(matrix, 256).empty());
}

// What was chosen for a bucket is used for fewer tokens, too.
TEST(TiledCslPlan, CandidatesFitAndTheRuleIsTheFirst) {
  for (const int64_t bytes : kRecordBytes) {
    for (const int64_t size : {1, 1000, 28672}) {
      const TileMatrix matrix = matrix_on_hopper(size, size, bytes);
      for (const int64_t tokens : token_buckets_up_to(512)) {
        const std::vector<TileMatmulConfig> configs = tile_matmul_candidates(matrix, tokens);
        if (const std::optional<TileMatmulConfig> rule = tile_matmul_rule(matrix, tokens)) {
          ASSERT_FALSE(configs.empty());
          EXPECT_TRUE(configs.front() == *rule) << tile_matmul_name(configs.front());
        }
        for (const TileMatmulConfig& config : configs) {
          for (const int64_t fewer : token_buckets_up_to(tokens)) {
            EXPECT_TRUE(tile_matmul_fits(matrix, config, fewer))
                << tile_matmul_name(config) << " of " << bytes << " for " << fewer;
          }
        }
      }
    }
  }
}

TEST(TiledCslPlan, WhatDoesNotFit) {
  const TileMatrix matrix = matrix_on_hopper(1000, 1000, 1616);
  EXPECT_TRUE(tile_matmul_fits(matrix, {.tiles = 11}, 16));
  EXPECT_FALSE(tile_matmul_fits(matrix, {.tiles = 11}, 17)) << "no registers";
  EXPECT_FALSE(tile_matmul_fits(matrix, {.tiles = 12}, 1));
  EXPECT_FALSE(tile_matmul_fits(matrix, {.tiles = 0}, 1));
  EXPECT_FALSE(tile_matmul_fits(matrix, {.tiles = 7, .groups = 1}, 64));
  // Steps are counted in 32 bits, four times as many of a launch for 1,024 tokens.
  const TileMatrix large = matrix_on_hopper(int64_t{1} << 20, int64_t{1} << 20, 16);
  EXPECT_TRUE(tile_matmul_fits(large, {.tiles = 8}, 1));
  EXPECT_EQ(tile_matmul_fits(large, {.gemm = true}, 256), has_warpgroups());
  const TileMatrix larger = matrix_on_hopper(int64_t{1} << 20, int64_t{1} << 21, 16);
  EXPECT_TRUE(tile_matmul_fits(larger, {.tiles = 8}, 1));
  EXPECT_FALSE(tile_matmul_fits(larger, {.gemm = true}, 256));
  const TileMatrix too_large = matrix_on_hopper(int64_t{1} << 23, int64_t{1} << 23, 16);
  EXPECT_FALSE(tile_matmul_fits(too_large, {.tiles = 8}, 1));
  EXPECT_FALSE(tile_matmul_fits(too_large, {.multistage = true}, 1));
  TileMatrix before = matrix;
  before.multiprocessors = 0;
  EXPECT_FALSE(tile_matmul_fits(before, {.tiles = 8}, 1));
  EXPECT_TRUE(tile_matmul_fits(before, {.multistage = true}, 1));
  before.multistage = {};
  EXPECT_FALSE(tile_matmul_fits(before, {.multistage = true}, 1));
}

TEST(TiledCslPlan, TextSaysWhatItWas) {
  TileMatrix ampere = matrix_on_hopper(4096, 4096, 2768);
  ampere.multiprocessors = 0;
  for (const TileMatrix& matrix :
       {matrix_on_hopper(28672, 7168, 1616), matrix_on_hopper(100, 72, 6272), ampere}) {
    for (const int64_t tokens : {1, 16, 32, 64, 128, 512, 2048}) {
      std::vector<TilePlan> plans{single_piece_expansion(matrix.rows, matrix.columns)};
      for (const Expansion& each : overlapped_expansions(matrix.rows, matrix.columns, tokens)) {
        plans.emplace_back(each);
      }
      for (const TileMatmulConfig& config : tile_matmul_candidates(matrix, tokens)) {
        plans.emplace_back(config);
      }
      for (const TilePlan& plan : plans) {
        const std::string text = to_text(plan);
        const std::optional<TilePlan> back = plan_from(text, matrix, tokens);
        ASSERT_TRUE(back.has_value()) << text;
        EXPECT_TRUE(*back == plan) << text;
      }
    }
  }
}

TEST(TiledCslPlan, RefusesWhatIsNoChoice) {
  const TileMatrix matrix = matrix_on_hopper(4096, 4096, 1616);
  for (const char* text :
       {"", "extract", "extract ", "extract 8", "extract 12 tiles", "extract 8 tiles ",
        "extract multistage", "extract 8 tiles, 3 warpgroups", "extract 8 tiles, 2 warpgroups",
        "8 tiles", "decode 8 tiles", "expand", "expand 1", "dense"}) {
    EXPECT_FALSE(plan_from(text, matrix, 16).has_value()) << text;
  }
  EXPECT_TRUE(plan_from("extract 11 tiles", matrix, 16).has_value());
  EXPECT_FALSE(plan_from("extract 11 tiles", matrix, 32).has_value());
}

TEST(TiledCslPlan, KeysDifferInAllThatTheChoiceDependsOn) {
  const TileKey key{.rows = 64, .columns = 128, .percent = 20, .tiles = 11, .tokens = 16};
  std::vector<TileKey> keys(9, key);
  keys[1].rows = 128;
  keys[2].columns = 64;
  keys[3].percent = 25;
  keys[4].tiles = 10;
  keys[5].dtype = DType::bf16;
  keys[6].y = DType::f32;
  keys[7].tokens = 32;
  keys[8].launches = Launches::ordinary;
  std::set<std::string> texts;
  for (const TileKey& each : keys) {
    texts.insert(each.text());
  }
  EXPECT_EQ(texts.size(), keys.size());
  EXPECT_EQ(std::set<TileKey>(keys.begin(), keys.end()).size(), keys.size());
}

}  // namespace
}  // namespace sparsellm
