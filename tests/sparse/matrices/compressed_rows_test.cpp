#include "sparse/matrices/compressed_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/count_nonzeros.h"
#include "tests/sparse/matrices/compressed_product.h"
#include "tests/sparse/product_reference.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/compare.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr uint64_t kSeed = 3101;
constexpr std::array kDTypes{DType::f16, DType::bf16, DType::f32};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Zeros of both signs, NaNs and infinities are among the elements.
GuardedTensor random_matrix(DType dtype, int64_t rows, int64_t columns, double density,
                            Layout layout) {
  Random random(kSeed);
  GuardedTensor w(dtype, {rows, columns}, layout);
  std::vector<double> values(static_cast<size_t>(rows * columns));
  for (double& value : values) {
    const bool nonzero = random.uniform(0.0, 1.0) < density;
    const double magnitude = std::array{0.5, 1.0, 6e-8, kInfinity, kNan}[random.below(5)];
    value = std::copysign(nonzero ? magnitude : 0.0, random.uniform(-1.0, 1.0));
  }
  set_values(w.view(), values);
  return w;
}

// The bits of the values, too.
void expect_same(const CompressedRows& got, const CompressedRows& expected) {
  EXPECT_EQ(got.dtype(), expected.dtype());
  EXPECT_EQ(got.columns(), expected.columns());
  EXPECT_TRUE(std::ranges::equal(got.starts(), expected.starts()));
  EXPECT_TRUE(std::ranges::equal(got.column_indices(), expected.column_indices()));
  visit_float(got.dtype(), [&]<class T>(T) {
    ASSERT_EQ(got.values<T>().size(), expected.values<T>().size());
    EXPECT_EQ(std::memcmp(got.values<T>().data(), expected.values<T>().data(),
                          got.values<T>().size_bytes()),
              0);
  });
}

TEST(CompressedRows, HoldAllButZeros) {
  ThreadPool threads(3);
  for (const DType dtype : kDTypes) {
    for (const Layout layout : {Layout::contiguous, Layout::strided}) {
      for (const auto& [rows, columns] :
           {std::pair{1, 1}, {1, 300}, {300, 1}, {67, 131}, {16, 64}, {0, 5}, {5, 0}}) {
        for (const double density : {0.0, 0.1, 0.7, 1.0}) {
          SCOPED_TRACE(fmt::format("{} [{}, {}], density {}, seed {}", name_of(dtype), rows,
                                   columns, density, kSeed));
          const GuardedTensor w = random_matrix(dtype, rows, columns, density, layout);
          const CompressedRows m = compress_rows(w.view(), threads);
          validate(m, threads);
          EXPECT_EQ(m.dtype(), dtype);
          EXPECT_EQ(m.rows(), rows);
          EXPECT_EQ(m.columns(), columns);
          EXPECT_EQ(m.nonzeros(), count_nonzeros(w.view(), threads));

          const OwnedTensor dense = dense_matrix(m, threads);
          std::vector<double> expected = values_of(w.view());
          for (double& value : expected) {
            value = value == 0.0 ? 0.0 : value;  // -0 becomes 0
          }
          const GuardedTensor without_signs(dtype, {rows, columns});
          set_values(without_signs.view(), expected);
          EXPECT_TRUE(same_bits(dense.view, without_signs.view()));
          EXPECT_TRUE(w.guards_intact());
        }
      }
    }
  }
}

TEST(CompressedRows, AreTheSameAtAnyNumberOfThreads) {
  ThreadPool one(1);
  for (const DType dtype : kDTypes) {
    const GuardedTensor w = random_matrix(dtype, 517, 83, 0.3, Layout::contiguous);
    const CompressedRows expected = compress_rows(w.view(), one);
    for (const int count : {2, 5, 16}) {
      ThreadPool threads(count);
      expect_same(compress_rows(w.view(), threads), expected);
      EXPECT_TRUE(
          same_bits(dense_matrix(expected, threads).view, dense_matrix(expected, one).view));
    }
  }
}

TEST(CompressedRows, SayWhereANonzeroIs) {
  ThreadPool threads(1);
  GuardedTensor w(DType::f32, {3, 4});
  set_values(w.view(), std::vector<double>{0, 2, 0, -0.0, 0, 0, 0, 0, kNan, 0, 0, -3});
  const CompressedRows m = compress_rows(w.view(), threads);
  EXPECT_TRUE(std::ranges::equal(m.starts(), std::array{0, 1, 1, 3}));
  EXPECT_TRUE(std::ranges::equal(m.column_indices(), std::array{1u, 0u, 3u}));
  EXPECT_EQ(m.values<float>()[0], 2.0f);
  EXPECT_TRUE(std::isnan(m.values<float>()[1]));
  EXPECT_EQ(m.columns_of(1).size(), 0u);
  EXPECT_EQ(m.columns_of(2)[1], 3u);
  EXPECT_EQ(m.values_of<float>(2)[1], -3.0f);
  EXPECT_TRUE(throws_error([&] { m.values<Half>(); }, "compressed rows of f32 are used as f16"));
}

TEST(CompressedRows, ProductOfTheReferenceIsThatOfTheDenseMatrix) {
  ThreadPool threads(2);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const double density : {0.0, 0.2, 1.0}) {
      const OwnedTensor w =
          make_weight({.dtype = dtype, .rows = 37, .columns = 65, .density = density}, kSeed);
      Random random(kSeed);
      const GuardedTensor x = random.tensor(DType::f32, {3, 65});
      const Expected dense = product(x.view(), w.view, threads);
      const Expected got = compressed_product(x.view(), compress_rows(w.view, threads), threads);
      EXPECT_EQ(got.values, dense.values);
      EXPECT_EQ(got.magnitudes, dense.magnitudes);
    }
  }
}

// [3, 10] with nonzeros in columns 2, 5; none; 0, 1, 9.
CompressedRows small() {
  CompressedRows m(DType::f16, 3, 10, 5);
  std::ranges::copy(std::array{0, 2, 2, 5}, m.starts().begin());
  std::ranges::copy(std::array{2, 5, 0, 1, 9}, m.column_indices().begin());
  std::ranges::fill(m.values<Half>(), Half{0x3c00});
  return m;
}

TEST(CompressedRows, ValidateFindsWhatIsWrong) {
  ThreadPool threads(2);
  EXPECT_NO_THROW(validate(small(), threads));
  const auto start = [&](size_t row, int64_t value) {
    CompressedRows m = small();
    m.starts()[row] = value;
    validate(m, threads);
  };
  EXPECT_TRUE(throws_error([&] { start(0, 1); }, "row 0 begins with nonzero 1, not 0"));
  EXPECT_TRUE(throws_error([&] { start(0, -1); }, "row 0 begins with nonzero -1, not 0"));
  EXPECT_TRUE(throws_error([&] { start(1, 3); }, "row 1 begins with nonzero 3 and ends before 2"));
  EXPECT_TRUE(
      throws_error([&] { start(1, -1); }, "row 0 begins with nonzero 0 and ends before -1"));
  EXPECT_TRUE(throws_error([&] { start(2, int64_t{1} << 62); }, "and ends before 5"));
  EXPECT_TRUE(throws_error([&] { start(3, 4); }, "the rows have 4 nonzeros, not 5"));
  EXPECT_TRUE(throws_error([&] { start(3, 6); }, "the rows have 6 nonzeros, not 5"));
  const auto column = [&](size_t i, uint32_t value) {
    CompressedRows m = small();
    m.column_indices()[i] = value;
    validate(m, threads);
  };
  EXPECT_NO_THROW(column(0, 0));
  EXPECT_TRUE(
      throws_error([&] { column(1, 2); }, "row 0 has a nonzero in column 2 after one in column 2"));
  EXPECT_TRUE(
      throws_error([&] { column(3, 0); }, "row 2 has a nonzero in column 0 after one in column 0"));
  EXPECT_TRUE(throws_error([&] { column(4, 10); }, "row 2 has a nonzero in column 10 of 10"));
  EXPECT_TRUE(throws_error([&] { column(2, 0xffffffff); },
                           "row 2 has a nonzero in column 4294967295 of 10"));
}

TEST(CompressedRows, ValidateNamesTheFirstRowThatIsWrong) {
  const GuardedTensor w = random_matrix(DType::f32, 999, 9, 1.0, Layout::contiguous);
  for (const int count : {1, 2, 7}) {
    ThreadPool threads(count);
    CompressedRows m = compress_rows(w.view(), threads);
    for (const size_t row : {900, 333, 700}) {
      m.column_indices()[row * 9 + 8] = 9;
    }
    EXPECT_TRUE(throws_error([&] { validate(m, threads); }, "row 333 "));
  }
}

TEST(CompressedRows, WrongSizes) {
  const auto error = [](DType dtype, int64_t rows, int64_t columns, int64_t nonzeros,
                        std::string_view part) {
    EXPECT_TRUE(throws_error([&] { CompressedRows(dtype, rows, columns, nonzeros); }, part));
  };
  constexpr int64_t kMax = CompressedRows::kMaxSize;
  error(DType::i32, 1, 1, 1, "compressed rows of i32 values");
  error(DType::f32, -1, 1, 0, "a matrix -1 x 1");
  error(DType::f32, kMax + 1, 1, 0, "a matrix 2147483648 x 1");
  error(DType::f32, 1, kMax + 1, 0, "a matrix 1 x 2147483648");
  error(DType::f32, 2, 3, 7, "a matrix 2 x 3 with 7 nonzeros");
  error(DType::f32, 2, 3, -1, "a matrix 2 x 3 with -1 nonzeros");
  error(DType::f32, 1, kMax, kMax + 1, "nonzeros");
  EXPECT_EQ(CompressedRows(DType::f32, 1, kMax, 1).columns(), kMax);
  ThreadPool threads(1);
  EXPECT_TRUE(throws_error([&] { compress_rows(GuardedTensor(DType::f32, {4}).view(), threads); },
                           "a tensor [4]"));
  EXPECT_TRUE(throws_error(
      [&] {
        compress_rows(GuardedTensor(DType::i32, {1, 1}).view(), threads);
      },
      "got i32"));
}

}  // namespace
}  // namespace sparsellm
