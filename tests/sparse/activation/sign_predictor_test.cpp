#include "sparse/activation/sign_predictor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One operation after the other, as the header has it.
float sum_in_pairs(const std::vector<float>& values, size_t begin, size_t count) {
  if (count == 1) {
    return begin < values.size() ? values[begin] : 0.0f;
  }
  return sum_in_pairs(values, begin, count / 2) +
         sum_in_pairs(values, begin + count / 2, count / 2);
}

// What each element of a token counts.
std::vector<int> counts_of(const std::vector<float>& x, Votes votes) {
  std::vector<float> squares;
  for (float value : x) {
    squares.push_back(value * value);
  }
  const float sum = sum_in_pairs(squares, 0, std::bit_ceil(x.size()));
  const float c = 5.0f / std::sqrt(sum / static_cast<float>(x.size()));
  const bool has_votes = votes == Votes::sign
                             ? std::ranges::all_of(x, [](float v) { return std::isfinite(v); })
                             : c > 0.0f && c < kInfinity;
  std::vector<int> counts;
  for (float value : x) {
    int count = 0;
    if (has_votes && value != 0.0f) {
      const float scaled = std::abs(value) * c;
      count = votes == Votes::sign ? 1 : static_cast<int>(std::nearbyint(std::min(scaled, 15.0f)));
    }
    counts.push_back(count);
  }
  return counts;
}

struct Sums {
  std::vector<double> negative;
  std::vector<double> positive;
};

Sums reference(const Tensor& x, const Tensor& w, Votes votes) {
  const std::vector<double> xs = values_of(x);
  const std::vector<double> ws = values_of(w);
  const auto columns = static_cast<size_t>(w.size(1));
  Sums sums;
  for (int64_t t = 0; t < x.size(0); ++t) {
    const size_t from = static_cast<size_t>(t) * columns;
    const std::vector<float> token(xs.begin() + static_cast<int64_t>(from),
                                   xs.begin() + static_cast<int64_t>(from + columns));
    const std::vector<int> counts = counts_of(token, votes);
    for (int64_t i = 0; i < w.size(0); ++i) {
      double negative = 0.0;
      double positive = 0.0;
      for (size_t j = 0; j < columns; ++j) {
        const double weight = ws[static_cast<size_t>(i) * columns + j];
        const double product = std::copysign(1.0, weight) * std::copysign(1.0, token[j]);
        if (weight != 0.0) {
          (product < 0.0 ? negative : positive) += counts[j];
        }
      }
      sums.negative.push_back(negative);
      sums.positive.push_back(positive);
    }
  }
  return sums;
}

std::vector<double> active_of(const Sums& sums, float alpha) {
  std::vector<double> active;
  for (size_t i = 0; i < sums.negative.size(); ++i) {
    const float weighted = alpha * static_cast<float>(sums.positive[i]);
    active.push_back(weighted < static_cast<float>(sums.negative[i]) ? 0.0 : 1.0);
  }
  return active;
}

// With zeros in a third of the places, or none, and a few large elements.
GuardedTensor random_values(Random& random, DType dtype, int64_t rows, int64_t columns,
                            bool has_zeros, Layout layout = Layout::contiguous) {
  std::vector<double> values;
  for (int64_t i = 0; i < rows * columns; ++i) {
    const double value = std::pow(random.uniform(-1.0, 1.0), 3.0);
    const bool is_zero = has_zeros && random.below(3) == 0;
    values.push_back(is_zero ? std::copysign(0.0, value) : value == 0.0 ? 0.5 : value);
  }
  GuardedTensor tensor(dtype, {rows, columns}, layout);
  set_values(tensor.view(), values);
  return tensor;
}

std::vector<CpuIsa> isas() {
  std::vector<CpuIsa> all;
  for (CpuIsa isa : {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_vbmi2}) {
    if (isa <= best_cpu_isa()) {
      all.push_back(isa);
    }
  }
  return all;
}

TEST(SignPredictor, VotesAndPredictionsAreThoseOfTheFormulas) {
  Random random(21);
  CpuContext one(1);
  CpuContext three(3);
  int64_t combination = 0;
  for (int64_t columns : {1, 31, 33, 70, 256, 1000}) {
    for (int64_t rows : {1, 3, 17, 130}) {
      for (int64_t tokens : {1, 3, 17, 40}) {
        if (rows * tokens * columns > 200'000) {
          continue;
        }
        ++combination;
        const Layout layout = combination % 3 == 0 ? Layout::strided : Layout::contiguous;
        const bool has_zeros = combination % 2 == 0;
        const Votes votes = combination / 2 % 2 == 0 ? Votes::sign : Votes::weighted;
        CpuContext& cpu = combination % 5 < 2 ? one : three;
        SCOPED_TRACE(fmt::format("{} tokens, [{}, {}], {}", tokens, rows, columns,
                                 votes == Votes::sign ? "sign" : "weighted"));
        const GuardedTensor x =
            random_values(random, DType::f32, tokens, columns, combination % 4 == 1, layout);
        const GuardedTensor w = random_values(random, DType::f16, rows, columns, has_zeros);
        const OwnedSignWords words = pack_sign_words(w.view(), cpu.threads);
        const Sums expected = reference(x.view(), w.view(), votes);
        for (CpuIsa isa : isas()) {
          SCOPED_TRACE(name_of(isa));
          cpu.exec.isa = isa;
          const GuardedTensor negative(DType::i32, {tokens, rows}, layout);
          const GuardedTensor positive(DType::i32, {tokens, rows}, layout);
          count_votes(x.view(), words.view(), votes, negative.view(), positive.view(), cpu.exec);
          EXPECT_EQ(values_of(negative.view()), expected.negative);
          EXPECT_EQ(values_of(positive.view()), expected.positive);
          EXPECT_TRUE(negative.guards_intact());
          for (float alpha : {0.9f, 1.0f, 1.03f}) {
            const GuardedTensor active(DType::u8, {tokens, rows}, layout);
            predict_active(x.view(), words.view(), {votes, alpha}, active.view(), cpu.exec);
            EXPECT_EQ(values_of(active.view()), active_of(expected, alpha)) << alpha;
            EXPECT_TRUE(active.guards_intact());
          }
        }
      }
    }
  }
}

// By the formula, in double: a fixed seed of which no vote lies next to a half.
TEST(SignPredictor, AVoteCountsItsMagnitudeIn4Bits) {
  Random random(22);
  CpuContext cpu;
  constexpr int64_t kColumns = 300;
  const GuardedTensor x = random_values(random, DType::f32, 1, kColumns, true);
  const std::vector<double> values = values_of(x.view());
  double squares = 0.0;
  for (double value : values) {
    squares += value * value;
  }
  const double rms = std::sqrt(squares / kColumns);
  // A weight for each element, which is its only one.
  std::vector<double> diagonal(kColumns * kColumns, 0.0);
  std::vector<double> expected;
  for (int64_t j = 0; j < kColumns; ++j) {
    diagonal[static_cast<size_t>(j * kColumns + j)] = 1.0;
    const double scaled = std::abs(values[static_cast<size_t>(j)]) * 15.0 / (3.0 * rms);
    ASSERT_GT(std::abs(scaled - std::floor(scaled) - 0.5), 1e-5);
    expected.push_back(std::min(15.0, std::round(scaled)));
  }
  const GuardedTensor w(DType::f32, {kColumns, kColumns});
  set_values(w.view(), diagonal);
  const OwnedSignWords words = pack_sign_words(w.view(), cpu.threads);
  const GuardedTensor negative(DType::i32, {1, kColumns});
  const GuardedTensor positive(DType::i32, {1, kColumns});
  count_votes(x.view(), words.view(), Votes::weighted, negative.view(), positive.view(), cpu.exec);
  const std::vector<double> n = values_of(negative.view());
  const std::vector<double> p = values_of(positive.view());
  for (size_t j = 0; j < expected.size(); ++j) {
    EXPECT_EQ(values[j] < 0.0 ? n[j] : p[j], expected[j]) << values[j];
    EXPECT_EQ(values[j] < 0.0 ? p[j] : n[j], 0.0);
  }
  EXPECT_EQ(*std::ranges::max_element(expected), 15.0);
  EXPECT_EQ(*std::ranges::min_element(expected), 0.0);
}

// Magnitudes next to halves, so that a vote turns over with the last bits of c: with those of the
// sum of the squares, in any other order.
TEST(SignPredictor, TheOrderOfTheSumIsThatOfTheHeader) {
  Random random(26);
  CpuContext cpu;
  for (int64_t columns : {2, 31, 33, 70, 256, 1000, 1024}) {
    const GuardedTensor w(DType::f32, {1, columns});
    set_values(w.view(), std::vector<double>(static_cast<size_t>(columns), 1.0));
    const OwnedSignWords words = pack_sign_words(w.view(), cpu.threads);
    for (int i = 0; i < 50; ++i) {
      std::vector<double> values;
      double squares = 0.0;
      for (int64_t j = 0; j + 1 < columns; ++j) {
        const double half = static_cast<double>(random.below(6)) + 0.5;
        values.push_back(half * (1.0 + random.uniform(-2e-7, 2e-7)));
        squares += values.back() * values.back();
      }
      values.push_back(std::sqrt(25.0 * static_cast<double>(columns) - squares));  // the RMS is 5
      const GuardedTensor x(DType::f32, {1, columns});
      set_values(x.view(), values);
      const GuardedTensor negative(DType::i32, {1, 1});
      const GuardedTensor positive(DType::i32, {1, 1});
      count_votes(x.view(), words.view(), Votes::weighted, negative.view(), positive.view(),
                  cpu.exec);
      const float* const stored = x.view().row<float>(0);
      const std::vector<int> counts = counts_of({stored, stored + columns}, Votes::weighted);
      EXPECT_EQ(*positive.view().row<int32_t>(0), std::accumulate(counts.begin(), counts.end(), 0))
          << columns;
    }
  }
}

// Three votes for a negative sum and two for a positive one. The tie is not skipped.
TEST(SignPredictor, SkipsIfAlphaTimesPositiveIsBelowNegative) {
  CpuContext cpu;
  const GuardedTensor x(DType::f32, {1, 6});
  set_values(x.view(), std::vector<double>{1.0, -2.0, 3.0, -4.0, 5.0, 0.0});
  const GuardedTensor w(DType::f32, {1, 6});
  set_values(w.view(), std::vector<double>{-1.0, 1.0, -1.0, -1.0, 1.0, -1.0});
  const OwnedSignWords words = pack_sign_words(w.view(), cpu.threads);
  const GuardedTensor negative(DType::i32, {1, 1});
  const GuardedTensor positive(DType::i32, {1, 1});
  count_votes(x.view(), words.view(), Votes::sign, negative.view(), positive.view(), cpu.exec);
  EXPECT_EQ(values_of(negative.view()), std::vector<double>{3.0});
  EXPECT_EQ(values_of(positive.view()), std::vector<double>{2.0});
  for (const auto& [alpha, is_active] :
       {std::pair{1.0f, 0.0}, {1.49f, 0.0}, {1.5f, 1.0}, {2.0f, 1.0}}) {
    const GuardedTensor active(DType::u8, {1, 1});
    predict_active(x.view(), words.view(), {Votes::sign, alpha}, active.view(), cpu.exec);
    EXPECT_EQ(values_of(active.view()), std::vector<double>{is_active}) << alpha;
  }
}

TEST(SignPredictor, NobodyVotesWhereThereIsNoScale) {
  Random random(23);
  CpuContext cpu(2);
  constexpr int64_t kColumns = 70;
  const GuardedTensor w = random_values(random, DType::bf16, 17, kColumns, true);
  const OwnedSignWords words = pack_sign_words(w.view(), cpu.threads);
  const auto prediction = [&](const std::vector<double>& values, Votes votes) {
    const GuardedTensor x(DType::f32, {1, kColumns});
    set_values(x.view(), values);
    const GuardedTensor active(DType::u8, {1, 17});
    predict_active(x.view(), words.view(), {votes, 1e-3f}, active.view(), cpu.exec);
    return values_of(active.view());
  };
  const std::vector<double> all(17, 1.0);
  for (Votes votes : {Votes::sign, Votes::weighted}) {
    std::vector<double> values(kColumns, -0.25);
    EXPECT_NE(prediction(values, votes), all);
    // Squares beyond f32, or too small for it, matter where there is a scale.
    const bool has_scale = votes == Votes::weighted;
    for (double special : {std::nan(""), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity(), 1e30}) {
      for (size_t place : {size_t{0}, values.size() - 1}) {
        std::vector<double> with = values;
        with[place] = special;
        EXPECT_EQ(prediction(with, votes) == all, has_scale || special != 1e30) << special;
      }
    }
    EXPECT_EQ(prediction(std::vector<double>(kColumns, 0.0), votes), all);
    EXPECT_EQ(prediction(std::vector<double>(kColumns, -1e-30), votes) == all, has_scale);
    EXPECT_NE(prediction(std::vector<double>(kColumns, -1e-18), votes), all);
    EXPECT_NE(prediction(std::vector<double>(kColumns, -1e18), votes), all);
  }
}

TEST(SignPredictor, RowsOfARangeOfNeurons) {
  Random random(24);
  CpuContext cpu(2);
  const GuardedTensor x = random_values(random, DType::f32, 3, 100, false);
  const GuardedTensor w = random_values(random, DType::f16, 131, 100, true);
  const OwnedSignWords words = pack_sign_words(w.view(), cpu.threads);
  const GuardedTensor whole(DType::u8, {3, 131});
  const GuardedTensor halves(DType::u8, {3, 131});
  predict_active(x.view(), words.view(), {}, whole.view(), cpu.exec);
  for (const Range& range : {Range{0, 65}, Range{65, 66}}) {
    predict_active(x.view(), words.view().slice(range), {},
                   halves.view().columns(range.begin, range.count), cpu.exec);
  }
  EXPECT_TRUE(same_bits(halves.view(), whole.view()));
}

TEST(SignPredictor, TakesTheWorkspaceThatItSays) {
  Random random(25);
  for (int64_t tokens : {1, 31, 33}) {
    CpuContext cpu(1, sign_predictor_workspace_bytes({}, 70, tokens));
    const GuardedTensor x = random_values(random, DType::f32, tokens, 70, false);
    const GuardedTensor w = random_values(random, DType::f16, 3, 70, false);
    const OwnedSignWords words = pack_sign_words(w.view(), cpu.threads);
    const GuardedTensor active(DType::u8, {tokens, 3});
    predict_active(x.view(), words.view(), {}, active.view(), cpu.exec);
    EXPECT_EQ(cpu.workspace.peak_bytes(), cpu.workspace.bytes());
  }
}

TEST(SignPredictor, ErrorsNameWhatDoesNotFit) {
  CpuContext cpu;
  const GuardedTensor w(DType::f16, {5, 40});
  const OwnedSignWords words = pack_sign_words(w.view(), cpu.threads);
  const GuardedTensor x(DType::f32, {2, 40});
  const GuardedTensor active(DType::u8, {2, 5});
  const GuardedTensor votes(DType::i32, {2, 5});
  const auto predict = [&](const Tensor& a, float alpha, const Tensor& to) {
    predict_active(a, words.view(), {Votes::sign, alpha}, to, cpu.exec);
  };
  EXPECT_TRUE(throws_error([&] { predict(x.view().columns(0, 39), 1.0f, active.view()); },
                           "predict_active: x is f32 [2, 39] on cpu; expected f32 [*, 40]"));
  EXPECT_TRUE(throws_error([&] { predict(x.view(), 1.0f, votes.view()); },
                           "active is i32 [2, 5] on cpu; expected u8 [2, 5]"));
  for (float alpha : {0.0f, -1.0f, kInfinity, std::nanf("")}) {
    EXPECT_TRUE(throws_error([&] { predict(x.view(), alpha, active.view()); },
                             "expected a finite number above 0"));
  }
  EXPECT_TRUE(throws_error(
      [&] {
        count_votes(x.view(), words.view(), Votes::sign, votes.view(), votes.view(), cpu.exec);
      },
      "negative and positive overlap"));
  SignWords wide = words.view();
  wide.columns = 33;
  EXPECT_NO_THROW(predict_active(x.view().columns(0, 33), wide, {}, active.view(), cpu.exec));
  wide.columns = 65;
  EXPECT_TRUE(throws_error(
      [&] {
        const GuardedTensor longer(DType::f32, {2, 65});
        predict_active(longer.view(), wide, {}, active.view(), cpu.exec);
      },
      "signs is u32 [5, 2] on cpu; expected u32 [*, 3]"));
}

TEST(SignPredictor, TooManyColumns) {
  CpuContext cpu;
  constexpr int64_t kColumns = (1 << 20) + 1;
  const GuardedTensor x(DType::f32, {1, kColumns});
  const OwnedSignWords words =
      pack_sign_words(GuardedTensor(DType::f16, {1, kColumns}).view(), cpu.threads);
  const GuardedTensor active(DType::u8, {1, 1});
  EXPECT_TRUE(
      throws_error([&] { predict_active(x.view(), words.view(), {}, active.view(), cpu.exec); },
                   "votes of 1048577 columns; at most 1048576"));
}

}  // namespace
}  // namespace sparsellm
