#include "kernels/fill_random.h"

#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/random_order.h"
#include "kernels/zero_pattern.h"
#include "kernels/zero_thresholds.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class FillRandom : public ::testing::TestWithParam<DType> {
 protected:
  GuardedTensor filled(const RandomFill& fill, int64_t n) {
    GuardedTensor x(GetParam(), {n});
    fill_random(fill, x.view(), ctx_.exec);
    EXPECT_TRUE(x.guards_intact());
    return x;
  }

  CpuContext ctx_{2};
};
INSTANTIATE_TEST_SUITE_P(Cpu, FillRandom, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(FillRandom, IsUniform) {
  constexpr int64_t kCount = 200'000;
  const std::vector<double> values = values_of(filled({.key = 1, .spread = 0.5f}, kCount).view());
  double sum = 0.0;
  double squares = 0.0;
  double products = 0.0;  // of neighbours
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_LE(std::abs(values[i]), 0.5);
    ASSERT_NE(values[i], 0.0);
    sum += values[i];
    squares += values[i] * values[i];
    products += i > 0 ? values[i] * values[i - 1] : 0.0;
  }
  const double deviation = 0.5 / std::sqrt(3.0);  // of one value
  const double error = deviation / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(sum / kCount, 0.0, 5 * error);
  EXPECT_NEAR(std::sqrt(squares / kCount), deviation, 5 * error);
  EXPECT_NEAR(products / kCount, 0.0, 5 * error * deviation);
}

TEST_P(FillRandom, HasTheFractionOfZeros) {
  constexpr int64_t kCount = 100'000;
  for (double sparsity : {0.0, 0.3, 0.8, 1.0}) {
    const GuardedTensor x = filled({.key = 2, .spread = 0.002f, .sparsity = sparsity}, kCount);
    int64_t zeros = 0;
    for (double value : values_of(x.view())) {
      zeros += value == 0.0 ? 1 : 0;
    }
    const double error = std::sqrt(sparsity * (1.0 - sparsity) / kCount);
    EXPECT_NEAR(static_cast<double>(zeros) / kCount, sparsity, 5 * error);
  }
}

TEST_P(FillRandom, ElementsDependOnKeyAndIndexAlone) {
  const RandomFill fill{.key = random_key(7, "a"), .sparsity = 0.2};
  const GuardedTensor large = filled(fill, 50'000);
  const GuardedTensor small = filled(fill, 33);
  EXPECT_TRUE(same_bits(small.view(), large.view().rows(0, 33)));
  for (uint64_t key : {random_key(8, "a"), random_key(7, "b"), random_key(7, "")}) {
    RandomFill other = fill;
    other.key = key;
    EXPECT_FALSE(same_bits(filled(other, 33).view(), small.view()));
  }
}

// Of FNV-1a.
uint64_t hash_of(const Tensor& x) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes_of(x)) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

// Benchmarks with the same seed go on with the same weights.
TEST_P(FillRandom, UniformFillsKeepTheirBits) {
  const std::map<DType, uint64_t> expected{{DType::f32, 0xb6f444f21d94c080u},
                                           {DType::f16, 0xc0ab8891bbbc07c7u},
                                           {DType::bf16, 0x7d3588f573e503a9u}};
  RandomFill fill{.key = random_key(7, "model.layers.0.mlp.up_proj.weight"),
                  .centre = 0.25f,
                  .spread = 1.5f,
                  .sparsity = 0.6};
  EXPECT_EQ(hash_of(filled(fill, 1001).view()), expected.at(GetParam()));
  fill.columns = 77;
  EXPECT_EQ(hash_of(filled(fill, 1001).view()), expected.at(GetParam()));
}

TEST_P(FillRandom, FillsWithTheCentreAlone) {
  for (double value : values_of(filled({.key = 3, .centre = 1.0f, .spread = 0.0f}, 100).view())) {
    EXPECT_EQ(value, 1.0);
  }
}

TEST_P(FillRandom, TakesAnEmptyTensorAndRefusesBadArguments) {
  filled({}, 0);
  for (double sparsity : {-0.1, 1.1, std::nan("")}) {
    EXPECT_TRUE(throws_error([&] { filled({.sparsity = sparsity}, 8); }, "sparsity"));
  }
  const auto refused = [&](const char* pattern, double sparsity, int64_t columns,
                           const char* message) {
    return throws_error(
        [&] {
          filled({.sparsity = sparsity,
                  .pattern = parse_zero_pattern(pattern).value(),
                  .columns = columns},
                 12);
        },
        message);
  };
  EXPECT_TRUE(refused("outliers:0.5", 0.6, 3, "outliers:0.5: a share of 0.5 is dense, more than"));
  EXPECT_TRUE(refused("dense-blocks:1", 0.01, 3, "dense-blocks:1: a share"));
  for (const int64_t columns : {0, -3, 5, 24}) {
    EXPECT_TRUE(refused("rows:0.5", 0.6, columns, "12 elements are no matrix with"));
  }
  const ZeroPattern nonsense{.kind = ZeroPattern::Kind::rows, .amount = std::nan("")};
  EXPECT_TRUE(throws_error([&] { filled({.pattern = nonsense}, 12); }, "rows:nan"));
  filled({.pattern = {.kind = ZeroPattern::Kind::rows, .amount = 1.0}, .columns = 7}, 0);
  const GuardedTensor matrix(GetParam(), {2, 3});
  EXPECT_TRUE(throws_error([&] { fill_random({}, matrix.view(), ctx_.exec); }, "fill_random"));
}

constexpr const char* kPatterns[] = {
    "rows:0",       "rows:0.5",        "rows:3",           "columns:0.5", "columns:8",
    "outliers:0.0", "outliers:0.05",   "dense-blocks:0.1", "magnitude:0", "magnitude:0.3",
    "magnitude:8",  "kept-blocks:1x1", "kept-blocks:4x8",
};

using Shape = std::pair<int64_t, int64_t>;  // rows, columns
constexpr Shape kShapes[] = {{1, 1}, {1, 977}, {977, 1}, {3, 5}, {64, 128}, {65, 129}, {331, 517}};

// Where a matrix is no zero.
struct Places {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;

  // Of the elements in some part of it.
  double density(int64_t row, int64_t row_count, int64_t column, int64_t column_count) const {
    double nonzeros = 0.0;
    for (int64_t r = row; r < row + row_count; ++r) {
      for (int64_t c = column; c < column + column_count; ++c) {
        nonzeros += values[static_cast<size_t>(r * columns + c)] != 0.0 ? 1.0 : 0.0;
      }
    }
    return nonzeros / static_cast<double>(row_count * column_count);
  }
  double density() const { return density(0, rows, 0, columns); }
};

class ZeroPatterns : public ::testing::Test {
 protected:
  // The same matrix, of which x holds a part.
  std::vector<double> part_of(const char* pattern, Shape shape, const RandomFill::Part& part,
                              int64_t rows) {
    CpuContext context(2);
    const GuardedTensor x(DType::f32, {rows * part.columns});
    fill_random({.key = 1,
                 .sparsity = 0.6,
                 .pattern = parse_zero_pattern(pattern).value(),
                 .columns = shape.second,
                 .part = part},
                x.view(), context.exec);
    EXPECT_TRUE(x.guards_intact());
    return values_of(x.view());
  }

  Places fill(const char* pattern, double sparsity, Shape shape, uint64_t key = 1) {
    CpuContext context(2);
    const GuardedTensor x(DType::f32, {shape.first * shape.second});
    fill_random({.key = key,
                 .sparsity = sparsity,
                 .pattern = parse_zero_pattern(pattern).value(),
                 .columns = shape.second},
                x.view(), context.exec);
    return {.rows = shape.first, .columns = shape.second, .values = values_of(x.view())};
  }
};

TEST_F(ZeroPatterns, KeepTheSparsityOfTheWholeMatrix) {
  for (const char* pattern : kPatterns) {
    for (const double sparsity : {0.0, 0.3, 0.6, 0.9, 1.0}) {
      if (!why_not(parse_zero_pattern(pattern).value(), sparsity).empty()) {
        continue;
      }
      for (const Shape& shape : kShapes) {
        SCOPED_TRACE(
            fmt::format("{}, {} zeros, {}x{}", pattern, sparsity, shape.first, shape.second));
        const auto elements = static_cast<double>(shape.first * shape.second);
        // Uneven probabilities scatter less than even ones.
        EXPECT_NEAR(fill(pattern, sparsity, shape).density(), 1.0 - sparsity,
                    5.0 * std::sqrt(sparsity * (1.0 - sparsity) / elements));
      }
    }
  }
}

TEST_F(ZeroPatterns, APartHasTheValuesOfItsPlace) {
  const Shape shape{130, 150};
  for (const char* pattern : {"uniform", "rows:0.5", "columns:0.5", "outliers:0.1",
                              "dense-blocks:0.1", "magnitude:0.5", "kept-blocks:3x7"}) {
    SCOPED_TRACE(pattern);
    const std::vector<double> whole = fill(pattern, 0.6, shape).values;
    for (const auto& [rows, columns] :
         {std::pair<std::pair<int64_t, int64_t>, std::pair<int64_t, int64_t>>{{0, 130}, {0, 150}},
          {{3, 50}, {0, 150}},
          {{0, 130}, {64, 30}},
          {{129, 1}, {149, 1}},
          {{7, 0}, {1, 2}}}) {
      std::vector<double> expected;
      for (int64_t row = rows.first; row < rows.first + rows.second; ++row) {
        const auto begin = whole.begin() + row * shape.second + columns.first;
        expected.insert(expected.end(), begin, begin + columns.second);
      }
      EXPECT_EQ(part_of(pattern, shape,
                        {.all_rows = shape.first,
                         .first_row = rows.first,
                         .first_column = columns.first,
                         .columns = columns.second},
                        rows.second),
                expected);
    }
  }
  for (const RandomFill::Part& wrong :
       {RandomFill::Part{130, 0, 0, 151}, RandomFill::Part{130, 0, 150, 1},
        RandomFill::Part{130, 131, 0, 10}, RandomFill::Part{130, -1, 0, 10},
        RandomFill::Part{130, 0, -1, 10}, RandomFill::Part{130, 130, 0, 10},
        RandomFill::Part{130, 0, 0, 0}}) {
    EXPECT_TRUE(
        throws_error([&] { part_of("uniform", shape, wrong, 1); }, "of a matrix 130 x 150"));
  }
}

// What a device compares with adds up to the share of zeros, except for rounding: of numbers that
// are drawn to 2^32, of zeros that are counted to one more or less in a row, by chance.
TEST_F(ZeroPatterns, HaveTheExpectedTotal) {
  for (const char* text : kPatterns) {
    const ZeroPattern pattern = parse_zero_pattern(text).value();
    for (const double sparsity : {0.0, 0.05, 0.3, 0.6, 0.9, 0.95, 1.0}) {
      if (!why_not(pattern, sparsity).empty()) {
        continue;
      }
      for (const auto& [rows, columns] : kShapes) {
        SCOPED_TRACE(fmt::format("{}, {} zeros, {}x{}", text, sparsity, rows, columns));
        const ZeroThresholds thresholds = zero_thresholds(pattern, sparsity, 3, rows, columns);
        double zeros = 0.0;
        if (thresholds.counted) {
          ASSERT_EQ(std::ssize(thresholds.zeros), rows);
          for (const uint64_t count : thresholds.zeros) {
            ASSERT_LE(count, static_cast<uint64_t>(columns));
            zeros += static_cast<double>(count);
          }
          EXPECT_NEAR(zeros / static_cast<double>(rows), sparsity * static_cast<double>(columns),
                      2.5 / std::sqrt(static_cast<double>(rows)));
          continue;
        }
        for (int64_t i = 0; i < rows * columns; ++i) {
          const uint64_t threshold =
              thresholds.zeros.at(static_cast<size_t>(thresholds.grid.cell_of(i)));
          ASSERT_LE(threshold, uint64_t{1} << 32);
          zeros += static_cast<double>(threshold) * 0x1p-32;
        }
        if (pattern.kind == ZeroPattern::Kind::kept_blocks) {
          const auto whole = static_cast<double>(thresholds.zeros.size());
          const auto kept = static_cast<double>(std::ranges::count(thresholds.zeros, uint64_t{0}));
          EXPECT_EQ(
              kept + static_cast<double>(std::ranges::count(thresholds.zeros, uint64_t{1} << 32)),
              whole);
          EXPECT_LT(std::abs(kept - (1.0 - sparsity) * whole), 1.0);
          continue;
        }
        EXPECT_NEAR(zeros / static_cast<double>(rows * columns), sparsity, 1e-9);
      }
    }
  }
}

struct Moments {
  double mean = 0.0;
  double deviation = 0.0;
};
Moments moments_of(const std::vector<double>& values) {
  Moments moments;
  for (const double value : values) {
    moments.mean += value / static_cast<double>(values.size());
  }
  for (const double value : values) {
    moments.deviation +=
        (value - moments.mean) * (value - moments.mean) / static_cast<double>(values.size());
  }
  moments.deviation = std::sqrt(moments.deviation);
  return moments;
}

// Of the logarithms of densities far from 1; so large that counting them adds little.
TEST_F(ZeroPatterns, RowsAndColumnsDeviateByS) {
  constexpr int64_t kCount = 1000;
  constexpr int64_t kLength = 3000;
  for (const double deviation : {0.0, 0.25, 0.5}) {
    const Places rows = fill(fmt::format("rows:{}", deviation).c_str(), 0.9, {kCount, kLength}, 5);
    const Places columns =
        fill(fmt::format("columns:{}", deviation).c_str(), 0.9, {kLength, kCount}, 5);
    std::vector<double> of_rows;
    std::vector<double> of_columns;
    for (int64_t i = 0; i < kCount; ++i) {
      of_rows.push_back(std::log(rows.density(i, 1, 0, kLength)));
      of_columns.push_back(std::log(columns.density(0, kLength, i, 1)));
    }
    // A density p of n elements scatters by sqrt((1 - p) / (p n)) of itself. Those of rows are
    // counted.
    const double scatter = std::sqrt(0.9 / (0.1 * kLength));
    for (const std::vector<double>* logs : {&of_rows, &of_columns}) {
      const Moments moments = moments_of(*logs);
      const double expected = std::hypot(deviation, logs == &of_columns ? scatter : 0.0);
      EXPECT_NEAR(moments.deviation, expected, 0.1 * expected + 1e-12);
      // The mean of a log-normal density is 0.1.
      EXPECT_NEAR(moments.mean, std::log(0.1) - deviation * deviation / 2.0, 0.05);
    }
    // Rows that differ do so in all of their columns, and the other way round.
    std::vector<double> across;
    for (int64_t i = 0; i < kLength; ++i) {
      across.push_back(rows.density(0, kCount, i, 1));
    }
    EXPECT_LT(moments_of(across).deviation, 1.3 * std::sqrt(0.1 * 0.9 / kCount));
  }
}

// Of rows with the standard deviations s a share erfc(t / s / sqrt(2)) is above the threshold t.
TEST_F(ZeroPatterns, MagnitudesSpreadMoreTheFewerNonzerosThereAre) {
  constexpr int64_t kRows = 500;
  constexpr int64_t kColumns = 4000;
  std::vector<double> deviations;
  for (const double sparsity : {0.5, 0.9, 0.99}) {
    const Places places = fill("magnitude:0.3", sparsity, {kRows, kColumns}, 5);
    std::vector<double> densities;
    for (int64_t row = 0; row < kRows; ++row) {
      densities.push_back(places.density(row, 1, 0, kColumns));
    }
    const Moments moments = moments_of(densities);
    EXPECT_NEAR(moments.mean, 1.0 - sparsity, 0.03 * (1.0 - sparsity));
    deviations.push_back(moments.deviation / moments.mean);
  }
  // The logarithm of the share above the median of |w| changes 0.86 times as much as that of the
  // standard deviation.
  EXPECT_NEAR(deviations[0], 0.3 * 0.86, 0.05);
  EXPECT_GT(deviations[1], 2.0 * deviations[0]);
  EXPECT_GT(deviations[2], 1.5 * deviations[1]);
  const Places even = fill("magnitude:0", 0.9, {kRows, kColumns}, 5);
  for (int64_t row = 0; row < kRows; ++row) {
    EXPECT_NEAR(even.density(row, 1, 0, kColumns), 0.1, 5.0 * std::sqrt(0.09 / kColumns));
  }
}

TEST_F(ZeroPatterns, BlocksAreKeptWhole) {
  constexpr int64_t kRows = 4;
  constexpr int64_t kColumns = 8;
  const Places places = fill("kept-blocks:4x8", 0.7, {50, 203}, 9);
  int64_t kept = 0;
  int64_t blocks = 0;
  for (int64_t row = 0; row < places.rows; row += kRows) {
    for (int64_t column = 0; column < places.columns; column += kColumns) {
      const double density = places.density(row, std::min(kRows, places.rows - row), column,
                                            std::min(kColumns, places.columns - column));
      EXPECT_TRUE(density == 0.0 || density == 1.0) << row << ", " << column;
      kept += density > 0.0 ? 1 : 0;
      ++blocks;
    }
  }
  EXPECT_NEAR(static_cast<double>(kept), 0.3 * static_cast<double>(blocks), 1.0);
  // Another key keeps others.
  EXPECT_NE(fill("kept-blocks:4x8", 0.7, {50, 203}, 10).density(0, 50, 0, 8),
            places.density(0, 50, 0, 8));
}

// Whole numbers of zeros are the same in all rows, others are rounded up or down.
TEST_F(ZeroPatterns, RowsHaveExactlyTheirShare) {
  for (const double sparsity : {0.0, 0.25, 0.3, 0.8, 1.0}) {
    for (const Shape& shape : {Shape{400, 1}, Shape{400, 5}, Shape{400, 77}, Shape{50, 1000}}) {
      SCOPED_TRACE(fmt::format("{} zeros, {}x{}", sparsity, shape.first, shape.second));
      const Places places = fill("rows:0", sparsity, shape, 3);
      const double share = sparsity * static_cast<double>(shape.second);
      std::set<int64_t> counts;
      for (int64_t row = 0; row < places.rows; ++row) {
        const double density = places.density(row, 1, 0, places.columns);
        counts.insert(std::llround((1.0 - density) * static_cast<double>(places.columns)));
      }
      EXPECT_GE(static_cast<double>(*counts.begin()), std::floor(share + 1e-9));
      EXPECT_LE(static_cast<double>(*counts.rbegin()), std::ceil(share - 1e-9));
      EXPECT_EQ(counts.size(), std::abs(share - std::round(share)) < 1e-9 ? 1u : 2u);
    }
  }
}

// Each of them is zero as often as chance makes it, and so are two neighbours, or elements that lie
// as the lanes and tiles of kernels do.
TEST_F(ZeroPatterns, PlacesInRowsAreRandom) {
  constexpr int64_t kRows = 600;
  constexpr int64_t kColumns = 520;
  constexpr double kSparsity = 0.7;
  const Places places = fill("rows:0", kSparsity, {kRows, kColumns}, 9);
  const double variance = kSparsity * (1.0 - kSparsity);
  double squares = 0.0;
  for (int64_t column = 0; column < kColumns; ++column) {
    const double off = places.density(0, kRows, column, 1) - (1.0 - kSparsity);
    squares += off * off * kRows / variance / kColumns;
  }
  EXPECT_NEAR(squares, 1.0, 5.0 * std::sqrt(2.0 / kColumns));
  for (const int64_t distance : {1, 2, 8, 16, 32, 64, 128, 256}) {
    SCOPED_TRACE(distance);
    double of_rows = 0.0;  // squares of a row's correlation, in units of what chance makes it
    for (int64_t row = 0; row < kRows; ++row) {
      double sum = 0.0;
      for (int64_t column = 0; column + distance < kColumns; ++column) {
        const auto i = static_cast<size_t>(row * kColumns + column);
        const double first = places.values[i] != 0.0 ? kSparsity : kSparsity - 1.0;
        const double second =
            places.values[i + static_cast<size_t>(distance)] != 0.0 ? kSparsity : kSparsity - 1.0;
        sum += first * second / variance;
      }
      of_rows += sum * sum / static_cast<double>(kColumns - distance) / kRows;
    }
    EXPECT_NEAR(of_rows, 1.0, 0.35);
  }
}

TEST(RandomOrder, HasEveryPlaceOnce) {
  for (const int64_t count : {1, 2, 3, 4, 5, 31, 32, 33, 1000, 4096, 4097}) {
    std::set<std::vector<uint64_t>> orders;
    for (const uint64_t seed : {0u, 1u, 12345u}) {
      std::vector<uint64_t> places;
      std::vector<bool> taken(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        places.push_back(place_in(random_order(count), seed, static_cast<uint64_t>(i)));
        ASSERT_LT(places.back(), static_cast<uint64_t>(count));
        EXPECT_FALSE(taken[places.back()]);
        taken[places.back()] = true;
      }
      orders.insert(places);
    }
    EXPECT_EQ(orders.size(), count < 5 ? orders.size() : 3u) << count;
  }
}

TEST_F(ZeroPatterns, FullRowsAreClipped) {
  const Places places = fill("rows:2", 0.3, {500, 400});
  int64_t full = 0;
  int64_t sparse = 0;
  for (int64_t row = 0; row < places.rows; ++row) {
    const double density = places.density(row, 1, 0, places.columns);
    full += density == 1.0 ? 1 : 0;
    sparse += density < 0.5 ? 1 : 0;
  }
  EXPECT_GT(full, 100);
  EXPECT_GT(sparse, 50);
  EXPECT_NEAR(places.density(), 0.7, 0.01);
}

TEST_F(ZeroPatterns, AShareOfColumnsIsDense) {
  const Places places = fill("outliers:0.03", 0.6, {200, 1001});
  std::set<int64_t> dense;
  for (int64_t column = 0; column < places.columns; ++column) {
    const double density = places.density(0, places.rows, column, 1);
    if (density == 1.0) {
      dense.insert(column);
    } else {
      EXPECT_NEAR(density, (0.4 * 1001 - 30) / (1001 - 30), 0.2);
    }
  }
  EXPECT_EQ(dense.size(), 30u);
  EXPECT_GT(*dense.rbegin() - *dense.begin(), 500);  // all over the matrix
}

TEST_F(ZeroPatterns, AShareOfBlocksIsDense) {
  constexpr Shape kShape{64 * 9 + 7, 128 * 6 + 1};
  const Places places = fill("dense-blocks:0.1", 0.6, kShape);
  int64_t dense = 0;
  for (int64_t row = 0; row < places.rows; row += 64) {
    for (int64_t column = 0; column < places.columns; column += 128) {
      const int64_t rows = std::min<int64_t>(64, places.rows - row);
      const int64_t columns = std::min<int64_t>(128, places.columns - column);
      const double density = places.density(row, rows, column, columns);
      dense += density == 1.0 ? 1 : 0;
      if (density < 1.0 && rows * columns > 4000) {
        EXPECT_NEAR(density, 0.34, 0.05);
      }
    }
  }
  EXPECT_EQ(dense, 7);  // of 70
}

// As many as there are nonzeros for: a share of few blocks rounds up.
TEST_F(ZeroPatterns, NoMoreBlocksAreDenseThanFit) {
  EXPECT_NEAR(fill("dense-blocks:0.3", 0.7, {64, 128 * 2}).density(), 0.3, 0.02);
  EXPECT_NEAR(fill("dense-blocks:0.3", 0.7, {64, 128 * 5}).density(), 0.3, 0.02);
  EXPECT_NEAR(fill("outliers:0.4", 0.6, {999, 10}).density(), 0.4, 0.0);
  EXPECT_EQ(fill("outliers:1", 0.0, {9, 7}).density(), 1.0);
  EXPECT_EQ(fill("dense-blocks:0.0", 1.0, {9, 7}).density(), 0.0);
}

TEST_F(ZeroPatterns, DependOnKeyShapeAndPatternAlone) {
  for (const char* pattern : kPatterns) {
    const Places first = fill(pattern, 0.6, {131, 257}, 7);
    EXPECT_EQ(first.values, fill(pattern, 0.6, {131, 257}, 7).values);
    EXPECT_NE(first.values, fill(pattern, 0.6, {131, 257}, 8).values);
  }
  EXPECT_NE(fill("outliers:0.05", 0.6, {200, 100}).values,
            fill("outliers:0.05", 0.6, {100, 200}).values);
}

// However it is split among threads.
TEST_P(FillRandom, ThreadsDoNotMatter) {
  for (const char* pattern : kPatterns) {
    const RandomFill fill{
        .key = 11, .sparsity = 0.5, .pattern = parse_zero_pattern(pattern).value(), .columns = 463};
    const GuardedTensor expected = filled(fill, 463 * 500);
    for (const int threads : {1, 3, 5}) {
      CpuContext context(threads);
      const GuardedTensor x(GetParam(), {463 * 500});
      fill_random(fill, x.view(), context.exec);
      EXPECT_TRUE(same_bits(x.view(), expected.view()));
    }
  }
}

TEST(ZeroPattern, IsParsed) {
  using Kind = ZeroPattern::Kind;
  const std::map<std::string, ZeroPattern> good{
      {"uniform", {}},
      {"rows:0.5", {.kind = Kind::rows, .amount = 0.5}},
      {"rows:0", {.kind = Kind::rows, .amount = 0.0}},
      {"columns:8", {.kind = Kind::columns, .amount = 8.0}},
      {"outliers:0.01", {.kind = Kind::outliers, .amount = 0.01}},
      {"dense-blocks:1", {.kind = Kind::dense_blocks, .amount = 1.0}},
      {"magnitude:0.3", {.kind = Kind::magnitude, .amount = 0.3}},
      {"kept-blocks:4x8", {.kind = Kind::kept_blocks, .block = {4, 8}}},
      {"kept-blocks:1x1024", {.kind = Kind::kept_blocks, .block = {1, 1024}}},
  };
  for (const auto& [text, pattern] : good) {
    EXPECT_EQ(parse_zero_pattern(text), pattern) << text;
    EXPECT_EQ(to_string(pattern), text);
  }
  EXPECT_EQ(to_string(parse_zero_pattern("dense-blocks:1e-2").value()), "dense-blocks:0.01");
  EXPECT_EQ(to_string(parse_zero_pattern("rows:-0").value()), "rows:0");
  for (const char* text : {"",
                           "foo",
                           "uniform:",
                           "uniform:0",
                           "Uniform",
                           "rows",
                           "rows:",
                           "rows:-1",
                           "rows:nan",
                           "rows:inf",
                           "rows:9",
                           "rows:1e999",
                           "rows:0.5x",
                           "rows: 0.5",
                           "rows:0.5,",
                           "rows:0,5",
                           "row:0.5",
                           "columns:-0.1",
                           "outliers:1.01",
                           "outliers:-nan",
                           "dense-blocks:2",
                           "dense-blocks:0.1:0.2",
                           "dense_blocks:0.1",
                           "magnitude",
                           "magnitude:8.1",
                           "magnitude:1x1",
                           "kept-blocks",
                           "kept-blocks:4",
                           "kept-blocks:4x",
                           "kept-blocks:x4",
                           "kept-blocks:0x4",
                           "kept-blocks:4x-4",
                           "kept-blocks:4x1025",
                           "kept-blocks:4x4x4",
                           "kept-blocks:4.0x4",
                           "kept-blocks:99999999999999999999x4",
                           ":",
                           ":0.5",
                           " uniform"}) {
    EXPECT_EQ(parse_zero_pattern(text), std::nullopt) << text;
  }
}

TEST(ZeroPattern, CannotHaveMoreNonzerosThanThereAre) {
  const auto reason = [](const char* pattern, double sparsity) {
    return why_not(parse_zero_pattern(pattern).value(), sparsity);
  };
  EXPECT_EQ(reason("outliers:0.9", 0.6),
            "outliers:0.9: a share of 0.9 is dense, more than all nonzeros of a sparsity of 0.6");
  EXPECT_NE(reason("dense-blocks:0.31", 0.7), "");
  EXPECT_NE(reason("dense-blocks:0.01", 1.0), "");
  for (const double sparsity : {0.0, 0.1, 0.3, 0.6, 0.7, 0.9, 1.0}) {
    const std::string all = fmt::format("outliers:{:.1f}", 1.0 - sparsity);
    EXPECT_EQ(reason(all.c_str(), sparsity), "");
    EXPECT_EQ(reason("rows:8", sparsity), "");
    EXPECT_EQ(reason("uniform", sparsity), "");
  }
}

}  // namespace
}  // namespace sparsellm
