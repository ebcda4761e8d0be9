#include "sparse/general_sparse/layout_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "sparse/general_sparse/host/arrange.h"
#include "sparse/matrices/random_matrix.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/general_sparse/naive_encoding.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"

namespace sparsellm {
namespace {

using general_sparse::PositionCode;
using PanelLayout = general_sparse::Layout;

class GeneralSparseRule : public ::testing::Test {
 protected:
  PanelLayout choose(const CompressedRows& m, LayoutFor goal = LayoutFor::speed) {
    const PanelLayout layout =
        testing::layout_by_rule(m, row_statistics(m, threads_), goal, threads_);
    EXPECT_EQ(why_invalid(layout), std::nullopt) << to_text(layout);
    return layout;
  }
  // A uniform one of a weight's dtype.
  CompressedRows uniform(DType dtype, int64_t rows, int64_t columns, double density) {
    testing::Random random(41);
    return compress_rows(testing::special_matrix(dtype, rows, columns, density, random).view,
                         threads_);
  }

  CompressedRows rows_of_densities(const std::vector<double>& densities, int64_t columns) {
    testing::Random random(43);
    const auto rows = std::ssize(densities);
    const OwnedTensor w = allocate_tensor({}, DType::f16, {rows, columns}, "w");
    std::vector<double> values(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < values.size(); ++i) {
      const double density = densities[i / static_cast<size_t>(columns)];
      values[i] = random.uniform(0.0, 1.0) < density ? 1.0 : 0.0;
    }
    testing::set_values(w.view, values);
    return compress_rows(w.view, threads_);
  }

  ThreadPool threads_{2};
};

TEST_F(GeneralSparseRule, TakesBytesForShortGaps) {
  for (const double density : {0.2, 0.5}) {
    const PanelLayout layout = choose(uniform(DType::f16, 2048, 1024, density));
    EXPECT_EQ(layout.positions, PositionCode::i8);
    EXPECT_EQ(layout.shared_rows, 1);
    EXPECT_EQ(layout.interleave, 32);
    EXPECT_EQ(layout.vector, 8);
    EXPECT_TRUE(layout.sorted);
  }
  EXPECT_EQ(choose(uniform(DType::f16, 1024, 512, 1.0)).positions, PositionCode::i8);
  EXPECT_EQ(choose(uniform(DType::f16, 1024, 512, 1.0)).shared_rows, 8);
  EXPECT_EQ(choose(uniform(DType::f16, 1024, 512, 1.0)).vector, 1);
}

TEST_F(GeneralSparseRule, TakesAFreeOrderForLongGaps) {
  for (const double density : {0.1, 0.04}) {
    const PanelLayout layout = choose(uniform(DType::f16, 2048, 4096, density));
    EXPECT_EQ(layout.positions, PositionCode::u16);
    EXPECT_EQ(layout.interleave, 32);
    EXPECT_EQ(layout.vector, 8);
  }
}

TEST_F(GeneralSparseRule, TakesOnePanelForShortRows) {
  const CompressedRows stencil = random_matrix(
      {.matrix_class = MatrixClass::stencil, .rows = 90000, .columns = 90000, .nonzeros = 450000},
      threads_);
  EXPECT_EQ(choose(stencil).positions, PositionCode::u32);
  EXPECT_EQ(choose(stencil).panel_columns, 0);
  EXPECT_EQ(choose(uniform(DType::f32, 64, 20000, 0.001)).panel_columns, 65536);
}

TEST_F(GeneralSparseRule, InterleavesEvenRowsAlone) {
  for (const MatrixClass matrix_class : {MatrixClass::arrow, MatrixClass::power_law}) {
    const CompressedRows m = random_matrix(
        {.matrix_class = matrix_class, .rows = 8000, .columns = 8000, .nonzeros = 400000},
        threads_);
    EXPECT_EQ(choose(m).interleave, 1) << name_of(matrix_class);
  }
  const CompressedRows banded = random_matrix(
      {.matrix_class = MatrixClass::banded, .rows = 8000, .columns = 8000, .nonzeros = 400000},
      threads_);
  EXPECT_EQ(choose(banded).interleave, 32);
}

TEST_F(GeneralSparseRule, SortsMoreRowsWhereTheyAreUneven) {
  const auto window_of = [&](double spread) {
    testing::Random random(42);
    const auto rows = static_cast<size_t>(1500);
    std::vector<double> densities(rows);
    for (double& density : densities) {
      density = 0.1 * std::exp(spread * random.uniform(-1.0, 1.0));
    }
    return choose(rows_of_densities(densities, 4096)).window_rows;
  };
  EXPECT_EQ(window_of(0.0), 256);
  EXPECT_EQ(window_of(0.5), 4096);
}

// Slices take longer to begin and to end.
TEST_F(GeneralSparseRule, FewNonzerosAreApart) {
  const PanelLayout layout = choose(uniform(DType::f16, 1024, 1024, 0.1));
  EXPECT_EQ(layout.interleave, 1);
  EXPECT_EQ(layout.positions, PositionCode::u16);
  EXPECT_EQ(layout.panel_columns, 65536);
  EXPECT_EQ(layout.vector, 4);
  EXPECT_TRUE(layout.sorted);
  EXPECT_EQ(choose(uniform(DType::f16, 64, 11008, 0.5)).interleave, 1);
  EXPECT_EQ(choose(uniform(DType::f16, 256, 11008, 0.5)).interleave, 32);
}

TEST_F(GeneralSparseRule, SharesPositionsOfBlocks) {
  for (const int64_t block : {2, 4, 8}) {
    const CompressedRows m = random_matrix({.matrix_class = MatrixClass::blocks,
                                            .rows = 1024,
                                            .columns = 1024,
                                            .nonzeros = 100000,
                                            .block_rows = block,
                                            .block_columns = block},
                                           threads_);
    EXPECT_EQ(choose(m).shared_rows, block);
  }
}

TEST_F(GeneralSparseRule, ForSizeTakesTheFewestBytes) {
  for (const testing::NamedMatrix& matrix : testing::small_matrices(DType::f16, threads_)) {
    SCOPED_TRACE(matrix.name);
    const CompressedRows m = compress_rows(matrix.w.view, threads_);
    const PanelLayout fast = choose(m);
    const PanelLayout small = choose(m, LayoutFor::size);
    const auto bytes_in = [&](const PanelLayout& layout) {
      return encoded_size(general_sparse::EncoderInput(m, layout), m.dtype(), threads_);
    };
    const int64_t bytes = bytes_in(small);
    EXPECT_LE(bytes, bytes_in(fast));
    for (const PositionCode code :
         {PositionCode::u8, PositionCode::u16, PositionCode::u32, PositionCode::bits}) {
      for (const int shared_rows : {1, 2, 4, 8}) {
        const PanelLayout other{.positions = code,
                                .shared_rows = shared_rows,
                                .panel_columns = 65536,
                                .window_rows = int64_t{256} * shared_rows};
        // But for the lengths of the texts.
        EXPECT_LE(bytes, bytes_in(other) + 8) << to_text(other);
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
