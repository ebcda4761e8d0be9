// Rows of neurons that are not zero, on CUDA: against the formulas in double, and against the CPU.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/cuda_graph.h"
#include "sparse/activation/active_rows.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Kind = Activation::Kind;
using Values = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFactor = 4.0;  // of the rounding errors
constexpr Activation kRelu{Kind::relu, 0.0f};
constexpr Activation kFatRelu{Kind::fatrelu, 0.125f};

double at(const Values& m, int64_t row, int64_t columns, int64_t column) {
  return m[static_cast<size_t>(row * columns + column)];
}

class GpuActiveRows : public GpuTest {
 protected:
  GuardedTensor on_gpu(std::initializer_list<int64_t> sizes, Layout layout = Layout::contiguous) {
    return random.tensor(GetParam(), sizes, layout, -1.0, 1.0, kGpu);
  }
  GuardedTensor empty(std::initializer_list<int64_t> sizes, Layout layout = Layout::contiguous) {
    return GuardedTensor(GetParam(), sizes, layout, kGpu);
  }
  GuardedTensor random_mask(int64_t tokens, int64_t neurons, double share,
                            Layout layout = Layout::contiguous) {
    Values flags;
    for (int64_t i = 0; i < tokens * neurons; ++i) {
      flags.push_back(random.uniform(0.0, 1.0) < share ? 1.0 : 0.0);
    }
    GuardedTensor mask(DType::u8, {tokens, neurons}, layout, kGpu);
    set_values(mask.view(), flags);
    return mask;
  }
  // What an activation made, of which this share is not zero.
  GuardedTensor sparse_on_gpu(int64_t tokens, int64_t neurons, double share,
                              Layout layout = Layout::contiguous) {
    GuardedTensor h = on_gpu({tokens, neurons}, layout);
    Values values = values_of(h.view());
    for (double& value : values) {
      value = random.uniform(0.0, 1.0) < share ? value : std::copysign(0.0, value);
    }
    set_values(h.view(), values);
    return h;
  }

  Random random{92};
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuActiveRows, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// w x + bias, and the magnitudes of the terms.
Expected products(const Tensor& x, const Tensor& w, const Tensor& bias) {
  const Values xs = values_of(x);
  const Values ws = values_of(w);
  const Values biases = bias.empty() ? Values(static_cast<size_t>(w.size(0))) : values_of(bias);
  const int64_t in = x.size(1);
  Expected result;
  for (int64_t t = 0; t < x.size(0); ++t) {
    for (int64_t i = 0; i < w.size(0); ++i) {
      double sum = biases[static_cast<size_t>(i)];
      double magnitude = std::abs(sum);
      for (int64_t j = 0; j < in; ++j) {
        const double term = at(xs, t, in, j) * at(ws, i, in, j);
        sum += term;
        magnitude += std::abs(term);
      }
      result.values.push_back(sum);
      result.magnitudes.push_back(magnitude);
    }
  }
  return result;
}

// activation(gates), of which those that `flags` has; without flags all are. A gate that rounding
// may carry over the threshold may be anything.
void keep_active(const Activation& activation, const Values& flags, Expected& gates) {
  const double threshold = activation.threshold;
  for (size_t i = 0; i < gates.values.size(); ++i) {
    double& gate = gates.values[i];
    double& magnitude = gates.magnitudes[i];
    if (!flags.empty() && flags[i] == 0.0) {
      gate = 0.0;
      magnitude = 0.0;
    } else if (threshold != 0.0 && std::abs(gate - threshold) < 1e-5 * magnitude) {
      magnitude = 1e7;
    }
    gate = gate <= threshold ? 0.0 : gate;
  }
}

Expected product_of(const Expected& a, const Expected& b) {
  Expected result = a;
  for (size_t i = 0; i < result.values.size(); ++i) {
    result.values[i] = a.values[i] == 0.0 ? 0.0 : a.values[i] * b.values[i];
    result.magnitudes[i] *= b.magnitudes[i];
  }
  return result;
}

TEST_P(GpuActiveRows, FirstLayersOfAnySizeAndDensity) {
  int64_t combination = 0;
  for (const int64_t in : {1, 31, 33, 256, 257, 1064, 2100}) {
    for (const int64_t neurons : {1, 3, 33}) {
      for (const int64_t tokens : {1, 2, 7, 33}) {
        if (tokens * neurons * in > 100'000) {
          continue;
        }
        ++combination;
        SCOPED_TRACE(fmt::format("{} tokens, {} neurons, {} inputs, combination {}", tokens,
                                 neurons, in, combination));
        const Layout layout = combination % 3 == 0 ? Layout::strided : Layout::contiguous;
        const Activation activation = combination % 5 < 3 ? kRelu : kFatRelu;
        const GuardedTensor x = on_gpu({tokens, in}, layout);
        const GuardedTensor joined = on_gpu({2 * neurons, in}, layout);
        const DType bias_dtype = combination % 2 == 0 ? DType::f32 : GetParam();
        const GuardedTensor biases =
            random.tensor(bias_dtype, {2 * neurons}, Layout::contiguous, -1.0, 1.0, kGpu);
        const auto bias_of = [&](int64_t begin) {
          return combination % 7 < 4 ? biases.view().rows(begin, neurons) : Tensor();
        };
        const GuardedTensor active =
            random_mask(tokens, neurons, static_cast<double>(combination % 4) / 3.0, layout);
        const Values flags = values_of(active.view());
        const DenseRows gate(joined.view().rows(0, neurons));
        const DenseRows up(joined.view().rows(neurons, neurons));
        const Expected gates = products(x.view(), gate.weight(), bias_of(0));
        const Expected ups = products(x.view(), up.weight(), bias_of(neurons));
        const bool relu_up = combination % 11 < 4;
        Expected factors = ups;
        for (double& value : factors.values) {
          value = relu_up ? std::max(value, 0.0) : value;
        }
        const auto expect = [&](const Tensor& h, Expected first, const Values& which,
                                bool is_gated) {
          keep_active(activation, which, first);
          EXPECT_TRUE(all_close(h, is_gated ? product_of(first, factors) : first, kFactor));
        };

        const GuardedTensor h = empty({tokens, neurons}, layout);
        const GatedRows gated{gate, up, bias_of(0), bias_of(neurons), activation, relu_up};
        gated_rows(x.view(), gated, {}, h.view(), gpu->exec);
        expect(h.view(), gates, {}, true);
        gated_rows(x.view(), gated, active.view(), h.view(), gpu->exec);
        expect(h.view(), gates, flags, true);
        const PlainRows plain{up, bias_of(neurons), activation};
        plain_rows(x.view(), plain, {}, h.view(), gpu->exec);
        expect(h.view(), ups, {}, false);
        plain_rows(x.view(), plain, active.view(), h.view(), gpu->exec);
        expect(h.view(), ups, flags, false);

        // From gates before the activation, which are rounded, and in place.
        const GuardedTensor g = empty({tokens, neurons}, layout);
        set_values(g.view(), gates.values);
        Expected rounded{.values = values_of(g.view()), .magnitudes = {}};
        for (const double value : rounded.values) {
          rounded.magnitudes.push_back(std::abs(value));
        }
        const UpRows rows{up, bias_of(neurons), activation, relu_up};
        up_rows(x.view(), rows, g.view(), h.view(), gpu->exec);
        expect(h.view(), rounded, {}, true);
        up_rows(x.view(), rows, g.view(), g.view(), gpu->exec);
        EXPECT_TRUE(same_bits(g.view(), h.view()));
        EXPECT_TRUE(h.guards_intact());
        EXPECT_TRUE(g.guards_intact());
      }
    }
  }
}

TEST_P(GpuActiveRows, DownOfAnySizeAndDensity) {
  int64_t combination = 0;
  for (const int64_t neurons : {1, 31, 33, 257, 512, 513, 1100}) {
    for (const int64_t out : {1, 8, 31, 257, 520}) {
      for (const int64_t tokens : {1, 2, 7, 33}) {
        if (tokens * neurons * out > 300'000) {
          continue;
        }
        ++combination;
        const double share = std::vector<double>{0.0, 0.1, 0.5, 1.0}[combination % 4];
        SCOPED_TRACE(fmt::format("{} tokens, {} neurons, {} outputs, share {}, combination {}",
                                 tokens, neurons, out, share, combination));
        const Layout layout = combination % 3 == 0 ? Layout::strided : Layout::contiguous;
        const GuardedTensor h = sparse_on_gpu(tokens, neurons, share, layout);
        const GuardedTensor wt = on_gpu({neurons, out}, layout);
        const GuardedTensor w(DType::f32, {out, neurons});
        const Values values = values_of(wt.view());
        Values transposed;
        for (int64_t o = 0; o < out; ++o) {
          for (int64_t i = 0; i < neurons; ++i) {
            transposed.push_back(at(values, i, out, o));
          }
        }
        set_values(w.view(), transposed);
        const GuardedTensor biases =
            random.tensor(DType::f32, {out}, Layout::contiguous, -1.0, 1.0, kGpu);
        const Tensor bias = combination % 2 == 0 ? biases.view() : Tensor();
        const GuardedTensor y = empty({tokens, out}, layout);
        down_rows(h.view(), DenseRows(wt.view()), bias, y.view(), gpu->exec);
        EXPECT_TRUE(all_close(y.view(), products(h.view(), w.view(), bias), kFactor));
        EXPECT_TRUE(y.guards_intact());
      }
    }
  }
}

// An MLP, whose halves add up.
TEST_P(GpuActiveRows, AnMlpIsThatOfTheCpu) {
  constexpr int64_t kTokens = 9;
  constexpr int64_t kNeurons = 600;
  constexpr int64_t kIn = 40;
  const GuardedTensor x = on_gpu({kTokens, kIn});
  const GuardedTensor gate = on_gpu({kNeurons, kIn});
  const GuardedTensor up = on_gpu({kNeurons, kIn});
  const GuardedTensor wt = on_gpu({kNeurons, kIn});
  const GuardedTensor active = random_mask(kTokens, kNeurons, 0.2);
  const GuardedTensor h = empty({kTokens, kNeurons});
  const GuardedTensor y = empty({kTokens, kIn});
  gated_rows(x.view(), {DenseRows(gate.view()), DenseRows(up.view()), {}, {}, kRelu}, active.view(),
             h.view(), gpu->exec);
  down_rows(h.view(), DenseRows(wt.view()), {}, y.view(), gpu->exec);

  const GuardedTensor gate_twin = cpu_twin(gate.view());
  const GuardedTensor up_twin = cpu_twin(up.view());
  const GuardedTensor wt_twin = cpu_twin(wt.view());
  const GuardedTensor mask(DType::u8, {kTokens, kNeurons});
  set_values(mask.view(), values_of(active.view()));
  const GuardedTensor cpu_h(DType::f32, {kTokens, kNeurons});
  const GuardedTensor cpu_y(DType::f32, {kTokens, kIn});
  CpuContext cpu_context(2, 8 << 20);
  gated_rows(cpu_twin(x.view()).view(),
             {DenseRows(gate_twin.view()), DenseRows(up_twin.view()), {}, {}, kRelu}, mask.view(),
             cpu_h.view(), cpu_context.exec);
  down_rows(cpu_h.view(), DenseRows(wt_twin.view()), {}, cpu_y.view(), cpu_context.exec);
  const auto expect_close = [](const Tensor& got, const Values& values, double tolerance) {
    EXPECT_TRUE(all_close(got, values, Values(values.size(), tolerance)));
  };
  const double eps = GetParam() == DType::f16 ? 0x1p-11 : 0x1p-8;
  const Values hs = values_of(cpu_h.view());
  const auto largest = [](const Values& values) {
    return std::abs(*std::ranges::max_element(
        values, [](double a, double b) { return std::abs(a) < std::abs(b); }));
  };
  const double of_h = 1.01 * eps * largest(hs);
  expect_close(h.view(), hs, of_h);
  const Values ys = values_of(cpu_y.view());
  // Each h has the rounding error of h, each of about 70 that are not zero.
  expect_close(y.view(), ys, 70.0 * of_h + eps * largest(ys));

  const GuardedTensor first = empty({kTokens, kIn});
  const GuardedTensor second = empty({kTokens, kIn});
  const int64_t half = 250;
  down_rows(h.view().columns(0, half), DenseRows(wt.view().rows(0, half)), {}, first.view(),
            gpu->exec);
  down_rows(h.view().columns(half, kNeurons - half),
            DenseRows(wt.view().rows(half, kNeurons - half)), {}, second.view(), gpu->exec);
  Values sums = values_of(first.view());
  const Values more = values_of(second.view());
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] += more[i];
  }
  const double largest_part = std::max(largest(sums), largest(more));
  expect_close(y.view(), sums, 4.0 * eps * (largest_part + largest(ys)));
}

// Rows that no token needs are NaN, and so is what another token alone needs.
TEST_P(GpuActiveRows, RowsOfOtherNeuronsAreNotRead) {
  constexpr int64_t kTokens = 19;
  constexpr int64_t kNeurons = 600;
  constexpr int64_t kIn = 70;
  const GuardedTensor x = on_gpu({kTokens, kIn});
  const GuardedTensor gate = on_gpu({kNeurons, kIn});
  const GuardedTensor up = on_gpu({kNeurons, kIn});
  const GuardedTensor wt = on_gpu({kNeurons, kIn});
  const GuardedTensor active = random_mask(kTokens, kNeurons, 0.05);
  const GatedRows rows{DenseRows(gate.view()), DenseRows(up.view()), {}, {}, kRelu};
  const GuardedTensor h = empty({kTokens, kNeurons});
  const GuardedTensor expected = empty({kTokens, kNeurons});
  const GuardedTensor y = empty({kTokens, kIn});
  const GuardedTensor expected_y = empty({kTokens, kIn});
  gated_rows(x.view(), rows, active.view(), expected.view(), gpu->exec);
  down_rows(expected.view(), DenseRows(wt.view()), {}, expected_y.view(), gpu->exec);
  const Values flags = values_of(active.view());
  const Values values = values_of(expected.view());
  const auto poison = [](const Tensor& w, const std::function<bool(int64_t)>& which) {
    Values weights = values_of(w);
    int64_t count = 0;
    for (int64_t i = 0; i < w.size(0); ++i) {
      if (which(i)) {
        std::fill_n(weights.begin() + i * w.size(1), w.size(1), kNan);
        ++count;
      }
    }
    set_values(w, weights);
    EXPECT_GT(count, 0);
    EXPECT_LT(count, w.size(0));
  };
  const auto none_of = [&](const Values& all, int64_t first_token, int64_t neuron) {
    for (int64_t t = first_token; t < kTokens; ++t) {
      if (at(all, t, kNeurons, neuron) != 0.0) {
        return false;
      }
    }
    return true;
  };
  poison(gate.view(), [&](int64_t i) { return none_of(flags, 0, i); });
  poison(up.view(), [&](int64_t i) { return none_of(values, 0, i); });
  poison(wt.view(), [&](int64_t i) { return none_of(values, 0, i); });
  gated_rows(x.view(), rows, active.view(), h.view(), gpu->exec);
  EXPECT_TRUE(same_bits(h.view(), expected.view()));
  down_rows(h.view(), DenseRows(wt.view()), {}, y.view(), gpu->exec);
  EXPECT_TRUE(same_bits(y.view(), expected_y.view()));

  // Now those that the first token does not want.
  poison(gate.view(), [&](int64_t i) { return at(flags, 0, kNeurons, i) == 0.0; });
  poison(wt.view(), [&](int64_t i) { return at(values, 0, kNeurons, i) == 0.0; });
  gated_rows(x.view(), rows, active.view(), h.view(), gpu->exec);
  EXPECT_TRUE(same_bits(h.view().rows(0, 1), expected.view().rows(0, 1)));
  down_rows(expected.view(), DenseRows(wt.view()), {}, y.view(), gpu->exec);
  EXPECT_TRUE(same_bits(y.view().rows(0, 1), expected_y.view().rows(0, 1)));
  EXPECT_TRUE(std::isnan(values_of(y.view().rows(1, kTokens - 1))[0]));
}

// Alone, and in any company.
TEST_P(GpuActiveRows, ATokensBitsDoNotDependOnTheOthers) {
  constexpr int64_t kTokens = 33;
  constexpr int64_t kNeurons = 600;
  constexpr int64_t kIn = 264;
  const GuardedTensor x = on_gpu({kTokens, kIn});
  const GuardedTensor gate = on_gpu({kNeurons, kIn});
  const GuardedTensor up = on_gpu({kNeurons, kIn});
  const GuardedTensor wt = on_gpu({kNeurons, kIn});
  const GuardedTensor g = on_gpu({kTokens, kNeurons});
  const GuardedTensor active = random_mask(kTokens, kNeurons, 0.3);
  struct Results {
    GuardedTensor gated, plain, up, y;
  };
  const auto run = [&](int64_t first, int64_t tokens) {
    const Tensor xs = x.view().rows(first, tokens);
    const Tensor mask = active.view().rows(first, tokens);
    Results results{.gated = empty({tokens, kNeurons}),
                    .plain = empty({tokens, kNeurons}),
                    .up = empty({tokens, kNeurons}),
                    .y = empty({tokens, kIn})};
    const DenseRows gates(gate.view());
    const DenseRows ups(up.view());
    gated_rows(xs, {gates, ups, {}, {}, kRelu}, mask, results.gated.view(), gpu->exec);
    plain_rows(xs, {ups, {}, kFatRelu}, mask, results.plain.view(), gpu->exec);
    up_rows(xs, {ups, {}, kRelu}, g.view().rows(first, tokens), results.up.view(), gpu->exec);
    down_rows(results.gated.view(), DenseRows(wt.view()), {}, results.y.view(), gpu->exec);
    return results;
  };
  const Results all = run(0, kTokens);
  for (const auto& [first, tokens] :
       {std::pair<int64_t, int64_t>{0, 1}, {32, 1}, {5, 1}, {5, 2}, {3, 7}, {1, 32}}) {
    SCOPED_TRACE(fmt::format("{} tokens from {}", tokens, first));
    const Results some = run(first, tokens);
    const auto expect_same = [&](const GuardedTensor& got, const GuardedTensor& whole) {
      EXPECT_TRUE(same_bits(got.view(), whole.view().rows(first, tokens)));
    };
    expect_same(some.gated, all.gated);
    expect_same(some.plain, all.plain);
    expect_same(some.up, all.up);
    expect_same(some.y, all.y);
  }
}

TEST_P(GpuActiveRows, NanAndInfinityAreNotZeroAndMinusZeroIs) {
  constexpr int64_t kNeurons = 33;
  constexpr int64_t kIn = 40;
  const GuardedTensor w =
      random.tensor(GetParam(), {kNeurons, kIn}, Layout::contiguous, 0.1, 1.0, kGpu);
  const DenseRows rows(w.view());
  const GuardedTensor x = empty({2, kIn});
  const GuardedTensor h = empty({2, kNeurons});
  const GuardedTensor y = empty({2, kIn});
  const auto expect_finite_in_the_first_alone = [](const Tensor& of_two) {
    for (const double value : values_of(of_two.rows(0, 1))) {
      EXPECT_TRUE(std::isfinite(value));
    }
    for (const double value : values_of(of_two.rows(1, 1))) {
      EXPECT_FALSE(std::isfinite(value));
    }
  };
  for (const Activation& activation : {kRelu, kFatRelu}) {
    for (const double special : {kNan, kInfinity}) {
      Values values(2 * kIn, 0.5);
      values[kIn + 5] = special;
      set_values(x.view(), values);
      gated_rows(x.view(), {rows, rows, {}, {}, activation}, {}, h.view(), gpu->exec);
      expect_finite_in_the_first_alone(h.view());
      down_rows(h.view(), rows, {}, y.view(), gpu->exec);
      expect_finite_in_the_first_alone(y.view());
      plain_rows(x.view(), {rows, {}, activation}, {}, h.view(), gpu->exec);
      expect_finite_in_the_first_alone(h.view());
      Values gates(2 * kNeurons, 1.0);
      std::fill_n(gates.begin() + kNeurons, kNeurons, special);
      set_values(x.view(), Values(2 * kIn, 0.5));
      set_values(h.view(), gates);
      up_rows(x.view(), {rows, {}, activation}, h.view(), h.view(), gpu->exec);
      expect_finite_in_the_first_alone(h.view());
    }
  }
  // -infinity is zero, and so is -0: rows that are NaN are not read.
  set_values(w.view(), Values(kNeurons * kIn, kNan));
  for (const double zero : {-0.0, 0.0, -kInfinity, -1.0}) {
    set_values(h.view(), Values(2 * kNeurons, zero));
    up_rows(x.view(), {rows, {}, kRelu}, h.view(), h.view(), gpu->exec);
    for (const double value : values_of(h.view())) {
      EXPECT_TRUE(value == 0.0 && !std::signbit(value)) << zero;
    }
  }
  set_values(h.view(), Values(2 * kNeurons, -0.0));
  down_rows(h.view(), rows, {}, y.view(), gpu->exec);
  EXPECT_EQ(values_of(y.view()), Values(2 * kIn, 0.0));
}

// As the CPU counts the same h: neurons of several blocks, tokens of several passes, padding.
TEST_P(GpuActiveRows, AreCounted) {
  for (const int64_t neurons : {1, 512, 531, 2100}) {
    for (const int64_t tokens : {1, 9, 35}) {
      SCOPED_TRACE(fmt::format("{} tokens, {} neurons", tokens, neurons));
      constexpr int64_t kOut = 300;  // several strips
      const GuardedTensor wt = on_gpu({neurons, kOut});
      const GuardedTensor y = empty({tokens, kOut});
      const GuardedTensor mask = random_mask(tokens, neurons, 0.4, Layout::strided);
      const GuardedTensor h = sparse_on_gpu(tokens, neurons, 0.5, Layout::strided);
      const GuardedTensor positions(DType::i32, {tokens}, Layout::contiguous, kGpu);
      Values places;
      for (int64_t token = 0; token < tokens; ++token) {
        places.push_back(token % 4 == 2 ? -1.0 : static_cast<double>(token));
      }
      set_values(positions.view(), places);
      const Buffer memory = make_neuron_counters(kGpu);
      const Buffer memory_of_cpu = make_neuron_counters({});
      NeuronTally tally{.counters = static_cast<NeuronCounters*>(memory.data()),
                        .positions = positions.view(),
                        .active = mask.view()};
      NeuronTally of_cpu{.counters = static_cast<NeuronCounters*>(memory_of_cpu.data())};
      const auto expect_same = [&](const char* what) {
        SCOPED_TRACE(what);
        gpu->cuda.synchronize();
        const NeuronCounters counts = read_neuron_counters(memory);
        const NeuronCounters expected = read_neuron_counters(memory_of_cpu);
        EXPECT_EQ(counts.rows, expected.rows);
        EXPECT_EQ(counts.skipped, expected.skipped);
        EXPECT_EQ(counts.active, expected.active);
      };
      const GuardedTensor cpu_positions(DType::i32, {tokens});
      const GuardedTensor cpu_mask(DType::u8, {tokens, neurons});
      set_values(cpu_positions.view(), places);
      set_values(cpu_mask.view(), values_of(mask.view()));
      of_cpu.positions = cpu_positions.view();
      of_cpu.active = cpu_mask.view();

      down_rows(h.view(), DenseRows(wt.view()), {}, tally, y.view(), gpu->exec);
      count_neurons_cpu(cpu_twin(h.view()).view(), of_cpu);
      expect_same("down");
      tally.positions = {};
      tally.active = {};
      of_cpu.positions = {};
      of_cpu.active = {};
      down_rows(h.view(), DenseRows(wt.view()), {}, tally, y.view(), gpu->exec);
      count_neurons_cpu(cpu_twin(h.view()).view(), of_cpu);
      expect_same("nothing predicted, no padding");
      down_rows(h.view(), DenseRows(wt.view()), {}, y.view(), gpu->exec);
      expect_same("not counted");
      EXPECT_TRUE(h.guards_intact() && mask.guards_intact());
    }
  }
}

TEST_P(GpuActiveRows, CanBeCapturedAndTakesTheWorkspaceThatItSays) {
  for (const int64_t tokens : {1, 3, 40}) {
    SCOPED_TRACE(fmt::format("{} tokens", tokens));
    constexpr int64_t kNeurons = 530;
    constexpr int64_t kIn = 33;
    const GuardedTensor x = on_gpu({tokens, kIn});
    const GuardedTensor w = on_gpu({kNeurons, kIn});
    const DenseRows rows(w.view());
    const GuardedTensor h = empty({tokens, kNeurons});
    const GuardedTensor y = empty({tokens, kIn});
    const GuardedTensor expected = empty({tokens, kIn});
    Workspace workspace(kGpu, down_rows_workspace_bytes(kGpu, kNeurons, kIn, tokens));
    ExecContext exec{
        .device = kGpu, .workspace = workspace, .threads = gpu->threads, .cuda = &gpu->cuda};
    const auto forward = [&](const Tensor& to) {
      gated_rows(x.view(), {rows, rows, {}, {}, kRelu}, {}, h.view(), exec);
      down_rows(h.view(), rows, {}, to, exec);
    };
    const CudaGraph graph(gpu->cuda, [&] { forward(y.view()); });
    EXPECT_EQ(workspace.peak_bytes(), workspace.bytes());
    for (int launches = 0; launches < 2; ++launches) {
      graph.launch();
      gpu->cuda.synchronize();
    }
    forward(expected.view());
    EXPECT_TRUE(same_bits(y.view(), expected.view()));
  }
}

TEST_P(GpuActiveRows, NoNeuronsNoOutputsNoTokensNoInputs) {
  const GuardedTensor bias(DType::f32, {3}, Layout::contiguous, kGpu);
  set_values(bias.view(), Values{1.0, 2.0, 3.0});
  const GuardedTensor wt = empty({0, 3});
  const GuardedTensor h = empty({2, 0});
  const GuardedTensor y = empty({2, 3});
  down_rows(h.view(), DenseRows(wt.view()), bias.view(), y.view(), gpu->exec);
  EXPECT_EQ(values_of(y.view()), (Values{1.0, 2.0, 3.0, 1.0, 2.0, 3.0}));
  down_rows(h.view().rows(0, 0), DenseRows(wt.view()), {}, y.view().rows(0, 0), gpu->exec);
  const GuardedTensor x = on_gpu({2, 3});
  gated_rows(x.view(), {DenseRows(wt.view()), DenseRows(wt.view()), {}, {}, kRelu}, {}, h.view(),
             gpu->exec);
  const GuardedTensor columns = empty({3, 0});
  down_rows(x.view(), DenseRows(columns.view()), {}, h.view(), gpu->exec);
  // Without inputs there is the bias alone.
  const GuardedTensor all = empty({2, 3});
  plain_rows(h.view(), {DenseRows(columns.view()), bias.view(), kRelu}, {}, all.view(), gpu->exec);
  EXPECT_EQ(values_of(all.view()), values_of(y.view()));
}

}  // namespace
}  // namespace sparsellm
