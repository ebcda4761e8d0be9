#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/block_shape.h"
#include "sparse/prune/prune.h"
#include "tests/testing/compare.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::GuardedTensor;
using testing::Layout;
using testing::Random;
using testing::same_bits;
using testing::set_values;
using testing::throws_error;
using testing::values_of;
using Kind = PruneMethod::Kind;

constexpr uint64_t kSeed = 20241130;

PruneSettings by_blocks(Kind kind, double sparsity, BlockShape block,
                        PruneScope scope = PruneScope::row) {
  return {.method = {.kind = kind},
          .scope = scope,
          .sparsity = sparsity,
          .seed = 5,
          .block = block,
          .norms = {}};
}

struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;

  double& at(int64_t row, int64_t column) {
    return values[static_cast<size_t>(row * columns + column)];
  }
};

std::vector<double> pruned(const Matrix& w, DType dtype, const PruneSettings& settings,
                           int threads = 1, Layout layout = Layout::contiguous) {
  const GuardedTensor tensor(dtype, {w.rows, w.columns}, layout);
  set_values(tensor.view(), w.values);
  ThreadPool pool(threads);
  prune(tensor.view(), settings, pool);
  EXPECT_TRUE(tensor.guards_intact());
  return values_of(tensor.view());
}

// Small whole numbers, which all dtypes hold, with ties and a third of them zero.
Matrix tied_matrix(int64_t rows, int64_t columns, Random& random) {
  Matrix w{.rows = rows, .columns = columns, .values = {}};
  for (int64_t i = 0; i < rows * columns; ++i) {
    const double magnitude = random.below(3) == 0 ? 0.0 : static_cast<double>(random.below(16));
    w.values.push_back(random.below(2) == 0 ? magnitude : -magnitude);
  }
  return w;
}

// Sorts the blocks of a range of rows of blocks, and sets the first of them to zero.
void prune_naively(Matrix& w, const BlockShape& block, int64_t first, int64_t end,
                   double sparsity) {
  struct Block {
    double score = 0.0;
    int64_t row = 0;
    int64_t column = 0;
  };
  std::vector<Block> blocks;
  for (int64_t row = first; row < end; row += block.rows) {
    for (int64_t column = 0; column < w.columns; column += block.columns) {
      double sum = 0.0;
      int64_t count = 0;
      for (int64_t r = row; r < std::min(row + block.rows, w.rows); ++r) {
        for (int64_t c = column; c < std::min(column + block.columns, w.columns); ++c) {
          sum += std::fabs(w.at(r, c));
          ++count;
        }
      }
      // As it is rounded: means that are equal in f32 are a tie.
      const auto score = static_cast<float>(sum / static_cast<double>(count));
      blocks.push_back({.score = static_cast<double>(score), .row = row, .column = column});
    }
  }
  std::ranges::stable_sort(blocks, {}, &Block::score);
  blocks.resize(static_cast<size_t>(std::llround(sparsity * static_cast<double>(blocks.size()))));
  for (const Block& chosen : blocks) {
    for (int64_t r = chosen.row; r < std::min(chosen.row + block.rows, w.rows); ++r) {
      for (int64_t c = chosen.column; c < std::min(chosen.column + block.columns, w.columns); ++c) {
        w.at(r, c) = 0.0;
      }
    }
  }
}

std::vector<double> naively(Matrix w, const BlockShape& block, double sparsity, PruneScope scope) {
  const int64_t step = scope == PruneScope::matrix ? w.rows : block.rows;
  for (int64_t row = 0; row < w.rows; row += step) {
    prune_naively(w, block, row, std::min(row + step, w.rows), sparsity);
  }
  return w.values;
}

TEST(PruneBlocks, LowestMeansBecomeZero) {
  Random random(kSeed);
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {64, 64}, {127, 65}, {500, 1}, {8, 3000}}) {
      const Matrix w = tied_matrix(rows, columns, random);
      for (const BlockShape& block :
           {BlockShape{1, 4}, BlockShape{4, 1}, BlockShape{4, 8}, BlockShape{1024, 1024}}) {
        for (const double sparsity : {0.0, 0.37, 0.5, 0.95, 1.0}) {
          for (const PruneScope scope : {PruneScope::row, PruneScope::matrix}) {
            SCOPED_TRACE(fmt::format("{} {}x{}, {} of {} by {}", name_of(dtype), rows, columns,
                                     sparsity, to_string(block), name_of(scope)));
            const PruneSettings settings = by_blocks(Kind::magnitude, sparsity, block, scope);
            const std::vector<double> found = pruned(w, dtype, settings);
            EXPECT_EQ(found, naively(w, block, sparsity, scope));
            EXPECT_EQ(pruned(w, dtype, settings, 3, Layout::strided), found);
          }
        }
      }
    }
  }
}

TEST(PruneBlocks, RandomOnesAreWholeAndAsManyAsWanted) {
  const Matrix ones{.rows = 50, .columns = 203, .values = std::vector<double>(50 * 203, 1.0)};
  const BlockShape block{4, 8};
  for (const PruneScope scope : {PruneScope::row, PruneScope::matrix}) {
    PruneSettings settings = by_blocks(Kind::random, 0.7, block, scope);
    Matrix found = ones;
    found.values = pruned(ones, DType::f16, settings);
    int64_t zeros = 0;
    int64_t blocks = 0;
    for (int64_t row = 0; row < found.rows; ++row) {
      for (int64_t column = 0; column < found.columns; ++column) {
        const double first = found.at(row / 4 * 4, column / 8 * 8);
        ASSERT_EQ(found.at(row, column), first) << row << ", " << column;
        zeros += row % 4 == 0 && column % 8 == 0 && first == 0.0 ? 1 : 0;
        blocks += row % 4 == 0 && column % 8 == 0 ? 1 : 0;
      }
    }
    const int64_t across = (203 + 7) / 8;
    EXPECT_EQ(zeros, scope == PruneScope::matrix ? std::llround(0.7 * static_cast<double>(blocks))
                                                 : 13 * std::llround(0.7 * across));
    settings.seed = 6;
    EXPECT_NE(pruned(ones, DType::f16, settings), found.values);
  }
}

// Of blocks that are zero already the share counts.
TEST(PruneBlocks, ZerosThatAreThereCount) {
  Matrix w{.rows = 4, .columns = 16, .values = std::vector<double>(64, 1.0)};
  for (int64_t row = 0; row < 4; ++row) {
    std::fill_n(&w.at(row, 4), 4, 0.0);
  }
  for (const Kind kind : {Kind::magnitude, Kind::random}) {
    EXPECT_EQ(pruned(w, DType::f32, by_blocks(kind, 0.25, {4, 4})), w.values);
  }
}

// Neither a mean that is too small for f32 nor an infinite one loses its block.
TEST(PruneBlocks, ExtremeMeans) {
  const double least = std::numeric_limits<float>::denorm_min();
  const double infinity = std::numeric_limits<double>::infinity();
  const double large = std::numeric_limits<float>::max();
  const Matrix w{.rows = 1, .columns = 8, .values = {0, 0, least, 0, infinity, 1, large, large}};
  EXPECT_EQ(pruned(w, DType::f32, by_blocks(Kind::magnitude, 0.25, {1, 2})), w.values);
  EXPECT_EQ(pruned(w, DType::f32, by_blocks(Kind::magnitude, 0.75, {1, 2})),
            (std::vector<double>{0, 0, 0, 0, infinity, 1, 0, 0}));
}

TEST(PruneBlocks, NanIsAnErrorAndChangesNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Kind kind : {Kind::magnitude, Kind::random}) {
    const GuardedTensor w(DType::f16, {2, 4});
    set_values(w.view(), std::vector<double>{1, 2, 3, 4, 5, 6, nan, 8});
    const GuardedTensor before(DType::f16, {2, 4});
    set_values(before.view(), values_of(w.view()));
    ThreadPool pool(1);
    EXPECT_TRUE(throws_error(
        [&] {
          prune(w.view(), by_blocks(kind, 0.5, {2, 2}), pool);
        },
        "row 1, column 2 is NaN"));
    EXPECT_TRUE(same_bits(w.view(), before.view()));
  }
}

TEST(PruneBlocks, WrongSettings) {
  const Matrix w{.rows = 2, .columns = 2, .values = {1, 2, 3, 4}};
  const auto refused = [&](const PruneSettings& settings, const char* why) {
    return throws_error([&] { pruned(w, DType::f16, settings); }, why);
  };
  for (const BlockShape& block : {BlockShape{0, 4}, BlockShape{4, -1}, BlockShape{1, 1025}}) {
    EXPECT_TRUE(refused(by_blocks(Kind::magnitude, 0.5, block), "expected RxC with R and C from"));
  }
  EXPECT_TRUE(refused(by_blocks(Kind::wanda, 0.5, {2, 2}), "wanda pruning chooses elements"));
  PruneSettings groups = by_blocks(Kind::n_m, 0.0, {2, 2});
  groups.method = parse_prune_method("2:4");
  EXPECT_TRUE(refused(groups, "2:4 pruning chooses elements, not blocks"));
}

TEST(PruneBlocks, AreNamed) {
  EXPECT_EQ(describe_pruning(by_blocks(Kind::magnitude, 0.5, {4, 8})), "magnitude of 4x8 blocks");
  EXPECT_EQ(describe_pruning(by_blocks(Kind::random, 0.5, {})), "random");
}

TEST(BlockShape, IsParsed) {
  for (const char* text : {"1x1", "4x8", "1024x1024", "1x1024"}) {
    const std::optional<BlockShape> block = parse_block_shape(text);
    ASSERT_TRUE(block.has_value()) << text;
    EXPECT_EQ(to_string(*block), text);
  }
  for (const char* text : {"", "4", "x", "4x", "x4", "0x4", "4x0", "-4x4", "4x1025", "4x4x4", "4X4",
                           " 4x4", "4x4 ", "4.0x4", "+4x4", "99999999999999999999x4"}) {
    EXPECT_EQ(parse_block_shape(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace sparsellm
