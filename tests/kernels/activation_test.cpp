#include "kernels/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/base/neuron_counters.h"
#include "kernels/device/activate_values.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Kind = Activation::Kind;

constexpr Activation kActivations[] = {
    {Kind::none, 0.0f},      {Kind::relu, 0.0f}, {Kind::gelu, 0.0f},
    {Kind::gelu_tanh, 0.0f}, {Kind::silu, 0.0f}, {Kind::fatrelu, 0.25f},
};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

double reference(const Activation& activation, double x) {
  switch (activation.kind) {
    case Kind::none:
      return x;
    case Kind::relu:
      return x > 0.0 ? x : 0.0;
    case Kind::gelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Kind::gelu_tanh: {
      const double u = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return x / (1.0 + std::exp(-2.0 * u));
    }
    case Kind::silu:
      return x / (1.0 + std::exp(-x));
    case Kind::fatrelu:
      return x > static_cast<double>(activation.threshold) ? x : 0.0;
  }
  return std::nan("");
}

// Errors are in proportion to the result, and in the lower tail to the exponent too.
double magnitude(const Activation& activation, double x) {
  return std::abs(reference(activation, x)) * (1.0 + std::abs(std::min(x, 0.0)) * std::abs(x));
}

std::string trace(const Activation& activation, int64_t tokens, int64_t features, int threads) {
  return fmt::format("{}, [{}, {}], {} threads", name_of(activation.kind), tokens, features,
                     threads);
}

TEST(Activation, IsAccurateOverTheWholeRange) {
  CpuContext cpu;
  std::vector<double> inputs;
  for (int exponent = -140; exponent <= 6; ++exponent) {  // 2^-140 is subnormal
    for (int i = 0; i < 128; ++i) {
      const auto x = static_cast<float>(std::ldexp(1.0 + i / 128.0, exponent));
      inputs.insert(inputs.end(), {x, -x});
    }
  }
  for (int i = -40000; i <= 40000; ++i) {
    inputs.push_back(static_cast<float>(i * 0.000731));
  }
  const auto count = static_cast<int64_t>(inputs.size());
  for (const Activation& activation : kActivations) {
    SCOPED_TRACE(name_of(activation.kind));
    const GuardedTensor x(DType::f32, {1, count});
    set_values(x.view(), inputs);
    Expected expected;
    std::vector<double> tolerances;
    for (double value : inputs) {
      expected.values.push_back(reference(activation, value));
      // Below 1e-36 a tail may be cut off.
      tolerances.push_back(4e-7 * magnitude(activation, value) + 1e-36);
    }
    activate(activation, x.view(), cpu.exec);
    EXPECT_TRUE(all_close(x.view(), expected.values, tolerances));
  }
}

TEST(Activation, SpecialValues) {
  struct Case {
    float x;
    float expected[std::size(kActivations)];
  };
  const Case cases[] = {
      {0.0f, {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}},
      {-0.0f, {-0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}},
      {0.25f, {0.25f, 0.25f, 0.149676581f, 0.149675351f, 0.140544125f, 0.0f}},
      {100.0f, {100.0f, 100.0f, 100.0f, 100.0f, 100.0f, 100.0f}},
      {kLargest, {kLargest, kLargest, kLargest, kLargest, kLargest, kLargest}},
      {-kLargest, {-kLargest, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}},
      {-1e20f, {-1e20f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}},
      {kInfinity, {kInfinity, kInfinity, kInfinity, kInfinity, kInfinity, kInfinity}},
      {-kInfinity, {-kInfinity, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}},  // the limits
  };
  for (size_t kind = 0; kind < std::size(kActivations); ++kind) {
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{}({})", name_of(kActivations[kind].kind), c.x));
      float values[11];  // a vector and a tail
      std::fill(std::begin(values), std::end(values), c.x);
      activate_values(kActivations[kind], values, 11);
      for (float value : values) {
        if (std::isinf(c.expected[kind])) {
          EXPECT_EQ(value, c.expected[kind]);
        } else {
          EXPECT_NEAR(value, c.expected[kind], 2e-7f * std::abs(c.expected[kind]) + 1e-35f);
        }
      }
    }
  }
}

TEST(Activation, NanComesThroughAndStaysInItsElement) {
  for (const Activation& activation : kActivations) {
    for (float sign : {1.0f, -1.0f}) {
      for (int64_t place = 0; place < 13; ++place) {
        float values[13] = {};
        values[place] = std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
        activate_values(activation, values, 13);
        for (int64_t i = 0; i < 13; ++i) {
          EXPECT_EQ(std::isnan(values[i]), i == place) << name_of(activation.kind) << " " << i;
        }
      }
    }
  }
}

TEST(Activation, FatreluKeepsOnlyWhatIsAboveTheThreshold) {
  CpuContext cpu;
  for (float threshold : {0.5f, 0.0f, -0.5f}) {
    const float above = std::nextafter(threshold, 1.0f);
    const float below = std::nextafter(threshold, -1.0f);
    float values[] = {threshold, above, below, 1.0f, -1.0f};
    activate_values({Kind::fatrelu, threshold}, values, 5);
    const float expected[] = {0.0f, above, 0.0f, 1.0f, 0.0f};
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(values[i], expected[i]) << threshold << " " << i;
    }
  }
}

TEST(Activation, ReluLeavesExactPositiveZeros) {
  float values[] = {-1.0f, -0.0f, 0.0f, -1e-40f};
  activate_values({Kind::relu, 0.0f}, values, 4);
  for (float value : values) {
    EXPECT_EQ(std::bit_cast<uint32_t>(value), 0u);
  }
}

TEST(Activation, AValueDoesNotDependOnItsPlace) {
  Random random(5);
  const GuardedTensor x = random.tensor(DType::f32, {1, 64}, Layout::contiguous, -6.0, 6.0);
  for (const Activation& activation : kActivations) {
    std::vector<float> whole(x.view().data<float>(), x.view().data<float>() + 64);
    activate_values(activation, whole.data(), 64);
    for (int64_t piece : {1, 3, 7, 9}) {
      std::vector<float> pieces(x.view().data<float>(), x.view().data<float>() + 64);
      for (int64_t i = 0; i < 64; i += piece) {
        activate_values(activation, pieces.data() + i, std::min<int64_t>(piece, 64 - i));
      }
      EXPECT_EQ(pieces, whole) << name_of(activation.kind) << " in pieces of " << piece;
    }
  }
}

TEST(Activation, AnySizeStrideAndThreadCount) {
  Random random(6);
  for (int threads : {1, 2, 5}) {
    CpuContext cpu(threads);
    for (const Activation& activation : kActivations) {
      for (Layout layout : {Layout::contiguous, Layout::strided}) {
        for (int64_t tokens : {0, 1, 3, 17, 130}) {
          for (int64_t features : {1, 7, 31, 257}) {
            SCOPED_TRACE(trace(activation, tokens, features, threads));
            const GuardedTensor x =
                random.tensor(DType::f32, {tokens, features}, layout, -4.0, 4.0);
            Expected expected;
            for (double value : values_of(x.view())) {
              expected.values.push_back(reference(activation, value));
              expected.magnitudes.push_back(magnitude(activation, value));
            }
            activate(activation, x.view(), cpu.exec);
            EXPECT_TRUE(all_close(x.view(), expected, 4.0));
            EXPECT_TRUE(x.guards_intact());
          }
        }
      }
    }
  }
}

TEST(ActivateGated, AnySizeStrideAndThreadCount) {
  Random random(7);
  for (int threads : {1, 2, 5}) {
    CpuContext cpu(threads);
    for (const Activation& activation : kActivations) {
      for (Layout layout : {Layout::contiguous, Layout::strided}) {
        for (int64_t tokens : {0, 1, 3, 17, 130}) {
          for (int64_t features : {1, 7, 31, 257}) {
            SCOPED_TRACE(trace(activation, tokens, features, threads));
            const GuardedTensor gate_up =
                random.tensor(DType::f32, {tokens, 2 * features}, layout, -4.0, 4.0);
            const std::vector<double> inputs = values_of(gate_up.view());
            Expected expected;
            for (int64_t t = 0; t < tokens; ++t) {
              for (int64_t i = 0; i < features; ++i) {
                const auto gate = static_cast<size_t>(2 * t * features + i);
                const double up = inputs[gate + static_cast<size_t>(features)];
                expected.values.push_back(reference(activation, inputs[gate]) * up);
                expected.magnitudes.push_back(magnitude(activation, inputs[gate]) * std::abs(up));
              }
            }
            const GuardedTensor y(DType::f32, {tokens, features}, layout);
            activate_gated(activation, gate_up.view(), y.view(), cpu.exec);
            EXPECT_TRUE(all_close(y.view(), expected, 4.0));
            EXPECT_TRUE(y.guards_intact());
          }
        }
      }
    }
  }
}

TEST(ActivateGated, NanComesThroughFromBothHalves) {
  CpuContext cpu;
  for (const Activation& activation : kActivations) {
    for (int64_t place = 0; place < 22; ++place) {
      const GuardedTensor gate_up =
          Random(8).tensor(DType::f32, {1, 22}, Layout::contiguous, 1.0, 2.0);
      gate_up.view().data<float>()[place] = std::numeric_limits<float>::quiet_NaN();
      const GuardedTensor y(DType::f32, {1, 11});
      activate_gated(activation, gate_up.view(), y.view(), cpu.exec);
      for (int64_t i = 0; i < 11; ++i) {
        EXPECT_EQ(std::isnan(y.view().data<float>()[i]), i == place % 11)
            << name_of(activation.kind) << " " << place << " " << i;
      }
    }
  }
}

// NaN does not come through where a feature is not active, and nothing changes where it is.
TEST(Activation, OfActiveFeatures) {
  Random random(9);
  CpuContext cpu(3);
  for (const Activation& activation : kActivations) {
    for (Layout layout : {Layout::contiguous, Layout::strided}) {
      for (int64_t tokens : {0, 1, 17}) {
        for (int64_t features : {1, 31, 257}) {
          SCOPED_TRACE(trace(activation, tokens, features, 3));
          const GuardedTensor gate_up =
              random.tensor(DType::f32, {tokens, 2 * features}, layout, -4.0, 4.0);
          const GuardedTensor active(DType::u8, {tokens, features}, layout);
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t i = 0; i < features; ++i) {
              active.view().row<uint8_t>(t)[i] = static_cast<uint8_t>(random.below(3));
              if (active.view().row<uint8_t>(t)[i] == 0) {
                gate_up.view().row<float>(t)[i] = std::numeric_limits<float>::quiet_NaN();
              }
            }
          }
          const GuardedTensor y(DType::f32, {tokens, features}, layout);
          const GuardedTensor expected(DType::f32, {tokens, features});
          activate_gated(activation, gate_up.view(), {.active = active.view()}, y.view(), cpu.exec);
          activate_gated(activation, gate_up.view(), expected.view(), cpu.exec);
          const auto clear = [&] {
            for (int64_t t = 0; t < tokens; ++t) {
              for (int64_t i = 0; i < features; ++i) {
                if (active.view().row<uint8_t>(t)[i] == 0) {
                  expected.view().row<float>(t)[i] = 0.0f;
                }
              }
            }
          };
          clear();
          EXPECT_TRUE(same_bits(y.view(), expected.view()));
          EXPECT_TRUE(y.guards_intact());
          const Tensor gate = gate_up.view().columns(0, features);
          set_values(expected.view(), values_of(gate));
          activate(activation, expected.view(), cpu.exec);
          clear();
          activate(activation, {.active = active.view()}, gate, cpu.exec);
          EXPECT_TRUE(same_bits(gate, expected.view()));
          EXPECT_TRUE(gate_up.guards_intact());
        }
      }
    }
  }
}

// What a tally has to find in h [tokens, neurons]: rows, skipped and active neurons.
NeuronCounters counts_of(const Tensor& h, const NeuronTally& tally) {
  NeuronCounters counts{};
  for (int64_t t = 0; t < h.size(0); ++t) {
    if (!tally.positions.empty() && tally.positions.data<int32_t>()[t] == -1) {
      continue;
    }
    ++counts.rows;
    for (int64_t i = 0; i < h.size(1); ++i) {
      counts.skipped += !tally.active.empty() && tally.active.row<uint8_t>(t)[i] == 0 ? 1 : 0;
      counts.active += h.row<float>(t)[i] == 0.0f ? 0 : 1;
    }
  }
  return counts;
}

// Of rows that are no padding; NaN is active.
TEST(Activation, CountsNeurons) {
  Random random(10);
  CpuContext cpu(3);
  const Activation fatrelu{Kind::fatrelu, 0.25f};
  for (int64_t tokens : {0, 1, 17}) {
    for (int64_t neurons : {1, 257}) {
      const Buffer memory = make_neuron_counters({});
      NeuronCounters expected{};
      const auto expect_more = [&](const Tensor& h, const NeuronTally& tally, const char* what) {
        SCOPED_TRACE(trace(fatrelu, tokens, neurons, 3) + ", " + what);
        const NeuronCounters more = counts_of(h, tally);
        expected = {.rows = expected.rows + more.rows,
                    .skipped = expected.skipped + more.skipped,
                    .active = expected.active + more.active};
        const NeuronCounters counts = read_neuron_counters(memory);
        EXPECT_EQ(counts.rows, expected.rows);
        EXPECT_EQ(counts.skipped, expected.skipped);
        EXPECT_EQ(counts.active, expected.active);
      };
      const GuardedTensor gate_up =
          random.tensor(DType::f32, {tokens, 2 * neurons}, Layout::strided, -4.0, 4.0);
      const GuardedTensor active(DType::u8, {tokens, neurons}, Layout::strided);
      const GuardedTensor positions(DType::i32, {tokens});
      for (int64_t t = 0; t < tokens; ++t) {
        positions.view().data<int32_t>()[t] = t % 4 == 2 ? -1 : static_cast<int32_t>(t);
        gate_up.view().row<float>(t)[0] = std::numeric_limits<float>::quiet_NaN();
        for (int64_t i = 0; i < neurons; ++i) {
          active.view().row<uint8_t>(t)[i] = static_cast<uint8_t>(random.below(3));
        }
      }
      const GuardedTensor y(DType::f32, {tokens, neurons});
      const Tensor gate = gate_up.view().columns(0, neurons);
      NeuronTally tally{.counters = static_cast<NeuronCounters*>(memory.data()),
                        .positions = positions.view(),
                        .active = active.view()};
      activate_gated(fatrelu, gate_up.view(), tally, y.view(), cpu.exec);
      expect_more(y.view(), tally, "gated");
      tally.positions = {};
      tally.active = {};
      activate_gated(fatrelu, gate_up.view(), tally, y.view(), cpu.exec);
      expect_more(y.view(), tally, "gated, nothing predicted, no padding");
      activate(fatrelu, tally, gate, cpu.exec);
      expect_more(gate, tally, "nothing predicted, no padding");
      tally.positions = positions.view();
      tally.active = active.view();
      activate(fatrelu, tally, gate, cpu.exec);
      expect_more(gate, tally, "in place");
    }
  }
}

TEST(Activation, RefusesMismatchedOperands) {
  CpuContext cpu;
  const Activation relu{Kind::relu, 0.0f};
  const auto activate_x = [&](DType dtype, std::initializer_list<int64_t> sizes) {
    activate(relu, GuardedTensor(dtype, sizes).view(), cpu.exec);
  };
  EXPECT_TRUE(throws_error([&] { activate_x(DType::f16, {2, 3}); }, "activate: x is f16 [2, 3]"));
  EXPECT_TRUE(throws_error([&] { activate_x(DType::f32, {6}); }, "[6]"));
  EXPECT_TRUE(throws_error([&] { activate(relu, Tensor(), cpu.exec); }, "missing"));
  const Activation bad{Kind::fatrelu, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(throws_error(
      [&] {
        activate(bad, GuardedTensor(DType::f32, {2, 3}).view(), cpu.exec);
      },
      "nan"));

  const auto gated = [&](DType dtype, std::initializer_list<int64_t> gate_up,
                         std::initializer_list<int64_t> y) {
    activate_gated(relu, GuardedTensor(dtype, gate_up).view(), GuardedTensor(DType::f32, y).view(),
                   cpu.exec);
  };
  EXPECT_TRUE(throws_error(
      [&] {
        gated(DType::f32, {2, 7}, {2, 3});
      },
      "gate_up is f32 [2, 7] on cpu; expected f32 [2, 6]"));
  EXPECT_TRUE(throws_error([&] { gated(DType::f32, {3, 6}, {2, 3}); }, "[3, 6]"));
  EXPECT_TRUE(throws_error([&] { gated(DType::bf16, {2, 6}, {2, 3}); }, "bf16"));
  const GuardedTensor both(DType::f32, {2, 6});
  EXPECT_TRUE(throws_error(
      [&] { activate_gated(relu, both.view(), both.view().columns(0, 3), cpu.exec); }, "overlap"));
  const GuardedTensor flags(DType::u8, {2, 3});
  EXPECT_TRUE(throws_error([&] { activate(relu, {.active = flags.view()}, both.view(), cpu.exec); },
                           "activate: active is u8 [2, 3] on cpu; expected u8 [2, 6]"));
  EXPECT_TRUE(throws_error(
      [&] {
        const GuardedTensor y(DType::f32, {2, 3});
        const GuardedTensor numbers(DType::f32, {2, 3});
        activate_gated(relu, both.view(), {.active = numbers.view()}, y.view(), cpu.exec);
      },
      "activate_gated: active is f32 [2, 3] on cpu; expected u8 [2, 3]"));
  const GuardedTensor positions(DType::i32, {1});
  EXPECT_TRUE(
      throws_error([&] { activate(relu, {.positions = positions.view()}, both.view(), cpu.exec); },
                   "activate: positions is i32 [1] on cpu; expected i32 [2]"));
}

TEST(Activation, Names) {
  EXPECT_EQ(name_of(Kind::none), "none");
  EXPECT_EQ(name_of(Kind::relu), "relu");
  EXPECT_EQ(name_of(Kind::gelu), "gelu");
  EXPECT_EQ(name_of(Kind::gelu_tanh), "gelu_tanh");
  EXPECT_EQ(name_of(Kind::silu), "silu");
  EXPECT_EQ(name_of(Kind::fatrelu), "fatrelu");
}

}  // namespace
}  // namespace sparsellm
