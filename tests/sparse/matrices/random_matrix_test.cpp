#include "sparse/matrices/random_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/matrices/row_statistics.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr uint64_t kSeed = 3104;

CompressedRows make(const RandomMatrix& what) {
  ThreadPool threads(2);
  CompressedRows m = random_matrix(what, threads);
  validate(m, threads);
  EXPECT_EQ(m.rows(), what.rows);
  EXPECT_EQ(m.columns(), what.columns);
  EXPECT_TRUE(std::ranges::all_of(
      m.values<float>(), [](float value) { return value != 0.0f && std::abs(value) < 1.0f; }));
  return m;
}

RowStatistics statistics_of(const CompressedRows& m) {
  ThreadPool threads(2);
  return row_statistics(m, threads);
}

// FNV-1a of all that a matrix is.
uint64_t hash_of(const CompressedRows& m) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](uint64_t word) { hash = (hash ^ word) * 0x100000001b3u; };
  std::ranges::for_each(m.starts(), add);
  std::ranges::for_each(m.column_indices(), add);
  for (const float value : m.values<float>()) {
    add(std::bit_cast<uint32_t>(value));
  }
  return hash;
}

// How many nonzeros each row has.
std::vector<int64_t> row_lengths(const CompressedRows& m) {
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < m.rows(); ++row) {
    lengths.push_back(std::ssize(m.columns_of(row)));
  }
  return lengths;
}

// How many nonzeros each column has.
std::vector<int64_t> column_counts(const CompressedRows& m) {
  std::vector<int64_t> counts(static_cast<size_t>(m.columns()));
  for (const uint32_t column : m.column_indices()) {
    ++counts[column];
  }
  return counts;
}

TEST(RandomMatrix, HasAboutAsManyNonzeros) {
  for (const MatrixClass matrix_class : kMatrixClasses) {
    for (const auto& [rows, columns, nonzeros] : {std::array{1000, 1000, 5000},
                                                  {2000, 2000, 100000},
                                                  {300, 300, 60000},
                                                  {500, 3000, 30000},
                                                  {3000, 500, 30000}}) {
      if (matrix_class == MatrixClass::stencil && rows != columns) {
        continue;
      }
      SCOPED_TRACE(fmt::format("{} [{}, {}], {} nonzeros, seed {}", name_of(matrix_class), rows,
                               columns, nonzeros, kSeed));
      const CompressedRows m = make({.matrix_class = matrix_class,
                                     .rows = rows,
                                     .columns = columns,
                                     .nonzeros = nonzeros,
                                     .seed = kSeed});
      if (matrix_class == MatrixClass::stencil) {
        EXPECT_LE(m.nonzeros(), int64_t{27} * rows);
        EXPECT_GE(m.nonzeros(), int64_t{4} * rows);
      } else if (matrix_class == MatrixClass::arrow) {
        EXPECT_NEAR(m.nonzeros(), nonzeros, 0.5 * (rows + columns));
      } else {
        EXPECT_NEAR(m.nonzeros(), nonzeros, 0.05 * nonzeros);
      }
    }
  }
}

TEST(RandomMatrix, OfAnySize) {
  for (const MatrixClass matrix_class : kMatrixClasses) {
    for (const auto& [rows, columns] :
         {std::pair{1, 1}, {1, 200}, {200, 1}, {2, 2}, {3, 65}, {64, 64}, {7, 7}, {130, 17}}) {
      if (matrix_class == MatrixClass::stencil && rows != columns) {
        continue;
      }
      for (const int64_t nonzeros :
           {int64_t{0}, int64_t{1}, int64_t{rows}, int64_t{rows * columns / 2},
            int64_t{rows * columns - 1}, int64_t{rows * columns}}) {
        for (const double band_density : {0.1, 1.0}) {
          SCOPED_TRACE(fmt::format("{} [{}, {}], {} nonzeros", name_of(matrix_class), rows, columns,
                                   nonzeros));
          const CompressedRows m = make({.matrix_class = matrix_class,
                                         .rows = rows,
                                         .columns = columns,
                                         .nonzeros = nonzeros,
                                         .seed = kSeed,
                                         .band_density = band_density,
                                         .block_rows = std::min(rows, 4),
                                         .block_columns = std::min(columns, 2)});
          if (nonzeros == 0 || nonzeros >= rows) {  // fewer are rounded
            EXPECT_EQ(m.nonzeros() == 0, nonzeros == 0);
          }
        }
      }
    }
    const RandomMatrix empty{.matrix_class = matrix_class, .block_rows = 1, .block_columns = 1};
    if (matrix_class != MatrixClass::blocks) {
      EXPECT_EQ(make(empty).nonzeros(), 0);
    }
  }
}

// A change of these changes what was measured with older versions.
TEST(RandomMatrix, HasTheSameBitsEverywhere) {
  struct Case {
    MatrixClass matrix_class;
    uint64_t hash;
  };
  for (const auto& [matrix_class, hash] : {Case{MatrixClass::banded, 0x7a638af38dcc9abdu},
                                           Case{MatrixClass::stencil, 0x1d310f7731c7ff16u},
                                           Case{MatrixClass::power_law, 0x7af924062d44d9abu},
                                           Case{MatrixClass::blocks, 0xbbfe234ca7e6fdadu},
                                           Case{MatrixClass::uniform, 0xfcc6e203592d233au},
                                           Case{MatrixClass::skewed, 0x3933526bea42c7a1u},
                                           Case{MatrixClass::arrow, 0x2f4e30207e5bce9cu},
                                           Case{MatrixClass::empty_rows, 0xe8f8915e85374195u}}) {
    RandomMatrix what{.matrix_class = matrix_class,
                      .rows = 1001,
                      .columns = 1001,
                      .nonzeros = 12345,
                      .seed = kSeed};
    for (const int count : {1, 3, 8}) {
      ThreadPool threads(count);
      EXPECT_EQ(hash_of(random_matrix(what, threads)), hash) << name_of(matrix_class);
    }
    ++what.seed;
    EXPECT_NE(hash_of(make(what)), hash) << name_of(matrix_class);
  }
}

TEST(RandomMatrix, BandsAreNearTheDiagonal) {
  const CompressedRows m = make({.matrix_class = MatrixClass::banded,
                                 .rows = 1000,
                                 .columns = 2000,
                                 .nonzeros = 10000,
                                 .seed = kSeed,
                                 .band_density = 0.25});
  bool reaches_far = false;
  for (int64_t row = 0; row < m.rows(); ++row) {
    ASSERT_EQ(m.columns_of(row).size(), 10u);
    const int64_t begin = std::clamp<int64_t>(2 * row - 20, 0, 1960);
    EXPECT_GE(m.columns_of(row).front(), begin);
    EXPECT_LT(m.columns_of(row).back(), begin + 40);
    reaches_far |= m.columns_of(row).back() == begin + 39;
  }
  EXPECT_TRUE(reaches_far);
}

TEST(RandomMatrix, StencilsAreNeighbours) {
  struct Case {
    int64_t nonzeros_of_row;
    size_t points;
    std::vector<int64_t> offsets;  // of a point inside
  };
  constexpr int64_t kRows = 1000;  // 32 x 31.25, or 10 x 10 x 10
  for (const auto& [of_row, points, offsets] :
       {Case{3, 5, {-32, -1, 0, 1, 32}}, Case{7, 7, {-100, -10, -1, 0, 1, 10, 100}},
        Case{9, 9, {-33, -32, -31, -1, 0, 1, 31, 32, 33}}, Case{40, 27, {}}}) {
    const CompressedRows m = make({.matrix_class = MatrixClass::stencil,
                                   .rows = kRows,
                                   .columns = kRows,
                                   .nonzeros = of_row * kRows,
                                   .seed = kSeed});
    std::set<std::pair<int64_t, int64_t>> places;
    for (int64_t row = 0; row < kRows; ++row) {
      for (const int64_t column : m.columns_of(row)) {
        places.insert({row, column});
      }
    }
    for (const auto& [row, column] : places) {
      EXPECT_TRUE(places.contains({column, row})) << row << " " << column;
    }
    const int64_t inside = 445;
    EXPECT_EQ(m.columns_of(inside).size(), points);
    for (const int64_t offset : offsets) {
      EXPECT_TRUE(places.contains({inside, inside + offset})) << points << ": " << offset;
    }
    EXPECT_EQ(std::ranges::max(row_lengths(m)), static_cast<int64_t>(points));
    // At a corner half of the neighbours of each axis are missing.
    EXPECT_EQ(m.columns_of(0).size(), points == 5 ? 3u : points == 7 ? 4u : points == 9 ? 4u : 8u);
  }
}

TEST(RandomMatrix, PowerLawsHaveFewLongRowsAndColumns) {
  const CompressedRows m = make({.matrix_class = MatrixClass::power_law,
                                 .rows = 20000,
                                 .columns = 10000,
                                 .nonzeros = 50000,
                                 .seed = kSeed});
  std::vector<int64_t> lengths = row_lengths(m);
  std::ranges::sort(lengths, std::greater());
  // 1 / n of the longest.
  for (const size_t n : {2, 5, 20, 100}) {
    EXPECT_NEAR(static_cast<double>(lengths[n - 1]),
                static_cast<double>(lengths[0]) / static_cast<double>(n), 1.5);
  }
  EXPECT_GT(lengths[0], 3000);
  std::vector<int64_t> counts = column_counts(m);
  const int64_t largest = std::max_element(counts.begin(), counts.end()) - counts.begin();
  EXPECT_GT(largest, 0);
  std::ranges::sort(counts, std::greater());
  EXPECT_GT(counts[0], 20 * counts[500]);
}

TEST(RandomMatrix, LongRowsOfPowerLawsAreFilled) {
  const CompressedRows m = make({.matrix_class = MatrixClass::power_law,
                                 .rows = 100,
                                 .columns = 1000,
                                 .nonzeros = 40000,
                                 .seed = kSeed});
  EXPECT_EQ(std::ranges::max(row_lengths(m)), 1000);
  EXPECT_NEAR(m.nonzeros(), 40000, 400);
}

TEST(RandomMatrix, BlocksAreDense) {
  for (const auto& [block_rows, block_columns] : {std::pair{8, 8}, {4, 4}, {2, 16}, {1, 1}}) {
    const CompressedRows m = make({.matrix_class = MatrixClass::blocks,
                                   .rows = 800,
                                   .columns = 803,  // of which the last 3 are left over
                                   .nonzeros = 64000,
                                   .seed = kSeed,
                                   .block_rows = block_rows,
                                   .block_columns = block_columns});
    const RowStatistics s = statistics_of(m);
    for (const RowStatistics::SharedPositions& shared : s.shared) {
      if (block_rows % shared.rows == 0) {
        EXPECT_EQ(shared.blocks * shared.rows, m.nonzeros());
      }
    }
    for (int64_t row = 0; row < m.rows(); ++row) {
      const std::span<const uint32_t> columns = m.columns_of(row);
      for (size_t i = 0; i < columns.size(); ++i) {
        const size_t in_block = i % static_cast<size_t>(block_columns);
        EXPECT_EQ(columns[i], columns[i - in_block] + in_block);
        EXPECT_EQ(columns[i - in_block] % static_cast<uint32_t>(block_columns), 0u);
      }
    }
  }
}

// The rows' lengths and the columns' are those of nonzeros that are anywhere.
TEST(RandomMatrix, UniformOnesAreEven) {
  const CompressedRows m = make({.matrix_class = MatrixClass::uniform,
                                 .rows = 1000,
                                 .columns = 5000,
                                 .nonzeros = 100000,
                                 .seed = kSeed});
  const RowStatistics s = statistics_of(m);
  EXPECT_NEAR(s.length_deviation, 10.0, 1.0);  // Poisson's of a mean of 100
  EXPECT_NEAR(s.mean_gap, 50.0, 2.0);
  double squares = 0.0;
  for (const int64_t count : column_counts(m)) {
    squares += (static_cast<double>(count) - 20.0) * (static_cast<double>(count) - 20.0);
  }
  EXPECT_NEAR(squares / 5000.0, 20.0, 2.0);
}

TEST(RandomMatrix, SkewedRowsAreLogNormal) {
  for (const double deviation : {0.0, 0.5, 1.0}) {
    const CompressedRows m = make({.matrix_class = MatrixClass::skewed,
                                   .rows = 4000,
                                   .columns = 1000000,
                                   .nonzeros = 400000,
                                   .seed = kSeed,
                                   .length_deviation = deviation});
    double sum = 0.0;
    double squares = 0.0;
    for (int64_t row = 0; row < m.rows(); ++row) {
      const double length = std::log(static_cast<double>(m.columns_of(row).size()));
      sum += length;
      squares += length * length;
    }
    const double mean = sum / 4000.0;
    EXPECT_NEAR(std::sqrt(std::max(squares / 4000.0 - mean * mean, 0.0)), deviation, 0.05)
        << deviation;
    EXPECT_NEAR(m.nonzeros(), 400000, 4000);
  }
}

TEST(RandomMatrix, ArrowsPointUpAndLeft) {
  const CompressedRows m = make({.matrix_class = MatrixClass::arrow,
                                 .rows = 500,
                                 .columns = 400,
                                 .nonzeros = 3100,
                                 .seed = kSeed});
  for (int64_t row = 0; row < 500; ++row) {
    const std::span<const uint32_t> columns = m.columns_of(row);
    ASSERT_EQ(columns.size(), row < 3 ? 400u : row < 400 ? 4u : 3u) << row;
    EXPECT_EQ(columns[2], 2u);
    EXPECT_EQ(columns.back(), row < 3 ? 399 : row < 400 ? row : 2);
  }
}

TEST(RandomMatrix, MostRowsAreEmpty) {
  for (const double share : {0.0, 0.5, 0.9, 0.999}) {
    const CompressedRows m = make({.matrix_class = MatrixClass::empty_rows,
                                   .rows = 10000,
                                   .columns = 10000,
                                   .nonzeros = 100000,
                                   .seed = kSeed,
                                   .empty_rows = share});
    EXPECT_NEAR(static_cast<double>(std::ranges::count(row_lengths(m), 0)), share * 10000.0, 5.0)
        << share;
  }
  const CompressedRows full = make({.matrix_class = MatrixClass::empty_rows,
                                    .rows = 100,
                                    .columns = 10,
                                    .nonzeros = 500,
                                    .seed = kSeed,
                                    .empty_rows = 0.9});
  EXPECT_LE(std::ranges::count(row_lengths(full), 0), 50);
}

// And not after the lengths of its rows are drawn, which here would take days.
TEST(RandomMatrix, TooLargeIsRefusedAtOnce) {
  ThreadPool threads(1);
  constexpr int64_t kColumns = int64_t{1} << 30;
  for (const MatrixClass matrix_class : kMatrixClasses) {
    if (matrix_class != MatrixClass::stencil) {  // of which no row is long
      SCOPED_TRACE(name_of(matrix_class));
      EXPECT_THROW(random_matrix({.matrix_class = matrix_class,
                                  .rows = 1 << 20,
                                  .columns = kColumns,
                                  .nonzeros = int64_t{1} << 49,
                                  .seed = kSeed},
                                 threads),
                   OutOfMemory);
    }
  }
  EXPECT_THROW(random_matrix({.matrix_class = MatrixClass::blocks,
                              .rows = kColumns,
                              .columns = kColumns,
                              .nonzeros = 1,
                              .block_rows = kColumns,
                              .block_columns = 1 << 19},
                             threads),
               OutOfMemory);
}

TEST(RandomMatrix, WrongArguments) {
  ThreadPool threads(1);
  const auto error = [&](RandomMatrix what, std::string_view part) {
    EXPECT_TRUE(throws_error([&] { random_matrix(what, threads); }, part));
  };
  const RandomMatrix good{.rows = 10, .columns = 10, .nonzeros = 10};
  RandomMatrix what = good;
  what.rows = -1;
  error(what, "a random matrix -1 x 10");
  what = good;
  what.columns = int64_t{1} << 31;
  error(what, "a random matrix 10 x 2147483648; at most 2147483647 are possible");
  what = good;
  what.nonzeros = 101;
  error(what, "a random matrix 10 x 10 with 101 nonzeros");
  what.nonzeros = -1;
  error(what, "with -1 nonzeros");
  what = good;
  what.matrix_class = MatrixClass::stencil;
  what.columns = 11;
  error(what, "a stencil is a square matrix, not 10 x 11");
  what = good;
  what.matrix_class = MatrixClass::blocks;
  what.block_rows = 11;
  error(what, "blocks of 11 x 8 in a matrix 10 x 10");
  what.block_rows = 0;
  error(what, "blocks of 0 x 8");
  what.block_rows = 1;
  what.block_columns = 11;
  error(what, "blocks of 1 x 11");
  for (const double density : {0.0, -1.0, 1.1, std::nan("")}) {
    what = good;
    what.band_density = density;
    error(what, "of a band is not in (0, 1]");
  }
  for (const double deviation : {-0.1, 8.1, std::nan("")}) {
    what = good;
    what.length_deviation = deviation;
    error(what, "of the lengths of rows is not in [0, 8]");
  }
  for (const double share : {-0.1, 1.0, std::nan("")}) {
    what = good;
    what.empty_rows = share;
    error(what, "of empty rows is not in [0, 1)");
  }
}

}  // namespace
}  // namespace sparsellm
