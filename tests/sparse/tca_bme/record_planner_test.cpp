// Which plans there are for products of 10,000 uneven matrices on GPUs of several sizes. Planning
// is arithmetic on the host: no GPU is needed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/token_buckets.h"
#include "sparse/tca_bme/cuda/record_matmul_cuda.h"
#include "sparse/tca_bme/cuda/record_multistage_cuda.h"
#include "sparse/tca_bme/cuda/record_plan.h"
#include "sparse/tca_bme/cuda/record_wgmma_cuda.h"
#include "sparse/tca_bme/cuda/record_workspace.h"
#include "sparse/tca_bme/format/record_sizes.h"
#include "sparse/tca_bme/quantized/cuda/x_units.h"
#include "tests/sparse/tca_bme/records.h"
#include "tests/sparse/uneven_weights.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tca_bme::plan_from;
using tca_bme::RecordGrid;
using tca_bme::RecordLayout;
using tca_bme::RecordPlan;
using tca_bme::RecordSizes;
using tca_bme::to_text;

constexpr int64_t kMaxTokens = 64;
constexpr int kMaxClusters = 160;

// An H200 or H100 with 132 multiprocessors, an H100 of the PCIe kind with 114, one that has lost
// its large clusters, and a part of one. Each has 227 KiB of shared memory for a block.
constexpr ClusterCounts kHopper[] = {
    {132, 66, 33, 16, 8}, {114, 57, 28, 14, 7}, {132, 60, 26, 11, 0}, {16, 8, 4, 1, 0}};

// A matrix of which only the sizes of records are known.
struct SizedMatrix {
  SizedMatrix(int64_t rows, int64_t columns, const RecordLayout& layout,
              std::span<const uint32_t> starts, const ClusterCounts& clusters)
      : sizes(tca_bme::record_sizes(starts, tca_bme::record_grid(rows, columns, layout))),
        shares(record_shares(sizes.block_starts, clusters)),
        matrix{.rows = rows,
               .columns = columns,
               .chunks = layout.chunks,
               .pair = layout.pairs(),
               .largest_record = sizes.largest,
               .common_record = sizes.common,
               .clusters = clusters,
               .shares = &shares} {}
  SizedMatrix(const SizedMatrix&) = delete;
  SizedMatrix& operator=(const SizedMatrix&) = delete;

  RecordSizes sizes;
  RecordShares shares;
  RecordMatrix matrix;
};

void check_shares(const RecordMatrix& matrix) {
  const auto row_blocks = static_cast<int>((matrix.rows + 63) / 64);
  for (const int split : {1, 2, 4, 8, 16}) {
    const std::vector<int>* const begins = matrix.shares_of(split);
    if (begins == nullptr) {
      continue;
    }
    const int clusters = std::min({matrix.clusters_of(split), row_blocks, kMaxClusters});
    ASSERT_EQ(std::ssize(*begins), clusters + 1);
    ASSERT_EQ(begins->front(), 0);
    ASSERT_EQ(begins->back(), row_blocks);
    ASSERT_EQ(std::adjacent_find(begins->begin(), begins->end(), std::greater_equal<>()),
              begins->end());
  }
}

// A plan can be read back from a file for the weight that it was made for.
void check_text(const RecordPlan& plan, const RecordMatrix& matrix, int64_t tokens) {
  const std::optional<RecordPlan> read = plan_from(to_text(plan), matrix, tokens);
  ASSERT_TRUE(read.has_value()) << to_text(plan);
  ASSERT_TRUE(*read == plan) << to_text(plan);
}

// On compute capability 9.0 there is room for nearly every matrix, whatever its records. The others
// have so many full ones that they are common, and partial sums for 64 tokens that would take too
// much memory: no configuration is a candidate, which is an expansion unless warpgroups take them.
// Counts the buckets of which that is so.
void check_hopper_plans(const RecordMatrix& matrix, int& expanded) {
  for (const int64_t tokens : token_buckets_up_to(kMaxTokens)) {
    SCOPED_TRACE(fmt::format("{} tokens, {} chunks, records of {} to {} bytes", tokens,
                             matrix.chunks, matrix.common_record, matrix.largest_record));
    const std::vector<RecordMatmulConfig> configs = record_matmul_candidates(matrix, tokens);
    const std::vector<RecordWgmmaConfig> tiles = record_wgmma_candidates(matrix, tokens);
    if (configs.empty()) {
      ++expanded;
      ASSERT_EQ(tokens, kMaxTokens);
      ASSERT_GT(matrix.common_record, 16u * 1024);
      ASSERT_GT(matrix.rows, 1024);
    } else {
      ASSERT_NO_FATAL_FAILURE(check_text(configs.front(), matrix, tokens));
      ASSERT_NO_FATAL_FAILURE(check_text(configs.back(), matrix, tokens));
    }
    for (const RecordMatmulConfig& config : configs) {
      ASSERT_FALSE(config.multistage);
      ASSERT_NE(matrix.clusters_of(config.split), 0);
      // Whoever chose it for a bucket uses it for fewer tokens, too.
      for (const int64_t fewer : token_buckets_up_to(tokens)) {
        ASSERT_TRUE(record_matmul_fits(matrix, config, fewer))
            << record_matmul_name(config) << " for " << fewer;
      }
    }
    ASSERT_GE(record_matmul_workspace_bytes(matrix, tokens), 0);
    const int64_t workspace = tca_bme::records_workspace_bytes(matrix, tokens, Sums::fastest);
    for (const RecordWgmmaConfig& config : tiles) {
      ASSERT_TRUE(record_wgmma_fits(matrix, config)) << record_wgmma_name(config);
      if (tokens >= tca_bme::kMinWgmmaTokens) {
        ASSERT_LE(record_wgmma_workspace_bytes(matrix, config, tokens), workspace);
      }
    }
    if (!tiles.empty()) {
      ASSERT_NO_FATAL_FAILURE(check_text(tiles.front(), matrix, tokens));
    }
  }
}

// Of a GPU that has no clusters: the multistage kernel, or none, which is an expansion.
bool fits_multistage(const RecordMatrix& on_hopper, int multiprocessors, int shared_kib) {
  RecordMatrix matrix = on_hopper;
  matrix.clusters = {};
  matrix.shares = nullptr;
  matrix.multistage = {.multiprocessors = multiprocessors, .shared_bytes = shared_kib * 1024};
  return record_multistage_fits(matrix);
}

void check_small_gpus(const RecordMatrix& matrix) {
  ASSERT_TRUE(fits_multistage(matrix, 82, 99));    // 8.6
  ASSERT_TRUE(fits_multistage(matrix, 108, 163));  // 8.0
  ASSERT_TRUE(fits_multistage(matrix, 40, 64));
  ASSERT_FALSE(fits_multistage(matrix, 0, 0));  // what has no such kernel
}

// The records of the small matrix over and over, of which some are in other places, in a matrix of
// a model's size.
std::vector<uint32_t> repeated(std::span<const uint32_t> starts, const RecordGrid& grid,
                               Random& random) {
  const auto count = static_cast<int64_t>(starts.size()) - 1;
  std::vector<uint32_t> result{0};
  result.reserve(static_cast<size_t>(grid.count()) + 1);
  for (int64_t r = 0; r < grid.count(); ++r) {
    const auto from = static_cast<size_t>(random.below(8) == 0 ? random.below(count) : r % count);
    result.push_back(result.back() + starts[from + 1] - starts[from]);
  }
  return result;
}

TEST(TcaBmeRecordPlanner, EveryBucketOfTenThousandMatricesHasAPlanThatFits) {
  constexpr uint64_t kCount = 10'000;
  constexpr int64_t kSizes[] = {1, 64, 4096, 5120, 7168, 11'008, 14'336, 28'672};
  Random random(212);
  ClusterCounts clusters{};
  int shared_by_bytes = 0;
  int with_larger = 0;
  int expanded = 0;
  const auto check = [&](const SizedMatrix& sized) {
    ASSERT_NO_FATAL_FAILURE(check_shares(sized.matrix));
    ASSERT_NO_FATAL_FAILURE(check_hopper_plans(sized.matrix, expanded));
    ASSERT_NO_FATAL_FAILURE(check_small_gpus(sized.matrix));
    shared_by_bytes += std::ranges::all_of(sized.shares, &std::vector<int>::empty) ? 0 : 1;
    with_larger += sized.sizes.common < sized.sizes.largest ? 1 : 0;
  };
  for (uint64_t seed = 0; seed < kCount; ++seed) {
    const EncodedWeight e = encode(uneven_weight(seed).view, seed % 3 == 0 ? "size" : "speed");
    const tca_bme::RecordParts parts(e);
    clusters = kHopper[(seed + seed / 16) % std::size(kHopper)];
    SCOPED_TRACE(fmt::format("{}: {} x {} on {} multiprocessors", seed, e.rows, e.columns,
                             clusters.front()));
    ASSERT_NO_FATAL_FAILURE(
        check(SizedMatrix(e.rows, e.columns, parts.layout, parts.starts, clusters)));

    if (seed % 8 == 0) {
      const int64_t rows = kSizes[random.below(std::size(kSizes))];
      const int64_t columns = kSizes[random.below(std::size(kSizes))] + random.below(3);
      SCOPED_TRACE(fmt::format("its records in {} x {}", rows, columns));
      const RecordGrid grid = tca_bme::record_grid(rows, columns, parts.layout);
      ASSERT_NO_FATAL_FAILURE(check(SizedMatrix(rows, columns, parts.layout,
                                                repeated(parts.starts, grid, random), clusters)));
    }
  }
  EXPECT_GT(shared_by_bytes, 100);
  EXPECT_GT(with_larger, 100);
  EXPECT_LT(expanded, 10);
}

// Products of narrow values by warpgroups (sparse/tca_bme/quantized/cuda/*_wgmma_product.cuh).
TEST(TcaBmeRecordPlanner, WarpgroupsTakeNarrowValues) {
  struct Kind {
    RecordElements elements;
    int chunk_offsets;
    int64_t max_record;
  };
  constexpr Kind kKinds[] = {
      {RecordElements::i8, 8, 9'984},
      {RecordElements::i8, 16, 9'984},
      {RecordElements::f8, 16, 9'984},
      {RecordElements::i4, 8, 5'888},
  };
  constexpr int64_t kMaxColumns = 30'000;
  Random random(213);
  for (int i = 0; i < 4'000; ++i) {
    const Kind& kind = kKinds[static_cast<size_t>(i) % std::size(kKinds)];
    const auto largest = static_cast<uint32_t>(1 + random.below(kind.max_record / 16)) * 16;
    RecordMatrix matrix{.rows = 1 + random.below(i % 5 == 0 ? 64 : 30'000),
                        .columns = 1 + random.below(kMaxColumns),
                        .chunks = 8,
                        .elements = kind.elements,
                        .chunk_offsets = kind.chunk_offsets,
                        .group = kind.elements == RecordElements::i4 ? 128 : 0,
                        .largest_record = largest,
                        .common_record = i % 3 == 0 ? largest / 2 : largest,
                        .clusters = kHopper[static_cast<size_t>(i) % std::size(kHopper)]};
    for (const int64_t tokens : {9, 16, 17, 64, 200, 256, 257, 1'024, 1'025}) {
      SCOPED_TRACE(fmt::format("{} x {}, {} tokens, records of {} and {} bytes", matrix.rows,
                               matrix.columns, tokens, matrix.common_record,
                               matrix.largest_record));
      const std::vector<RecordWgmmaConfig> configs = record_wgmma_candidates(matrix, tokens);
      ASSERT_EQ(configs.empty(), tokens > tca_bme::kMaxUnitTokens);
      if (tokens < tca_bme::kMinWgmmaTokens && kind.elements != RecordElements::i8) {
        continue;  // wgmma_configs_for() asks for none
      }
      const int64_t workspace = tca_bme::records_workspace_bytes(matrix, tokens, Sums::fastest);
      for (const RecordWgmmaConfig& config : configs) {
        ASSERT_TRUE(record_wgmma_fits(matrix, config));
        ASSERT_FALSE(config.stream_k);
        ASSERT_LE(record_wgmma_workspace_bytes(matrix, config, tokens), workspace);
      }
      if (!configs.empty()) {
        ASSERT_NO_FATAL_FAILURE(check_text(configs.front(), matrix, tokens));
      }
    }
    matrix.clusters = {};
    ASSERT_TRUE(record_wgmma_candidates(matrix, 32).empty());
  }
}

}  // namespace
}  // namespace sparsellm
