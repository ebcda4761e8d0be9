// What of a matrix a search looks at.

#include "sparse/general_sparse/search/matrix_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/layout_rule.h"
#include "sparse/matrices/random_matrix.h"
#include "tests/sparse/general_sparse/plan_matrices.h"

namespace sparsellm {
namespace {

using namespace general_sparse;
using namespace sparsellm::testing;

std::vector<uint32_t> lengths_of(std::span<const uint32_t> starts) {
  std::vector<uint32_t> lengths;
  for (size_t row = 0; row + 1 < starts.size(); ++row) {
    lengths.push_back(starts[row + 1] - starts[row]);
  }
  return lengths;
}

// In units, as if each row of the sample were `scale` rows.
double units_of(const MatrixSample& sample) {
  double units = 0.0;
  for (const RowSample& rows : {sample.usual, sample.longest}) {
    units += rows.starts.back() * rows.scale;
  }
  return units;
}

class MatrixSampleTest : public ::testing::Test {
 protected:
  EncodedWeight encoded(const CompressedRows& m) {
    return encode(m, choose_row_layout(m, row_statistics(m, threads_)), threads_);
  }

  ThreadPool threads_{2};
};

TEST_F(MatrixSampleTest, SmallMatricesAreAllThere) {
  for (const PlanMatrixCase& matrix : plan_matrices()) {
    SCOPED_TRACE(matrix.name);
    const EncodedWeight e = encoded(matrix.m);
    const Parts parts(e);
    const MatrixSample sample = sample_of(matrix.m, threads_);
    EXPECT_EQ(sample.dtype, DType::f32);
    EXPECT_EQ(sample.rows, std::ssize(parts.starts) - 1);
    EXPECT_EQ(sample.rows, ceil_div(matrix.m.rows(), sample.layout.shared_rows));
    EXPECT_EQ(sample.columns, matrix.m.columns());
    EXPECT_EQ(sample.entries, int64_t{parts.starts.back()} * parts.layout.vector);
    EXPECT_GE(sample.entries * sample.layout.shared_rows, matrix.m.nonzeros());
    Layout layout = parts.layout;
    layout.sorted = false;
    EXPECT_EQ(sample.layout, layout);
    EXPECT_EQ(sample.usual.scale, 1.0);
    EXPECT_EQ(sample.longest.scale, 1.0);
    EXPECT_EQ(sample.empty_rows, std::ranges::count(lengths_of(parts.starts), 0u));
    // Each row is in one of the two, in the order of the encoding.
    const std::vector<uint32_t> usual = lengths_of(sample.usual.starts);
    const std::vector<uint32_t> longest = lengths_of(sample.longest.starts);
    size_t next_usual = 0;
    size_t next_long = 0;
    for (const uint32_t length : lengths_of(parts.starts)) {
      if (next_long < longest.size() && longest[next_long] == length) {
        ++next_long;
      } else {
        ASSERT_LT(next_usual, usual.size());
        EXPECT_EQ(usual[next_usual++], length);
      }
    }
    EXPECT_EQ(next_usual, usual.size());
    EXPECT_EQ(next_long, longest.size());
    for (const RowSample& rows : {sample.usual, sample.longest}) {
      const EncodedRows view = sample.view(rows);
      EXPECT_EQ(view.grid.groups(), std::ssize(rows.starts) - 1);
      EXPECT_EQ(view.grid.panels(), 1);
      EXPECT_TRUE(view.row_order.empty());
    }
    EXPECT_GT(sample.distinct_columns, 0.0);
    EXPECT_LE(sample.distinct_columns, 1.0);
    EXPECT_GT(sample.distinct_sectors, 0.0);
    EXPECT_LE(sample.distinct_sectors, sample.distinct_columns);
  }
}

TEST_F(MatrixSampleTest, AHugeRowIsByItself) {
  std::vector<int64_t> lengths(100, 5);
  lengths[30] = 900;
  const MatrixSample sample = sample_of(matrix_of_lengths(lengths, 1000, 1), threads_);
  const int vector = sample.layout.vector;
  EXPECT_EQ(lengths_of(sample.longest.starts),
            std::vector<uint32_t>{static_cast<uint32_t>(ceil_div(900, vector))});
  EXPECT_EQ(sample.usual.starts.size(), 100u);
}

TEST_F(MatrixSampleTest, WithoutRowsOrNonzeros) {
  for (const auto& [rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {0, 10}, {7, 0}, {7, 10}, {20'000, 3}}) {
    CompressedRows m(DType::f16, rows, columns, 0);
    std::ranges::fill(m.starts(), 0);
    const MatrixSample sample = sample_of(m, threads_);
    EXPECT_EQ(sample.dtype, DType::f16);
    EXPECT_EQ(sample.entries, 0);
    EXPECT_EQ(sample.empty_rows, sample.rows);
    EXPECT_EQ(sample.columns, columns);
    EXPECT_EQ(sample.usual.starts.back(), 0u);
    EXPECT_EQ(sample.usual.scale, 1.0);
    EXPECT_EQ(sample.longest.starts, std::vector<uint32_t>{0});
    EXPECT_EQ(sample.distinct_columns, 1.0);
  }
}

// Of an encoding with this many entries there is one window: all of them from the first on.
TEST_F(MatrixSampleTest, CountsColumnsThatDiffer) {
  constexpr int64_t kEntries = 1024;
  for (const int64_t columns : {150, 700, 70'000}) {  // positions of 16 and of 32 bits
    for (const DType dtype : {DType::f16, DType::f32}) {
      SCOPED_TRACE(::testing::Message() << columns << " columns, " << sparsellm::name_of(dtype));
      const CompressedRows m =
          with_dtype(matrix_of_lengths(std::vector<int64_t>(32, 32), columns, 3), dtype, threads_);
      const EncodedWeight e = encoded(m);
      const Parts parts(e);
      ASSERT_EQ(parts.starts.back() * parts.layout.vector, kEntries);
      std::set<int64_t> distinct;
      std::set<int64_t> sectors;
      for (int64_t c = 0; c < parts.grid.chunks(); ++c) {
        const Chunk chunk = parts.grid.chunk(c);
        for (int64_t place = 0; place < chunk.groups; ++place) {
          parts.for_each_entry(chunk, parts.lane(chunk, place), [&](int64_t column, size_t) {
            distinct.insert(column);
            sectors.insert(column * size_of(dtype) / 32);
          });
        }
      }
      const MatrixSample sample = sample_of(m, threads_);
      EXPECT_EQ(sample.layout.positions == PositionCode::u32, columns > 65536);
      EXPECT_DOUBLE_EQ(sample.distinct_columns, static_cast<double>(distinct.size()) / kEntries);
      EXPECT_DOUBLE_EQ(sample.distinct_sectors, static_cast<double>(sectors.size()) / kEntries);
    }
  }
}

TEST_F(MatrixSampleTest, LargeMatricesAreEstimated) {
  for (const MatrixClass matrix_class : kMatrixClasses) {
    const bool square = matrix_class == MatrixClass::stencil;
    const int64_t columns = square ? 60'000 : 40'000;
    const int64_t rows = square ? columns : 100'000;
    const CompressedRows m = random_matrix({.matrix_class = matrix_class,
                                            .rows = rows,
                                            .columns = columns,
                                            .nonzeros = 600'000,
                                            .seed = 9},
                                           threads_);
    const EncodedWeight e = encoded(m);
    const Parts parts(e);
    const MatrixSample sample = sample_of(m, threads_);
    SCOPED_TRACE(sparsellm::name_of(matrix_class));
    EXPECT_NEAR(units_of(sample), parts.starts.back(), 0.02 * parts.starts.back());
    EXPECT_EQ(sample.empty_rows, std::ranges::count(lengths_of(parts.starts), 0u));
    EXPECT_LE(sample.usual.starts.size(), 16u * 512u + 1u);
    EXPECT_LE(sample.longest.starts.size(), 256u + 1u);
    EXPECT_GE(sample.usual.scale, 1.0);
    EXPECT_EQ(sample.longest.scale, 1.0);
    // None of the longest is missing.
    std::vector<uint32_t> all = lengths_of(parts.starts);
    std::sort(all.begin(), all.end(), std::greater<>());
    std::vector<uint32_t> longest = lengths_of(sample.longest.starts);
    std::sort(longest.begin(), longest.end(), std::greater<>());
    EXPECT_TRUE(std::equal(longest.begin(), longest.end(), all.begin()));
    const std::vector<uint32_t> usual = lengths_of(sample.usual.starts);
    const uint32_t longest_usual = *std::max_element(usual.begin(), usual.end());
    EXPECT_LE(longest_usual, longest.empty() ? all.front() : longest.back());
    if (matrix_class == MatrixClass::power_law) {
      EXPECT_GT(longest.size(), 100u);
    }
  }
}

}  // namespace
}  // namespace sparsellm
