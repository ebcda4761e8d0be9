#include "sparse/matrices/row_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/sparse/weight_patterns.h"
#include "tests/testing/tensor_values.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr uint64_t kSeed = 3102;

// By what the header says, of the dense matrix.
RowStatistics naive(const Tensor& w) {
  const std::vector<double> values = values_of(w);
  const int64_t rows = w.size(0);
  const int64_t columns = w.size(1);
  const auto nonzero = [&](int64_t row, int64_t column) {
    return row < rows && values[static_cast<size_t>(row * columns + column)] != 0.0;
  };
  RowStatistics s;
  std::vector<double> lengths;
  int64_t gaps = 0;
  double gap_sum = 0.0;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t length = 0;
    int64_t previous = -1;
    for (int64_t column = 0; column < columns; ++column) {
      if (nonzero(row, column)) {
        ++length;
        if (previous >= 0) {
          ++gaps;
          gap_sum += static_cast<double>(column - previous);
        }
        int64_t& bridges = previous < 0 ? s.first_bridges : s.bridges;
        for (; column - previous > 255; previous += 255) {
          ++bridges;
        }
        previous = column;
      }
    }
    s.nonzeros += length;
    lengths.push_back(static_cast<double>(length));
  }
  const auto count = static_cast<double>(s.nonzeros);
  s.mean_length = count / static_cast<double>(rows);
  for (const double length : lengths) {
    s.length_deviation += (length - s.mean_length) * (length - s.mean_length);
  }
  s.length_deviation = std::sqrt(s.length_deviation / static_cast<double>(rows));
  s.mean_gap = gaps == 0 ? 0.0 : gap_sum / static_cast<double>(gaps);
  for (RowStatistics::SharedPositions& shared : s.shared) {
    for (int64_t row = 0; row < rows; row += shared.rows) {
      for (int64_t column = 0; column < columns; ++column) {
        int64_t inside = 0;
        for (int64_t i = 0; i < shared.rows; ++i) {
          inside += nonzero(row + i, column) ? 1 : 0;
        }
        shared.blocks += inside > 0 ? 1 : 0;
      }
    }
  }
  return s;
}

void expect_near(const RowStatistics& got, const RowStatistics& expected) {
  constexpr double kRounding = 1e-9;
  EXPECT_EQ(got.nonzeros, expected.nonzeros);
  EXPECT_NEAR(got.mean_length, expected.mean_length, kRounding);
  EXPECT_NEAR(got.length_deviation, expected.length_deviation, kRounding);
  for (size_t i = 0; i < got.shared.size(); ++i) {
    EXPECT_EQ(got.shared[i].rows, int64_t{2} << i);
    EXPECT_EQ(got.shared[i].blocks, expected.shared[i].blocks);
  }
  EXPECT_NEAR(got.mean_gap, expected.mean_gap, kRounding);
  EXPECT_EQ(got.bridges, expected.bridges);
  EXPECT_EQ(got.first_bridges, expected.first_bridges);
}

TEST(RowStatistics, AreThoseOfTheDenseMatrix) {
  ThreadPool one(1);
  for (const auto& [rows, columns] :
       {std::pair{1, 1}, {1, 2000}, {9, 700}, {8, 64}, {67, 131}, {1000, 3}}) {
    for (const Pattern pattern : {Pattern::random, Pattern::one_row, Pattern::one_column}) {
      for (const double density : {0.002, 0.1, 0.7, 1.0}) {
        SCOPED_TRACE(fmt::format("[{}, {}], density {}, {}, seed {}", rows, columns, density,
                                 name_of(pattern), kSeed));
        const OwnedTensor w = make_weight({.dtype = DType::f16,
                                           .rows = rows,
                                           .columns = columns,
                                           .density = density,
                                           .pattern = pattern},
                                          kSeed);
        const CompressedRows m = compress_rows(w.view, one);
        if (m.nonzeros() == 0) {
          continue;
        }
        const RowStatistics s = row_statistics(m, one);
        expect_near(s, naive(w.view));
        ThreadPool threads(4);
        const RowStatistics again = row_statistics(m, threads);
        EXPECT_EQ(again.length_deviation, s.length_deviation);
        EXPECT_EQ(again.shared[2].blocks, s.shared[2].blocks);
        EXPECT_EQ(again.mean_gap, s.mean_gap);
      }
    }
  }
}

TEST(RowStatistics, OfBlocksOfRows) {
  ThreadPool threads(2);
  // Rows 0-3 share columns 0 and 300, row 5 has column 299, rows 8-12 share column 7.
  CompressedRows m(DType::f32, 13, 1000, 14);
  std::ranges::copy(std::vector{0, 2, 4, 6, 8, 8, 9, 9, 9, 10, 11, 12, 13, 14}, m.starts().begin());
  std::ranges::copy(std::vector{0, 300, 0, 300, 0, 300, 0, 300, 299, 7, 7, 7, 7, 7},
                    m.column_indices().begin());
  std::ranges::fill(m.values<float>(), 1.0f);
  const RowStatistics s = row_statistics(m, threads);
  EXPECT_EQ(s.shared[0].blocks, 8);
  EXPECT_EQ(s.shared[1].blocks, 5);
  EXPECT_EQ(s.shared[2].blocks, 4);
  EXPECT_DOUBLE_EQ(s.mean_gap, 300.0);
  EXPECT_EQ(s.bridges, 4);
  EXPECT_EQ(s.first_bridges, 1);
}

TEST(RowStatistics, WithoutNonzeros) {
  ThreadPool threads(1);
  for (const int64_t rows : {0, 5}) {
    CompressedRows m(DType::bf16, rows, 7, 0);
    std::ranges::fill(m.starts(), 0);
    const RowStatistics s = row_statistics(m, threads);
    EXPECT_EQ(s.nonzeros, 0);
    EXPECT_EQ(s.mean_length, 0.0);
    EXPECT_EQ(s.shared[1].blocks, 0);
    EXPECT_EQ(s.mean_gap, 0.0);
  }
}

}  // namespace
}  // namespace sparsellm
