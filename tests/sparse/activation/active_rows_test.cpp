// Only rows of neurons that are not zero are read, and what comes out has the bits of dense
// products.

#include "sparse/activation/active_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/cpu/transpose.h"
#include "kernels/gemm.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Kind = Activation::Kind;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr Activation kRelu{Kind::relu, 0.0f};
constexpr Activation kFatRelu{Kind::fatrelu, 0.125f};

// A share of ones, as the mask of an op.
GuardedTensor random_mask(Random& random, int64_t tokens, int64_t neurons, double share,
                          Layout layout) {
  std::vector<double> flags;
  for (int64_t i = 0; i < tokens * neurons; ++i) {
    flags.push_back(random.uniform(0.0, 1.0) < share ? 1.0 : 0.0);
  }
  GuardedTensor mask(DType::u8, {tokens, neurons}, layout);
  set_values(mask.view(), flags);
  return mask;
}

void set_rows(const Tensor& w, const std::vector<bool>& which, double value) {
  std::vector<double> values = values_of(w);
  for (int64_t row = 0; row < w.size(0); ++row) {
    if (which[static_cast<size_t>(row)]) {
      std::fill_n(values.begin() + row * w.size(1), w.size(1), value);
    }
  }
  set_values(w, values);
}

class ActiveRows : public ::testing::TestWithParam<std::tuple<CpuIsa, DType>> {
 protected:
  void SetUp() override {
    if (isa() > best_cpu_isa()) {
      GTEST_SKIP() << "this CPU has no " << name_of(isa());
    }
    one.exec.isa = isa();
    three.exec.isa = isa();
  }
  static CpuIsa isa() { return std::get<0>(GetParam()); }
  static DType dtype() { return std::get<1>(GetParam()); }

  CpuContext one{1, 8 << 20};
  CpuContext three{3, 8 << 20};
};

INSTANTIATE_TEST_SUITE_P(AllIsas, ActiveRows,
                         ::testing::Combine(::testing::Values(CpuIsa::portable, CpuIsa::avx2,
                                                              CpuIsa::avx512),
                                            ::testing::Values(DType::f32, DType::f16, DType::bf16)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_" +
                                  std::string(name_of(std::get<1>(test.param)));
                         });

// h of a dense product, with zeros where the mask has them.
void keep_active(const Tensor& h, const Tensor& active) {
  std::vector<double> values = values_of(h);
  const std::vector<double> flags = values_of(active);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = flags[i] != 0.0 ? values[i] : 0.0;
  }
  set_values(h, values);
}

// A zero has one sign in rows, either in products.
void drop_signs_of_zeros(const Tensor& h) {
  std::vector<double> values = values_of(h);
  for (double& value : values) {
    value = value == 0.0 ? 0.0 : value;
  }
  set_values(h, values);
}

TEST_P(ActiveRows, FirstLayersHaveTheBitsOfDenseOnes) {
  Random random(31);
  int64_t combination = 0;
  for (int64_t in : {1, 31, 33, 70, 256, 1030}) {
    for (int64_t neurons : {1, 3, 17, 130}) {
      for (int64_t tokens : {1, 3, 17}) {
        if (tokens * neurons * in > 300'000) {
          continue;
        }
        SCOPED_TRACE(fmt::format("{} tokens, {} neurons, {} inputs", tokens, neurons, in));
        ++combination;
        CpuContext& cpu = combination % 2 == 0 ? one : three;
        const Layout layout = combination % 3 == 0 ? Layout::strided : Layout::contiguous;
        const Activation activation = combination % 5 < 3 ? kRelu : kFatRelu;
        const bool relu_up = combination % 11 < 4;  // as part of the joined product
        const double share = combination % 4 * (1.0 / 3.0);
        const GuardedTensor x = random.tensor(DType::f32, {tokens, in}, layout);
        const GuardedTensor joined = random.tensor(dtype(), {2 * neurons, in}, layout);
        const GuardedTensor biases = random.tensor(DType::bf16, {2 * neurons});
        const bool has_bias = combination % 7 < 4;
        const Tensor bias = has_bias ? biases.view() : Tensor();
        const auto bias_of = [&](int64_t begin) {
          return has_bias ? bias.rows(begin, neurons) : Tensor();
        };
        const GuardedTensor active = random_mask(random, tokens, neurons, share, layout);
        const DenseRows gate(joined.view().rows(0, neurons));
        const DenseRows up(joined.view().rows(neurons, neurons));

        const GuardedTensor both(DType::f32, {tokens, 2 * neurons});
        const GuardedTensor expected(DType::f32, {tokens, neurons});
        gemm(x.view(), joined.view(), {.bias = bias, .activation = relu_up ? kRelu : Activation()},
             both.view(), cpu.exec);
        activate_gated(activation, both.view(), expected.view(), cpu.exec);
        drop_signs_of_zeros(expected.view());

        const GatedRows gated{gate, up, bias_of(0), bias_of(neurons), activation, relu_up};
        const GuardedTensor h(DType::f32, {tokens, neurons}, layout);
        gated_rows(x.view(), gated, {}, h.view(), cpu.exec);
        drop_signs_of_zeros(h.view());
        EXPECT_TRUE(same_bits(h.view(), expected.view()));

        // From gates before and after the activation, and in place.
        const GuardedTensor g(DType::f32, {tokens, neurons}, layout);
        const UpRows ups{up, bias_of(neurons), activation, relu_up};
        set_values(g.view(), values_of(both.view().columns(0, neurons)));
        up_rows(x.view(), ups, g.view(), h.view(), cpu.exec);
        drop_signs_of_zeros(h.view());
        EXPECT_TRUE(same_bits(h.view(), expected.view()));
        activate(activation, g.view(), cpu.exec);
        up_rows(x.view(), ups, g.view(), g.view(), cpu.exec);
        drop_signs_of_zeros(g.view());
        EXPECT_TRUE(same_bits(g.view(), expected.view()));

        keep_active(expected.view(), active.view());
        gated_rows(x.view(), gated, active.view(), h.view(), cpu.exec);
        drop_signs_of_zeros(h.view());
        EXPECT_TRUE(same_bits(h.view(), expected.view()));
        EXPECT_TRUE(h.guards_intact());
        EXPECT_TRUE(g.guards_intact());

        gemm(x.view(), up.weight(), {.bias = bias_of(neurons), .activation = activation},
             expected.view(), cpu.exec);
        const PlainRows plain{up, bias_of(neurons), activation};
        plain_rows(x.view(), plain, {}, h.view(), cpu.exec);
        EXPECT_TRUE(same_bits(h.view(), expected.view()));
        keep_active(expected.view(), active.view());
        plain_rows(x.view(), plain, active.view(), h.view(), cpu.exec);
        EXPECT_TRUE(same_bits(h.view(), expected.view()));
        EXPECT_TRUE(h.guards_intact());
      }
    }
  }
}

TEST_P(ActiveRows, DownHasTheBitsOfGemm) {
  Random random(32);
  int64_t combination = 0;
  for (int64_t neurons : {1, 3, 17, 130, 1024, 1025, 2100}) {
    for (int64_t out : {1, 3, 33, 70, 520}) {
      for (int64_t tokens : {1, 3, 17}) {
        if (tokens * neurons * out > 400'000) {
          continue;
        }
        ++combination;
        const Layout layout = combination % 3 == 0 ? Layout::strided : Layout::contiguous;
        const GuardedTensor w = random.tensor(dtype(), {out, neurons});
        const GuardedTensor wt(dtype(), {neurons, out}, layout);
        transpose(w.view(), wt.view(), one.threads);
        const GuardedTensor biases = random.tensor(DType::f16, {out});
        const Tensor bias = combination % 2 == 0 ? biases.view() : Tensor();
        for (double share : {0.0, 0.01, 0.1, 0.5, 1.0}) {
          SCOPED_TRACE(
              fmt::format("{} tokens, {} neurons, {} outputs, {}", tokens, neurons, out, share));
          CpuContext& cpu = share == 0.1 ? one : three;
          const GuardedTensor h = random.tensor(DType::f32, {tokens, neurons}, layout);
          keep_active(h.view(), random_mask(random, tokens, neurons, share, {}).view());
          const GuardedTensor expected(DType::f32, {tokens, out});
          const GuardedTensor y(DType::f32, {tokens, out}, layout);
          gemm(h.view(), w.view(), {.bias = bias, .activation = {}}, expected.view(), cpu.exec);
          down_rows(h.view(), DenseRows(wt.view()), bias, y.view(), cpu.exec);
          EXPECT_TRUE(same_bits(y.view(), expected.view()));
          EXPECT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

// Rows that need not be read are NaN.
TEST_P(ActiveRows, RowsOfOtherNeuronsAreNotRead) {
  Random random(33);
  constexpr int64_t kTokens = 3;
  constexpr int64_t kNeurons = 130;
  constexpr int64_t kIn = 70;
  const GuardedTensor x = random.tensor(DType::f32, {kTokens, kIn});
  const GuardedTensor gate = random.tensor(dtype(), {kNeurons, kIn});
  const GuardedTensor up = random.tensor(dtype(), {kNeurons, kIn});
  const GuardedTensor wt = random.tensor(dtype(), {kNeurons, kIn});
  const GuardedTensor active = random_mask(random, kTokens, kNeurons, 0.2, Layout::contiguous);
  const GatedRows rows{DenseRows(gate.view()), DenseRows(up.view()), {}, {}, kRelu};
  const GuardedTensor h(DType::f32, {kTokens, kNeurons});
  const GuardedTensor expected(DType::f32, {kTokens, kNeurons});
  const GuardedTensor y(DType::f32, {kTokens, kIn});
  const GuardedTensor expected_y(DType::f32, {kTokens, kIn});
  gated_rows(x.view(), rows, active.view(), expected.view(), one.exec);
  down_rows(expected.view(), DenseRows(wt.view()), {}, expected_y.view(), one.exec);

  std::vector<bool> predicted_zero(kNeurons, true);
  std::vector<bool> zero(kNeurons, true);
  const std::vector<double> flags = values_of(active.view());
  const std::vector<double> values = values_of(expected.view());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t neuron = i % kNeurons;
    predicted_zero[neuron] = predicted_zero[neuron] && flags[i] == 0.0;
    zero[neuron] = zero[neuron] && values[i] == 0.0;
  }
  ASSERT_NE(predicted_zero, zero);
  set_rows(gate.view(), predicted_zero, kNan);
  set_rows(up.view(), zero, kNan);
  set_rows(wt.view(), zero, kNan);
  for (CpuContext* cpu : {&one, &three}) {
    gated_rows(x.view(), rows, active.view(), h.view(), cpu->exec);
    EXPECT_TRUE(same_bits(h.view(), expected.view()));
    down_rows(h.view(), DenseRows(wt.view()), {}, y.view(), cpu->exec);
    EXPECT_TRUE(same_bits(y.view(), expected_y.view()));
  }
}

// In double, from the formulas of an MLP.
struct Layer {
  Tensor x, gate, up, wt, gate_bias, up_bias, bias;
};
Expected reference(const Layer& layer, const std::vector<double>& flags) {
  const auto at = [](const std::vector<double>& m, int64_t row, int64_t columns, int64_t column) {
    return m[static_cast<size_t>(row * columns + column)];
  };
  const std::vector<double> x = values_of(layer.x), gate = values_of(layer.gate),
                            up = values_of(layer.up), wt = values_of(layer.wt),
                            gate_bias = values_of(layer.gate_bias),
                            up_bias = values_of(layer.up_bias), bias = values_of(layer.bias);
  const int64_t in = layer.x.size(1);
  const int64_t neurons = layer.gate.size(0);
  const int64_t out = layer.wt.size(1);
  Expected result;
  for (int64_t t = 0; t < layer.x.size(0); ++t) {
    std::vector<double> h;
    std::vector<double> magnitudes;
    for (int64_t i = 0; i < neurons; ++i) {
      double g = gate_bias[static_cast<size_t>(i)];
      double u = up_bias[static_cast<size_t>(i)];
      double g_magnitude = std::abs(g);
      double u_magnitude = std::abs(u);
      for (int64_t j = 0; j < in; ++j) {
        const double element = at(x, t, in, j);
        g += at(gate, i, in, j) * element;
        u += at(up, i, in, j) * element;
        g_magnitude += std::abs(at(gate, i, in, j) * element);
        u_magnitude += std::abs(at(up, i, in, j) * element);
      }
      const bool is_active = at(flags, t, neurons, i) != 0.0;
      h.push_back(is_active && g > 0.0 ? g * u : 0.0);
      magnitudes.push_back(is_active ? g_magnitude * u_magnitude : 0.0);
    }
    for (int64_t o = 0; o < out; ++o) {
      double y = bias[static_cast<size_t>(o)];
      double magnitude = std::abs(y);
      for (int64_t i = 0; i < neurons; ++i) {
        y += h[static_cast<size_t>(i)] * at(wt, i, out, o);
        magnitude += magnitudes[static_cast<size_t>(i)] * std::abs(at(wt, i, out, o));
      }
      result.values.push_back(y);
      result.magnitudes.push_back(magnitude);
    }
  }
  return result;
}

TEST_P(ActiveRows, AnMlpIsThatOfTheFormulasAndItsHalvesAddUp) {
  Random random(34);
  for (const auto& [neurons, in] : {std::pair<int64_t, int64_t>{17, 33}, {130, 70}, {35, 256}}) {
    constexpr int64_t kTokens = 3;
    const GuardedTensor x = random.tensor(DType::f32, {kTokens, in});
    const GuardedTensor joined = random.tensor(dtype(), {2 * neurons, in});
    const GuardedTensor wt = random.tensor(dtype(), {neurons, in});
    const GuardedTensor biases = random.tensor(DType::f32, {2 * neurons});
    const GuardedTensor bias = random.tensor(DType::f32, {in});
    const GuardedTensor active = random_mask(random, kTokens, neurons, 0.6, Layout::contiguous);
    const Layer layer{.x = x.view(),
                      .gate = joined.view().rows(0, neurons),
                      .up = joined.view().rows(neurons, neurons),
                      .wt = wt.view(),
                      .gate_bias = biases.view().rows(0, neurons),
                      .up_bias = biases.view().rows(neurons, neurons),
                      .bias = bias.view()};
    const auto forward = [&](int64_t begin, int64_t count, const Tensor& add, const Tensor& y) {
      const DenseRows gate(layer.gate.rows(begin, count));
      const DenseRows up(layer.up.rows(begin, count));
      const GuardedTensor h(DType::f32, {kTokens, count});
      gated_rows(
          x.view(),
          {gate, up, layer.gate_bias.rows(begin, count), layer.up_bias.rows(begin, count), kRelu},
          active.view().columns(begin, count), h.view(), three.exec);
      down_rows(h.view(), DenseRows(wt.view().rows(begin, count)), add, y, three.exec);
    };
    const GuardedTensor y(DType::f32, {kTokens, in});
    const GuardedTensor other(DType::f32, {kTokens, in});
    const Expected expected = reference(layer, values_of(active.view()));
    forward(0, neurons, bias.view(), y.view());
    EXPECT_TRUE(all_close(y.view(), expected, 2.0));
    const int64_t half = neurons / 2;
    forward(0, half, bias.view(), y.view());
    forward(half, neurons - half, {}, other.view());
    std::vector<double> sums = values_of(y.view());
    const std::vector<double> more = values_of(other.view());
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] += more[i];
    }
    set_values(y.view(), sums);
    EXPECT_TRUE(all_close(y.view(), expected, 2.0));
  }
}

TEST_P(ActiveRows, NanIsNotZero) {
  Random random(35);
  constexpr int64_t kNeurons = 33;
  const GuardedTensor x = random.tensor(DType::f32, {2, 40});
  const GuardedTensor gate = random.tensor(dtype(), {kNeurons, 40}, Layout::contiguous, 0.1, 1.0);
  const DenseRows rows(gate.view());
  const GuardedTensor h(DType::f32, {2, kNeurons});
  const GuardedTensor y(DType::f32, {2, 40});
  for (const Activation& activation : {kRelu, kFatRelu}) {
    for (double special : {kNan, std::numeric_limits<double>::infinity()}) {
      std::vector<double> values(80, 0.5);
      values[45] = special;  // of the second token
      set_values(x.view(), values);
      gated_rows(x.view(), {rows, rows, {}, {}, activation}, {}, h.view(), one.exec);
      down_rows(h.view(), rows, {}, y.view(), one.exec);
      for (int64_t i = 0; i < kNeurons; ++i) {
        EXPECT_TRUE(std::isfinite(h.view().row<float>(0)[i]));
        EXPECT_FALSE(std::isfinite(h.view().row<float>(1)[i]));
      }
      EXPECT_TRUE(std::isfinite(y.view().row<float>(0)[0]));
      EXPECT_FALSE(std::isfinite(y.view().row<float>(1)[0]));
      plain_rows(x.view(), {rows, {}, activation}, {}, h.view(), one.exec);
      EXPECT_TRUE(std::isfinite(h.view().row<float>(0)[0]));
      EXPECT_FALSE(std::isfinite(h.view().row<float>(1)[0]));
      const GuardedTensor g(DType::f32, {2, kNeurons});
      set_values(g.view(), std::vector<double>(2 * kNeurons, kNan));
      up_rows(x.view(), {rows, {}, activation}, g.view(), g.view(), one.exec);
      EXPECT_TRUE(std::isnan(g.view().row<float>(0)[0]));
    }
  }
}

TEST(ActiveRowsSizes, NoNeuronsNoOutputsNoTokens) {
  CpuContext cpu(2, down_rows_workspace_bytes({}, 0, 3, 2));
  const GuardedTensor bias(DType::f32, {3});
  set_values(bias.view(), std::vector<double>{1.0, 2.0, 3.0});
  const GuardedTensor wt(DType::f16, {0, 3});
  const GuardedTensor h(DType::f32, {2, 0});
  const GuardedTensor y(DType::f32, {2, 3});
  down_rows(h.view(), DenseRows(wt.view()), bias.view(), y.view(), cpu.exec);
  EXPECT_EQ(values_of(y.view()), (std::vector<double>{1.0, 2.0, 3.0, 1.0, 2.0, 3.0}));
  down_rows(h.view().rows(0, 0), DenseRows(wt.view()), {}, y.view().rows(0, 0), cpu.exec);
  const GuardedTensor narrow(DType::f16, {0, 0});
  down_rows(h.view(), DenseRows(narrow.view()), {}, GuardedTensor(DType::f32, {2, 0}).view(),
            cpu.exec);
  const GuardedTensor x(DType::f32, {2, 3});
  gated_rows(x.view(), {DenseRows(wt.view()), DenseRows(wt.view()), {}, {}, kRelu}, {}, h.view(),
             cpu.exec);
  // Without inputs there is the bias alone.
  const GuardedTensor columns(DType::f16, {3, 0});
  const GuardedTensor all(DType::f32, {2, 3});
  plain_rows(GuardedTensor(DType::f32, {2, 0}).view(),
             {DenseRows(columns.view()), bias.view(), kRelu}, {}, all.view(), cpu.exec);
  EXPECT_EQ(values_of(all.view()), values_of(y.view()));
}

TEST(ActiveRowsSizes, TakesTheWorkspaceThatItSays) {
  Random random(36);
  for (int64_t tokens : {1, 15, 16, 40}) {
    for (int64_t neurons : {3, 1500}) {
      CpuContext cpu(1, down_rows_workspace_bytes({}, neurons, 33, tokens));
      const GuardedTensor h = random.tensor(DType::f32, {tokens, neurons});
      const GuardedTensor w = random.tensor(DType::bf16, {neurons, 33});
      const GuardedTensor y(DType::f32, {tokens, 33});
      down_rows(h.view(), DenseRows(w.view()), {}, y.view(), cpu.exec);
      EXPECT_EQ(cpu.workspace.peak_bytes(), cpu.workspace.bytes());
    }
  }
}

TEST(ActiveRowsErrors, NameWhatDoesNotFit) {
  CpuContext cpu;
  const GuardedTensor x(DType::f32, {2, 8});
  const GuardedTensor w(DType::f16, {5, 8});
  const GuardedTensor more(DType::f16, {6, 8});
  const GuardedTensor h(DType::f32, {2, 5});
  const GuardedTensor bias(DType::f32, {8});
  const GuardedTensor mask(DType::u8, {2, 8});
  const DenseRows rows(w.view());
  const DenseRows more_rows(more.view());
  const auto gated = [&](const Tensor& a, const GatedRows& r, const Tensor& active,
                         const Tensor& to) { gated_rows(a, r, active, to, cpu.exec); };
  EXPECT_TRUE(throws_error(
      [&] {
        gated(x.view(), {rows, more_rows, {}, {}, kRelu}, {}, h.view());
      },
      "gated_rows: up is [6, 8] on cpu; expected [5, 8] on cpu"));
  EXPECT_TRUE(throws_error(
      [&] {
        gated(x.view(), {rows, rows, bias.view(), {}, kRelu}, {}, h.view());
      },
      "gated_rows: gate_bias is f32 [8] on cpu; expected f32, f16 or bf16 [5]"));
  EXPECT_TRUE(throws_error(
      [&] {
        gated(x.view(), {rows, rows, {}, {}, kRelu}, mask.view(), h.view());
      },
      "gated_rows: active is u8 [2, 8] on cpu; expected u8 [2, 5] on cpu"));
  EXPECT_TRUE(throws_error(
      [&] {
        gated(x.view(), {rows, rows, {}, {}, {Kind::silu, 0.0f}}, {}, h.view());
      },
      "gated_rows: after silu few neurons are zero; expected relu or fatrelu"));
  EXPECT_TRUE(throws_error(
      [&] {
        gated(x.view(), {rows, rows, {}, {}, {Kind::fatrelu, NAN}}, {}, h.view());
      },
      "the threshold of fatrelu is nan"));
  EXPECT_TRUE(throws_error(
      [&] {
        plain_rows(x.view(), {rows, {}, kRelu}, {}, x.view().columns(0, 5), cpu.exec);
      },
      "plain_rows: x and h overlap"));
  EXPECT_TRUE(throws_error(
      [&] {
        up_rows(x.view(), {rows, {}, kRelu}, x.view(), h.view(), cpu.exec);
      },
      "up_rows: g is f32 [2, 8] on cpu; expected f32 [2, 5] on cpu"));
  EXPECT_TRUE(throws_error([&] { down_rows(h.view(), more_rows, {}, x.view(), cpu.exec); },
                           "down_rows: wt is [6, 8] on cpu; expected [5, 8] on cpu"));
  EXPECT_TRUE(throws_error([&] { down_rows(h.view(), rows, bias.view(), h.view(), cpu.exec); },
                           "down_rows: h and y overlap"));
  EXPECT_TRUE(throws_error(
      [&] {
        DenseRows(GuardedTensor(DType::i32, {2, 2}).view());
      },
      "rows of a weight that is i32 [2, 2]"));
}

TEST(ActiveRows, AreCounted) {
  Random random(12);
  CpuContext cpu(2);
  constexpr int64_t kTokens = 5;
  constexpr int64_t kNeurons = 37;
  constexpr int64_t kOut = 11;
  const GuardedTensor wt = random.tensor(DType::f16, {kNeurons, kOut});
  const GuardedTensor y(DType::f32, {kTokens, kOut});
  const GuardedTensor mask = random_mask(random, kTokens, kNeurons, 0.5, Layout::strided);
  const GuardedTensor positions(DType::i32, {kTokens});
  set_values(positions.view(), std::vector<double>{7.0, -1.0, 0.0, 3.0, -1.0});
  GuardedTensor h = random.tensor(DType::f32, {kTokens, kNeurons}, Layout::strided);
  std::vector<double> values = values_of(h.view());
  const std::vector<double> flags = values_of(mask.view());
  std::vector<double> masked;
  int64_t skipped = 0;
  int64_t active = 0;      // of those that are not skipped
  int64_t all_active = 0;  // of all rows
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = i % 3 == 0 ? -0.0 : values[i];
    masked.push_back(flags[i] != 0.0 ? values[i] : 0.0);
    const size_t token = i / kNeurons;
    all_active += values[i] != 0.0 ? 1 : 0;
    if (token != 1 && token != 4) {
      skipped += flags[i] == 0.0 ? 1 : 0;
      active += masked[i] != 0.0 ? 1 : 0;
    }
  }
  set_values(h.view(), values);

  const Buffer memory = make_neuron_counters({});
  auto* const counters = static_cast<NeuronCounters*>(memory.data());
  down_rows(h.view(), DenseRows(wt.view()), {}, {.counters = counters}, y.view(), cpu.exec);
  NeuronCounters counts = read_neuron_counters(memory);
  EXPECT_EQ(counts.rows, uint64_t{kTokens});
  EXPECT_EQ(counts.skipped, 0u);
  EXPECT_EQ(counts.active, static_cast<uint64_t>(all_active));

  const NeuronTally tally{
      .counters = counters, .positions = positions.view(), .active = mask.view()};
  set_values(h.view(), masked);
  down_rows(h.view(), DenseRows(wt.view()), {}, tally, y.view(), cpu.exec);
  counts = read_neuron_counters(memory);
  EXPECT_EQ(counts.rows, uint64_t{kTokens + 3});
  EXPECT_EQ(counts.skipped, static_cast<uint64_t>(skipped));
  EXPECT_EQ(counts.active, static_cast<uint64_t>(all_active + active));

  const NeuronTally short_positions{.positions = positions.view().rows(0, 3),
                                    .active = mask.view()};
  EXPECT_TRUE(throws_error(
      [&] { down_rows(h.view(), DenseRows(wt.view()), {}, short_positions, y.view(), cpu.exec); },
      "down_rows: positions is i32 [3] on cpu; expected i32 [5] on cpu"));
  EXPECT_EQ(read_neuron_counters({}).rows, 0u);
}

// Rows in a format of their own.
class OtherRows final : public RowAccess {
 public:
  int64_t rows() const override { return 2; }
  int64_t columns() const override { return 2; }
  Device device() const override { return {Device::Kind::cuda, 0}; }
  std::string_view name() const override { return "other rows"; }
  void multiply(std::span<const int32_t>, const float*, float*, CpuIsa) const override {}
  void sum(const Terms&, Range, float*, CpuIsa) const override {}
};

TEST(ActiveRowsErrors, RowsThatAreNotReadOnCuda) {
  CpuContext cpu;
  const Device cuda{Device::Kind::cuda, 0};
  cpu.exec.device = cuda;
  float memory[16];
  const Tensor h(memory, DType::f16, {1, 2}, cuda);
  const Tensor y(memory + 4, DType::f16, {1, 2}, cuda);
  const DenseRows rows(Tensor(memory + 8, DType::f16, {2, 2}, cuda));
  const DenseRows bf16(Tensor(memory + 8, DType::bf16, {2, 2}, cuda));
  const OtherRows other;
  EXPECT_TRUE(throws_error([&] { down_rows(h, other, {}, y, cpu.exec); },
                           "down_rows: wt is other rows; on CUDA only dense rows are read"));
  EXPECT_TRUE(throws_error([&] { down_rows(h, bf16, {}, y, cpu.exec); },
                           "down_rows: wt is bf16 and its factor f16"));
  EXPECT_TRUE(throws_error(
      [&] {
        plain_rows(h, {bf16, {}, kRelu}, {}, y, cpu.exec);
      },
      "plain_rows: up is bf16 and its factor f16"));
  EXPECT_TRUE(throws_error(
      [&] {
        gated_rows(h, {rows, other, {}, {}, kRelu}, {}, y, cpu.exec);
      },
      "gated_rows: up is other rows"));
  EXPECT_TRUE(throws_error(
      [&] {
        up_rows(h, {other, {}, kRelu}, y, y, cpu.exec);
      },
      "up_rows: up is other rows"));
}

}  // namespace
}  // namespace sparsellm
