#include "sparse/prune/prune.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "sparse/count_nonzeros.h"
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

constexpr uint64_t kSeed = 20240607;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Shape {
  int64_t rows = 0;
  int64_t columns = 0;
};
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {7, 3}, {127, 65}, {1, 20000}, {130, 257}, {500, 1}};
constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32};
constexpr double kSparsities[] = {0.0, 0.37, 0.5, 0.95, 1.0};

PruneSettings settings(std::string_view method, double sparsity = 0.0,
                       PruneScope scope = PruneScope::row) {
  return {.method = parse_prune_method(method),
          .scope = scope,
          .sparsity = sparsity,
          .seed = 5,
          .norms = {}};
}

void run(const GuardedTensor& w, const PruneSettings& how, int threads = 1) {
  ThreadPool pool(threads);
  prune(w.view(), how, pool);
  EXPECT_TRUE(w.guards_intact());
}

GuardedTensor copy_of(const GuardedTensor& w, Layout layout = Layout::contiguous) {
  GuardedTensor copy(w.view().dtype(), {w.view().size(0), w.view().size(1)}, layout);
  set_values(copy.view(), values_of(w.view()));
  return copy;
}

// Values with ties (16 different magnitudes) and, of three, one zero or negative zero.
GuardedTensor tied_matrix(DType dtype, Shape shape, Random& random) {
  std::vector<double> values(static_cast<size_t>(shape.rows * shape.columns));
  for (double& value : values) {
    const double magnitude = random.below(3) == 0 ? 0.0 : static_cast<double>(random.below(16));
    value = random.below(2) == 0 ? magnitude : -magnitude;
  }
  GuardedTensor w(dtype, {shape.rows, shape.columns});
  set_values(w.view(), values);
  return w;
}

GuardedTensor tensor_of(DType dtype, Shape shape, const std::vector<double>& values) {
  GuardedTensor w(dtype, {shape.rows, shape.columns});
  set_values(w.view(), values);
  return w;
}

GuardedTensor norms_of(const std::vector<double>& values) {
  GuardedTensor norms(DType::f32, {static_cast<int64_t>(values.size())});
  set_values(norms.view(), values);
  return norms;
}

// The scores in double, rounded once to f32, as a product in f32 is.
std::vector<double> scores_of(const std::vector<double>& w, const std::vector<double>& norms) {
  std::vector<double> scores(w.size());
  for (size_t i = 0; i < w.size(); ++i) {
    const double norm = norms.empty() ? 1.0 : norms[i % norms.size()];
    scores[i] = w[i] == 0.0 ? -1.0 : static_cast<float>(std::fabs(w[i]) * norm);
  }
  return scores;
}

// Sets the `count` elements of [begin, end) with the lowest scores to zero, by sorting.
void zero_lowest(std::vector<double>& w, const std::vector<double>& scores, int64_t begin,
                 int64_t end, int64_t count) {
  std::vector<size_t> order(static_cast<size_t>(end - begin));
  std::iota(order.begin(), order.end(), static_cast<size_t>(begin));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  for (int64_t i = 0; i < count; ++i) {
    w[order[static_cast<size_t>(i)]] = 0.0;
  }
}

// In groups of this many elements of a row, which all have a share or a number of zeros.
std::vector<double> pruned_by_rows(std::vector<double> w, Shape shape, double sparsity,
                                   const std::vector<double>& norms = {}) {
  const std::vector<double> scores = scores_of(w, norms);
  const int64_t count = std::llround(sparsity * static_cast<double>(shape.columns));
  for (int64_t row = 0; row < shape.rows; ++row) {
    zero_lowest(w, scores, row * shape.columns, (row + 1) * shape.columns, count);
  }
  return w;
}

std::vector<double> pruned_n_m(std::vector<double> w, Shape shape, PruneMethod method,
                               const std::vector<double>& norms = {}) {
  const std::vector<double> scores = scores_of(w, norms);
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t first = 0; first < shape.columns; first += method.group) {
      const int64_t size = std::min<int64_t>(method.group, shape.columns - first);
      const int64_t begin = row * shape.columns + first;
      zero_lowest(w, scores, begin, begin + size, std::max<int64_t>(size - method.kept, 0));
    }
  }
  return w;
}

std::string describe(DType dtype, Shape shape, double sparsity) {
  return fmt::format("{} [{}, {}], sparsity {}, seed {}", name_of(dtype), shape.rows, shape.columns,
                     sparsity, kSeed);
}

// Every sparsity, shape, dtype, layout and some numbers of threads; body(w, shape, sparsity)
// returns the expected values.
template <class Body>
void expect_values(const PruneSettings& base, Body&& expected) {
  Random random(kSeed);
  for (DType dtype : kDTypes) {
    for (Shape shape : kShapes) {
      for (double sparsity : kSparsities) {
        SCOPED_TRACE(describe(dtype, shape, sparsity));
        PruneSettings how = base;
        how.sparsity = sparsity;
        const bool ties = random.below(2) == 0;
        const GuardedTensor original = ties ? tied_matrix(dtype, shape, random)
                                            : random.tensor(dtype, {shape.rows, shape.columns});
        const std::vector<double> wanted = expected(values_of(original.view()), shape, sparsity);
        for (Layout layout : {Layout::contiguous, Layout::strided}) {
          for (int threads : {1, 3}) {
            const GuardedTensor w = copy_of(original, layout);
            run(w, how, threads);
            EXPECT_EQ(values_of(w.view()), wanted) << threads << " threads";
          }
        }
      }
    }
  }
}

TEST(PruneMagnitude, PerRow) {
  expect_values(settings("magnitude"), [](std::vector<double> w, Shape shape, double sparsity) {
    return pruned_by_rows(std::move(w), shape, sparsity);
  });
}

TEST(PruneMagnitude, PerMatrix) {
  expect_values(settings("magnitude", 0.0, PruneScope::matrix),
                [](std::vector<double> w, Shape shape, double sparsity) {
                  const int64_t elements = shape.rows * shape.columns;
                  return pruned_by_rows(std::move(w), {1, elements}, sparsity);
                });
}

TEST(PruneMagnitude, TiesGoByIndex) {
  for (PruneScope scope : {PruneScope::row, PruneScope::matrix}) {
    const GuardedTensor w = tensor_of(DType::f16, {1, 7}, {2, -1, 3, 1, -1, 2, 1});
    run(w, settings("magnitude", 3.0 / 7, scope));
    EXPECT_EQ(values_of(w.view()), (std::vector<double>{2, 0, 3, 0, 0, 2, 1}));
  }
  // Over several rows, and over the borders of the blocks that threads take.
  const GuardedTensor ones = tensor_of(DType::bf16, {500, 301}, std::vector<double>(500 * 301, 1));
  run(ones, settings("magnitude", 0.5, PruneScope::matrix), 4);
  const std::vector<double> values = values_of(ones.view());
  const size_t zeros = (500 * 301) / 2;
  EXPECT_EQ(std::count(values.begin(), values.begin() + zeros, 0.0), zeros);
  EXPECT_EQ(std::count(values.begin() + zeros, values.end(), 1.0), zeros);
}

TEST(PruneMagnitude, RoundsHalvesUp) {
  const auto zeros = [](int64_t columns, double sparsity) {
    Random random(kSeed);
    const GuardedTensor w = random.tensor(DType::f32, {1, columns}, Layout::contiguous, 1, 2);
    run(w, settings("magnitude", sparsity));
    ThreadPool pool(1);
    return columns - count_nonzeros(w.view(), pool);
  };
  EXPECT_EQ(zeros(5, 0.5), 3);
  EXPECT_EQ(zeros(5, 0.7), 4);  // in f32 0.7 is below 0.7
  EXPECT_EQ(zeros(3, 0.16), 0);
  EXPECT_EQ(zeros(3, 0.17), 1);
  EXPECT_EQ(zeros(1, 0.5), 1);
  EXPECT_EQ(zeros(1, 0.49), 0);
}

TEST(PruneMagnitude, AllMagnitudesOf16Bits) {
  for (DType dtype : {DType::f16, DType::bf16}) {
    // Every number of the dtype but NaNs, in a random order: subnormals and infinities as well.
    std::vector<double> all;
    for (int32_t bits : Random(kSeed).permutation(1 << 16)) {
      const auto b = static_cast<uint16_t>(bits);
      const double value = dtype == DType::f16 ? to_float(Half{b}) : to_float(BFloat16{b});
      if (!std::isnan(value)) {
        all.push_back(value);
      }
    }
    const auto count = static_cast<int64_t>(all.size());
    for (double sparsity : {0.01, 0.5, 0.99}) {
      const GuardedTensor w = tensor_of(dtype, {1, count}, all);
      run(w, settings("magnitude", sparsity, PruneScope::matrix), 2);
      EXPECT_EQ(values_of(w.view()), pruned_by_rows(all, {1, count}, sparsity));
    }
  }
}

TEST(PruneRandom, ZeroesExactlyAsManyAsWanted) {
  Random random(kSeed);
  for (DType dtype : kDTypes) {
    for (Shape shape : kShapes) {
      for (double sparsity : kSparsities) {
        for (PruneScope scope : {PruneScope::row, PruneScope::matrix}) {
          SCOPED_TRACE(describe(dtype, shape, sparsity));
          const GuardedTensor original = tied_matrix(dtype, shape, random);
          const std::vector<double> before = values_of(original.view());
          const GuardedTensor w = copy_of(original);
          run(w, settings("random", sparsity, scope));
          const std::vector<double> after = values_of(w.view());

          const int64_t length =
              scope == PruneScope::row ? shape.columns : shape.rows * shape.columns;
          for (size_t first = 0; first < after.size(); first += static_cast<size_t>(length)) {
            int64_t zeros_before = 0;
            int64_t zeros_after = 0;
            for (size_t i = first; i < first + static_cast<size_t>(length); ++i) {
              zeros_before += before[i] == 0.0 ? 1 : 0;
              zeros_after += after[i] == 0.0 ? 1 : 0;
              ASSERT_TRUE(after[i] == before[i] || after[i] == 0.0) << i;
            }
            const int64_t wanted = std::llround(sparsity * static_cast<double>(length));
            ASSERT_EQ(zeros_after, std::max(zeros_before, wanted)) << first;
          }

          const GuardedTensor strided = copy_of(original, Layout::strided);
          run(strided, settings("random", sparsity, scope), 4);
          EXPECT_TRUE(same_bits(strided.view(), w.view()));
        }
      }
    }
  }
}

TEST(PruneRandom, SeedsAndDtypes) {
  Random random(kSeed);
  const auto zeros = [&](DType dtype, uint64_t seed) {
    const GuardedTensor w = random.tensor(dtype, {20, 50}, Layout::contiguous, 1, 2);
    PruneSettings how = settings("random", 0.5);
    how.seed = seed;
    run(w, how);
    std::vector<bool> mask;
    for (double value : values_of(w.view())) {
      mask.push_back(value == 0.0);
    }
    return mask;
  };
  EXPECT_EQ(zeros(DType::f16, 1), zeros(DType::f16, 1));
  EXPECT_EQ(zeros(DType::f16, 1), zeros(DType::f32, 1));  // a matter of position alone
  EXPECT_NE(zeros(DType::f16, 1), zeros(DType::f16, 2));
  EXPECT_NE(zeros(DType::f16, 0), zeros(DType::f16, 1));
}

TEST(PruneRandom, IsUniform) {
  // How often each position is chosen in 1000 draws of 30 %: standard deviation 14.5.
  constexpr int kDraws = 1000;
  for (PruneScope scope : {PruneScope::row, PruneScope::matrix}) {
    std::vector<int> chosen(10 * 20, 0);
    for (int draw = 0; draw < kDraws; ++draw) {
      const GuardedTensor w = tensor_of(DType::f16, {10, 20}, std::vector<double>(10 * 20, 1));
      PruneSettings how = settings("random", 0.3, scope);
      how.seed = static_cast<uint64_t>(draw);
      run(w, how);
      const std::vector<double> values = values_of(w.view());
      for (size_t i = 0; i < values.size(); ++i) {
        chosen[i] += values[i] == 0.0 ? 1 : 0;
      }
    }
    for (int count : chosen) {
      EXPECT_NEAR(count, 300, 5 * 14.5);
    }
  }
}

TEST(PruneWanda, AgainstNaiveScores) {
  Random random(kSeed);
  for (DType dtype : kDTypes) {
    for (Shape shape : kShapes) {
      const GuardedTensor norms =
          random.tensor(DType::f32, {shape.columns}, Layout::contiguous, 0, 9);
      const std::vector<double> norm_values = values_of(norms.view());
      for (double sparsity : kSparsities) {
        SCOPED_TRACE(describe(dtype, shape, sparsity));
        PruneSettings how = settings("wanda", sparsity);
        how.norms = norms.view();
        const GuardedTensor original = tied_matrix(dtype, shape, random);
        const GuardedTensor w = copy_of(original);
        run(w, how);
        EXPECT_EQ(values_of(w.view()),
                  pruned_by_rows(values_of(original.view()), shape, sparsity, norm_values));
        const GuardedTensor strided = copy_of(original, Layout::strided);
        run(strided, how, 3);
        EXPECT_TRUE(same_bits(strided.view(), w.view()));
      }
      EXPECT_TRUE(norms.guards_intact());
      EXPECT_EQ(values_of(norms.view()), norm_values);
    }
  }
}

TEST(PruneWanda, ZerosGoBeforeDeadInputs) {
  // Scores of 0: a dead input's, one that underflows, and that of a zero weight.
  const GuardedTensor w = tensor_of(DType::f32, {1, 4}, {5, 1e-30, 0, 1});
  const GuardedTensor norms = norms_of({0, 1e-30, 7, 1});
  PruneSettings how = settings("wanda", 0.25);
  how.norms = norms.view();
  run(w, how);
  EXPECT_EQ(values_of(w.view())[0], 5);
  EXPECT_NE(values_of(w.view())[1], 0);
  how.sparsity = 0.5;
  run(w, how);
  EXPECT_EQ(values_of(w.view())[0], 0);
  EXPECT_NE(values_of(w.view())[1], 0);
}

TEST(PruneNM, AgainstNaiveScores) {
  Random random(kSeed);
  for (const char* method : {"2:4", "1:2", "4:8", "1:5", "3:3", "5:64"}) {
    for (DType dtype : kDTypes) {
      for (Shape shape : kShapes) {
        SCOPED_TRACE(std::string(method) + " " + describe(dtype, shape, 0));
        PruneSettings how = settings(method);
        const GuardedTensor original = tied_matrix(dtype, shape, random);
        const std::vector<double> before = values_of(original.view());
        const GuardedTensor w = copy_of(original);
        run(w, how);
        EXPECT_EQ(values_of(w.view()), pruned_n_m(before, shape, how.method));
        const GuardedTensor strided = copy_of(original, Layout::strided);
        run(strided, how, 3);
        EXPECT_TRUE(same_bits(strided.view(), w.view()));

        const GuardedTensor norms =
            random.tensor(DType::f32, {shape.columns}, Layout::contiguous, 0, 9);
        how.norms = norms.view();
        const GuardedTensor by_norms = copy_of(original);
        run(by_norms, how, 2);
        EXPECT_EQ(values_of(by_norms.view()),
                  pruned_n_m(before, shape, how.method, values_of(norms.view())));
      }
    }
  }
}

TEST(PruneNM, KeepsTheLargestOfEachGroup) {
  const GuardedTensor w = tensor_of(DType::f16, {1, 11}, {4, -3, 2, 1, 1, 1, 1, 1, 0, -7, 6});
  run(w, settings("2:4"));
  EXPECT_EQ(values_of(w.view()), (std::vector<double>{4, -3, 0, 0, 0, 0, 1, 1, 0, -7, 6}));
  const GuardedTensor short_row = tensor_of(DType::f16, {2, 1}, {1, 2});
  run(short_row, settings("2:4"));
  EXPECT_EQ(values_of(short_row.view()), (std::vector<double>{1, 2}));
}

TEST(Prune, AlreadySparseEnough) {
  Random random(kSeed);
  const GuardedTensor norms = random.tensor(DType::f32, {65}, Layout::contiguous, 0, 9);
  for (DType dtype : kDTypes) {
    for (const char* method : {"magnitude", "random", "wanda"}) {
      for (PruneScope scope : {PruneScope::row, PruneScope::matrix}) {
        if (method == std::string("wanda") && scope == PruneScope::matrix) {
          continue;
        }
        const GuardedTensor w = random.tensor(dtype, {127, 65}, Layout::contiguous, 1, 2);
        PruneSettings how = settings(method, 0.6, scope);
        how.norms = norms.view();
        run(w, how);
        const GuardedTensor once = copy_of(w);
        for (double sparsity : {0.0, 0.3, 0.6}) {
          how.sparsity = sparsity;
          how.seed = 77;  // another choice
          run(w, how, 2);
          EXPECT_TRUE(same_bits(w.view(), once.view())) << method << " " << sparsity;
        }
      }
    }
  }
}

TEST(Prune, KeptBitsStayAndChosenOnesAreZero) {
  Random random(kSeed);
  for (const char* method : {"magnitude", "random", "2:4"}) {
    const GuardedTensor original = random.tensor(DType::bf16, {31, 33});
    const GuardedTensor w = copy_of(original);
    run(w, settings(method, 0.5));
    const std::vector<std::byte> before = testing::bytes_of(original.view());
    const std::vector<std::byte> after = testing::bytes_of(w.view());
    for (size_t i = 0; i < after.size(); i += 2) {
      uint16_t bits = 0;
      std::memcpy(&bits, &after[i], 2);
      EXPECT_TRUE(bits == 0 || std::memcmp(&after[i], &before[i], 2) == 0);
    }
  }
}

TEST(Prune, NoneAndEmpty) {
  const GuardedTensor w = tensor_of(DType::f32, {2, 2}, {1, kNan, 0, 4});
  const GuardedTensor original = copy_of(w);
  run(w, settings("none", 0.9));
  EXPECT_TRUE(same_bits(w.view(), original.view()));
  for (Shape shape : {Shape{0, 5}, Shape{5, 0}, Shape{0, 0}}) {
    for (const char* method : {"magnitude", "random", "2:4"}) {
      run(GuardedTensor(DType::f16, {shape.rows, shape.columns}), settings(method, 0.5), 2);
    }
    run(GuardedTensor(DType::f16, {shape.rows, shape.columns}),
        settings("magnitude", 0.5, PruneScope::matrix), 2);
  }
}

TEST(Prune, InfinityIsTheLargestScore) {
  for (DType dtype : kDTypes) {
    for (const char* method : {"magnitude", "wanda", "1:4"}) {
      const GuardedTensor w = tensor_of(dtype, {1, 4}, {1, -kInfinity, 3, 2});
      const GuardedTensor norms = norms_of({1, 1, 1, 1});
      PruneSettings how = settings(method, 0.75);
      how.norms = norms.view();
      run(w, how);
      EXPECT_EQ(values_of(w.view()), (std::vector<double>{0, -kInfinity, 0, 0}));
    }
  }
  const GuardedTensor w = tensor_of(DType::f16, {1, 3}, {1, 0, 100});
  const GuardedTensor norms = norms_of({kInfinity, kInfinity, 1});
  PruneSettings how = settings("wanda", 2.0 / 3);
  how.norms = norms.view();
  run(w, how);
  EXPECT_EQ(values_of(w.view()), (std::vector<double>{1, 0, 0}));
}

TEST(Prune, NanIsAnErrorAndChangesNothing) {
  Random random(kSeed);
  const GuardedTensor norms = random.tensor(DType::f32, {65}, Layout::contiguous, 1, 9);
  for (DType dtype : kDTypes) {
    for (const char* method : {"magnitude", "random", "wanda", "2:4"}) {
      for (double nan : {kNan, -kNan}) {
        for (int threads : {1, 4}) {
          const GuardedTensor w = random.tensor(dtype, {1270, 65});
          std::vector<double> values = values_of(w.view());
          values[403 * 65 + 64] = nan;
          values[1200 * 65] = nan;
          set_values(w.view(), values);
          const GuardedTensor original = copy_of(w);
          PruneSettings how = settings(method, 0.5);
          how.norms = norms.view();
          ThreadPool pool(threads);
          EXPECT_TRUE(throws_error([&] { prune(w.view(), how, pool); },
                                   "the weight in row 403, column 64 is NaN"));
          EXPECT_TRUE(same_bits(w.view(), original.view()));
        }
      }
    }
  }
}

TEST(Prune, WrongNorms) {
  ThreadPool pool(1);
  const GuardedTensor w = tensor_of(DType::f16, {1, 3}, {1, kInfinity, 3});
  const auto error = [&](const Tensor& norms, std::string_view part) {
    for (const char* method : {"wanda", "1:3"}) {
      PruneSettings how = settings(method, 0.5);
      how.norms = norms;
      EXPECT_TRUE(throws_error([&] { prune(w.view(), how, pool); }, part));
    }
  };
  error(norms_of({1, 2, kNan}).view(), "the norm of input 2 is nan");
  error(norms_of({1, -2, 1}).view(), "the norm of input 1 is -2");
  error(norms_of({1, 0, 1}).view(),
        "the weight in row 0, column 1 is inf, but its input's norm is 0");
  error(norms_of({1, 2}).view(), "the norms [2] on cpu of a weight [1, 3]; expected [3] on cpu");
  error(GuardedTensor(DType::f32, {3, 1}).view(), "the norms [3, 1]");
  error(GuardedTensor(DType::f16, {3}).view(), "f16 is used as f32");
  EXPECT_TRUE(throws_error([&] { prune(w.view(), settings("wanda", 0.5), pool); },
                           "pruning by Wanda takes the norms"));
  EXPECT_EQ(values_of(w.view()), (std::vector<double>{1, kInfinity, 3}));
}

TEST(Prune, WrongSettings) {
  ThreadPool pool(1);
  const GuardedTensor w = tensor_of(DType::f16, {1, 3}, {1, 2, 3});
  const auto error = [&](const PruneSettings& how, std::string_view part) {
    EXPECT_TRUE(throws_error([&] { prune(w.view(), how, pool); }, part));
  };
  error(settings("magnitude", -0.01), "the sparsity -0.01 is not in [0, 1]");
  error(settings("random", 1.01), "the sparsity 1.01 is not in [0, 1]");
  error(settings("magnitude", kNan), "the sparsity nan is not in [0, 1]");
  error(settings("wanda", 0.5, PruneScope::matrix), "wanda pruning is per row");
  error(settings("2:4", 0.5, PruneScope::matrix), "2:4 pruning is per row");
  error({.method = {.kind = Kind::n_m}, .norms = {}}, "\"0:0\" keeps 0 of 0");
  error({.method = {.kind = Kind::n_m, .kept = 5, .group = 4}, .norms = {}}, "keeps 5 of 4");
  EXPECT_TRUE(throws_error([&] { prune(norms_of({1}).view(), settings("magnitude"), pool); },
                           "a matrix, not a tensor [1]"));
  EXPECT_TRUE(throws_error(
      [&] {
        prune(GuardedTensor(DType::i32, {1, 1}).view(), settings("magnitude"), pool);
      },
      "expected a floating dtype, got i32"));
  EXPECT_EQ(values_of(w.view()), (std::vector<double>{1, 2, 3}));
}

TEST(PruneMethod, ParsesItsOwnText) {
  for (const char* text : {"none", "magnitude", "random", "wanda", "2:4", "1:1", "63:64"}) {
    EXPECT_EQ(to_string(parse_prune_method(text)), text);
  }
  const PruneMethod method = parse_prune_method("2:4");
  EXPECT_EQ(method.kind, Kind::n_m);
  EXPECT_EQ(method.kept, 2);
  EXPECT_EQ(method.group, 4);
  EXPECT_EQ(parse_prune_method("wanda").kind, Kind::wanda);
}

TEST(PruneMethod, RefusesOthers) {
  for (const char* text : {"", "Wanda", "n_m", "sparsegpt", ":", "2:", ":4", "2:4:8", "a:b", " 2:4",
                           "2:4 ", "+2:4", "-2:4", "2:-4", "2.0:4", "2:99999999999", "0x2:4"}) {
    EXPECT_TRUE(throws_error([&] { parse_prune_method(text); },
                             "is not known; use none, magnitude, random, wanda or N:M"))
        << text;
  }
  for (const char* text : {"0:4", "5:4", "2:65", "0:0"}) {
    EXPECT_TRUE(throws_error([&] { parse_prune_method(text); }, "N:M needs 1 <= N <= M <= 64"))
        << text;
  }
}

}  // namespace
}  // namespace sparsellm
