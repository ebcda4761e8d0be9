// fused_mlp() against products in double, of the neurons that the CPU's predictor leaves.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sparse/activation/fused_mlp.h"
#include "sparse/activation/sign_predictor.h"
#include "sparse/activation/sign_words.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

struct FusedCase {
  int64_t neurons = 0;
  int64_t in = 0;
  int64_t out = 0;
  int64_t tokens = 1;
  bool gated = true;
  bool exact = false;  // gates are given
  bool biases = false;
  Votes votes = Votes::weighted;
  float alpha = 1.0f;
  Activation activation = {.kind = Activation::Kind::relu};
  Layout layout = Layout::contiguous;
  std::vector<int32_t> positions = {};
  bool zeros_of_x = false;
  bool relu_up = false;
};

std::vector<double> product(const std::vector<double>& rows, const std::vector<double>& x,
                            int64_t tokens, const std::vector<double>& bias) {
  const auto in = static_cast<int64_t>(x.size()) / tokens;
  const auto neurons = static_cast<int64_t>(rows.size()) / in;
  std::vector<double> y;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t n = 0; n < neurons; ++n) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(n)];
      for (int64_t k = 0; k < in; ++k) {
        sum += rows[static_cast<size_t>(n * in + k)] * x[static_cast<size_t>(t * in + k)];
      }
      y.push_back(sum);
    }
  }
  return y;
}

class GpuFusedMlp : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    Weights weights(*this, {.neurons = 32, .in = 128, .out = 8});
    if (!fused_mlp_fits(weights.mlp, gpu->exec)) {
      GTEST_SKIP() << "this GPU has no kernel of fused MLPs";
    }
  }

  // On the GPU, around 0, scaled so that h is about as large as x.
  struct Weights {
    Weights(GpuFusedMlp& test, const FusedCase& c)
        : gate(test.matrix(c.gated ? c.neurons : 0, c.in)),
          up(test.matrix(c.neurons, c.in)),
          down(test.matrix(c.neurons, c.out)),
          gate_bias(test.vector(c.biases && c.gated ? c.neurons : 0)),
          up_bias(test.vector(c.biases ? c.neurons : 0)),
          down_bias(test.vector(c.biases ? c.out : 0)),
          signs(pack_sign_words(c.gated ? gate.view() : up.view(), test.gpu->exec)) {
      mlp = {.gate = c.gated ? gate.view() : Tensor(),
             .up = up.view(),
             .down = down.view(),
             .gate_bias = c.biases && c.gated ? gate_bias.view() : Tensor(),
             .up_bias = c.biases ? up_bias.view() : Tensor(),
             .down_bias = c.biases ? down_bias.view() : Tensor(),
             .signs = signs.view(),
             .activation = c.activation,
             .relu_up = c.relu_up,
             .prediction = {.votes = c.votes, .alpha = c.alpha}};
    }
    GuardedTensor gate, up, down, gate_bias, up_bias, down_bias;
    OwnedSignWords signs;
    FusedMlp mlp;
  };

  GuardedTensor matrix(int64_t rows, int64_t columns) {
    const double scale = 2.0 / std::sqrt(static_cast<double>(columns));
    GuardedTensor w =
        random.tensor(GetParam(), {rows, columns}, Layout::contiguous, -scale, scale, kGpu);
    std::vector<double> values = values_of(w.view());
    for (double& v : values) {
      v = v == 0.0 ? scale / 2 : v;  // no zeros among signs
    }
    set_values(w.view(), values);
    return w;
  }
  GuardedTensor vector(int64_t size) {
    return random.tensor(GetParam(), {size}, Layout::contiguous, -0.2, 0.2, kGpu);
  }
  // Rows at multiples of 16 bytes, also where they are strided.
  GuardedTensor rows(int64_t tokens, int64_t columns) {
    return random.tensor(GetParam(), {tokens, columns}, Layout::contiguous, -1.5, 1.5, kGpu);
  }

  std::vector<uint8_t> active_of(const FusedCase& c, const Weights& w, const Tensor& x) {
    std::vector<uint8_t> active(static_cast<size_t>(c.tokens * c.neurons), 1);
    if (!c.exact) {
      predict(c, w, x, active);
    }
    for (size_t t = 0; t < c.positions.size(); ++t) {
      for (int64_t n = 0; n < c.neurons && c.positions[t] < 0; ++n) {
        active[t * static_cast<size_t>(c.neurons) + static_cast<size_t>(n)] = 0;
      }
    }
    return active;
  }
  void predict(const FusedCase& c, const Weights& w, const Tensor& x,
               std::vector<uint8_t>& active) {
    const GuardedTensor twin = cpu_twin(x);
    const GuardedTensor voters = cpu_twin(c.gated ? w.gate.view() : w.up.view());
    const OwnedSignWords words = pack_sign_words(voters.view(), cpu.exec);
    CpuContext ctx(2, sign_predictor_workspace_bytes({}, c.in, c.tokens));
    predict_active(twin.view(), words.view(), w.mlp.prediction,
                   Tensor(active.data(), DType::u8, {c.tokens, c.neurons}, {}), ctx.exec);
  }

  // Values, and what they may be off by.
  std::pair<std::vector<double>, std::vector<double>> expected(const FusedCase& c, const Weights& w,
                                                               const Tensor& x) {
    const std::vector<uint8_t> active = active_of(c, w, x);
    const std::vector<double> xs = values_of(x);
    const auto bias = [&](const GuardedTensor& b) {
      return c.biases ? values_of(b.view()) : std::vector<double>();
    };
    const std::vector<double> up = product(values_of(w.up.view()), xs, c.tokens, bias(w.up_bias));
    std::vector<double> gate = up;
    if (c.exact) {
      gate = values_of(w.mlp.gates);
    } else if (c.gated) {
      gate = product(values_of(w.gate.view()), xs, c.tokens, bias(w.gate_bias));
    }
    const std::vector<double> down = values_of(w.down.view());
    const std::vector<double> down_bias = bias(w.down_bias);
    const double threshold = c.activation.threshold;
    const double epsilon = GetParam() == DType::f16 ? 0x1p-10 : 0x1p-7;
    std::vector<double> values;
    std::vector<double> tolerances;
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t o = 0; o < c.out; ++o) {
        double sum = c.biases ? down_bias[static_cast<size_t>(o)] : 0.0;
        double magnitude = std::abs(sum);
        double at_threshold = 0.0;  // of gates that rounding may move over the threshold
        for (int64_t n = 0; n < c.neurons; ++n) {
          const auto i = static_cast<size_t>(t * c.neurons + n);
          if (active[i] == 0) {
            continue;
          }
          const double factor = c.relu_up ? std::max(up[i], 0.0) : up[i];
          const double h = c.gated ? gate[i] * factor : gate[i];
          const double term = h * down[static_cast<size_t>(n * c.out + o)];
          if (std::abs(gate[i] - threshold) < 1e-4) {
            at_threshold += std::abs(term);
          }
          if (gate[i] > threshold) {
            sum += term;
            magnitude += std::abs(term);
          }
        }
        values.push_back(sum);
        tolerances.push_back(epsilon * (magnitude + std::abs(sum)) + at_threshold + 1e-5);
      }
    }
    return {values, tolerances};
  }

  void check(const FusedCase& c) {
    SCOPED_TRACE("neurons " + std::to_string(c.neurons) + ", in " + std::to_string(c.in) +
                 ", out " + std::to_string(c.out) + ", tokens " + std::to_string(c.tokens) +
                 (c.exact   ? ", exact"
                  : c.gated ? ", gated"
                            : ", plain") +
                 (c.votes == Votes::sign ? ", signs" : "") + ", alpha " + std::to_string(c.alpha));
    Weights w(*this, c);
    const GuardedTensor gates = rows(c.tokens, c.neurons);
    if (c.exact) {
      w.mlp.gate = {};
      w.mlp.gate_bias = {};
      w.mlp.signs = {};
      w.mlp.gates = gates.view();
    }
    ASSERT_TRUE(fused_mlp_fits(w.mlp, gpu->exec));
    const GuardedTensor x = rows(c.tokens, c.in);
    if (c.zeros_of_x) {
      std::vector<double> values = values_of(x.view());
      for (size_t i = 0; i < values.size(); i += 1 + random.below(4)) {
        values[i] = random.below(2) == 0 ? 0.0 : -0.0;
      }
      set_values(x.view(), values);
    }
    const GuardedTensor y(GetParam(), {c.tokens, c.out}, c.layout, kGpu);
    std::optional<GuardedTensor> positions;
    if (!c.positions.empty()) {
      positions.emplace(i32_tensor(c.positions, kGpu));
    }
    for (const Sums sums : {Sums::fastest, Sums::batch_invariant}) {
      gpu->exec.sums = sums;
      fused_mlp(x.view(), positions ? positions->view() : Tensor(), w.mlp, y.view(), gpu->exec);
      gpu->cuda.synchronize();
      const auto [values, tolerances] = expected(c, w, x.view());
      EXPECT_TRUE(all_close(y.view(), values, tolerances));
      EXPECT_TRUE(y.guards_intact());
    }
    gpu->exec.sums = Sums::fastest;
  }

  Random random{29};
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuFusedMlp, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuFusedMlp, HasTheValuesOfActiveNeurons) {
  for (const bool gated : {true, false}) {
    for (const int64_t tokens : {1, 2, 3, 5, 8, 11}) {
      check({.neurons = 1000, .in = 256, .out = 264, .tokens = tokens, .gated = gated});
    }
    check({.neurons = 32, .in = 128, .out = 8, .gated = gated});
    check({.neurons = 17, .in = 128, .out = 8, .tokens = 2, .gated = gated, .alpha = 1e6f});
    check({.neurons = 533, .in = 640, .out = 1000, .tokens = 4, .gated = gated, .biases = true});
    check({.neurons = 700,
           .in = 1152,
           .out = 520,
           .gated = gated,
           .votes = Votes::sign,
           .alpha = 0.97f});
  }
}

// Of one or two tokens counted bit by bit, of more by products; zeros of both signs do not vote.
TEST_P(GpuFusedMlp, VotesThatCountOne) {
  for (const int64_t tokens : {1, 2, 3, 8}) {
    for (const int64_t in : {256, 640, 1664}) {
      check({.neurons = 700,
             .in = in,
             .out = 136,
             .tokens = tokens,
             .gated = tokens % 2 == 1,
             .votes = Votes::sign,
             .alpha = 0.97f,
             .zeros_of_x = true});
    }
  }
}

// A warp has 4, 5, 7 and 9 steps of columns.
TEST_P(GpuFusedMlp, WideRows) {
  for (const int64_t width : {4096, 5120, 7168, 9216}) {
    for (const bool gated : {true, false}) {
      check({.neurons = 150, .in = width, .out = 264, .tokens = 2, .gated = gated});
    }
  }
}

TEST_P(GpuFusedMlp, OfGatesThatAreGiven) {
  for (const int64_t tokens : {1, 2, 6, 8, 11}) {
    check({.neurons = 1000, .in = 256, .out = 264, .tokens = tokens, .exact = true});
  }
  check({.neurons = 900,
         .in = 512,
         .out = 256,
         .tokens = 4,
         .exact = true,
         .biases = true,
         .activation = {.kind = Activation::Kind::fatrelu, .threshold = 0.9f},
         .layout = Layout::strided,
         .positions = {7, -1, 0, -1}});
  check({.neurons = 700,
         .in = 384,
         .out = 512,
         .exact = true,
         .activation = {.kind = Activation::Kind::fatrelu, .threshold = 2.0f}});
}

TEST_P(GpuFusedMlp, ReluOfEitherFactor) {
  for (const bool exact : {false, true}) {
    for (const int64_t tokens : {1, 2, 5, 11}) {
      check({.neurons = 1000,
             .in = 256,
             .out = 264,
             .tokens = tokens,
             .exact = exact,
             .biases = tokens % 2 == 1,
             .relu_up = true});
    }
  }
}

TEST_P(GpuFusedMlp, TakesNoneAndAllNeurons) {
  for (const bool gated : {true, false}) {
    for (const float alpha : {1e-6f, 1e6f}) {
      for (const int64_t tokens : {1, 3}) {
        check({.neurons = 3000,
               .in = 384,
               .out = 512,
               .tokens = tokens,
               .gated = gated,
               .biases = true,
               .alpha = alpha});
      }
    }
  }
}

TEST_P(GpuFusedMlp, ThresholdsPaddingAndStrides) {
  const Activation fatrelu{.kind = Activation::Kind::fatrelu, .threshold = 0.2f};
  for (const bool gated : {true, false}) {
    check({.neurons = 900,
           .in = 512,
           .out = 256,
           .tokens = 3,
           .gated = gated,
           .activation = fatrelu,
           .layout = Layout::strided});
    check({.neurons = 900,
           .in = 512,
           .out = 256,
           .tokens = 4,
           .gated = gated,
           .biases = true,
           .positions = {7, -1, 0, -1}});
  }
}

// Rows of down are left out where h of one or two tokens is zero: none of them, about half, most
// and all. A warp has entries for more than a ring of stages, and in the last two cases for
// several.
TEST_P(GpuFusedMlp, LeavesOutZerosOfH) {
  const auto check_at = [&](float threshold, FusedCase c) {
    SCOPED_TRACE("threshold " + std::to_string(threshold));
    c.in = 128;
    c.alpha = 1e6f;
    c.activation = {.kind = Activation::Kind::fatrelu, .threshold = threshold};
    check(c);
  };
  for (const bool gated : {true, false}) {
    for (const int64_t tokens : {1, 2}) {
      for (const float threshold : {-20.0f, 0.0f, 1.5f}) {
        check_at(threshold, {.neurons = 5000, .out = 264, .tokens = tokens, .gated = gated});
      }
    }
    check_at(20.0f, {.neurons = 5000, .out = 264, .gated = gated, .biases = true});
  }
  check_at(0.0f, {.neurons = 9000, .out = 520, .gated = false});
  check_at(0.7f, {.neurons = 9000, .out = 520, .tokens = 2, .biases = true});
}

// What is left out is not a matter of when words of h arrive.
TEST_P(GpuFusedMlp, LeavesOutTheSameInEachRun) {
  for (const bool gated : {true, false}) {
    for (const int64_t tokens : {1, 2}) {
      const FusedCase c{
          .neurons = 5000, .in = 128, .out = 264, .tokens = tokens, .gated = gated, .alpha = 1e6f};
      const Weights w(*this, c);
      const GuardedTensor x = rows(c.tokens, c.in);
      const GuardedTensor once(GetParam(), {c.tokens, c.out}, Layout::contiguous, kGpu);
      fused_mlp(x.view(), {}, w.mlp, once.view(), gpu->exec);
      for (int run = 0; run < 10; ++run) {
        const GuardedTensor again(GetParam(), {c.tokens, c.out}, Layout::contiguous, kGpu);
        fused_mlp(x.view(), {}, w.mlp, again.view(), gpu->exec);
        gpu->cuda.synchronize();
        EXPECT_TRUE(same_bits(again.view(), once.view()));
      }
    }
  }
}

TEST_P(GpuFusedMlp, HasTheSameBitsInAnyBatch) {
  for (const bool gated : {true, false}) {
    const FusedCase c{
        .neurons = 2000, .in = 512, .out = 512, .tokens = 8, .gated = gated, .alpha = 0.95f};
    const Weights w(*this, c);
    const GuardedTensor x = rows(c.tokens, c.in);
    gpu->exec.sums = Sums::batch_invariant;
    const GuardedTensor all(GetParam(), {c.tokens, c.out}, Layout::contiguous, kGpu);
    fused_mlp(x.view(), {}, w.mlp, all.view(), gpu->exec);
    for (int64_t first = 0; first < c.tokens; ++first) {
      for (const int64_t count : {1, 3}) {
        if (first + count > c.tokens) {
          continue;
        }
        const GuardedTensor some(GetParam(), {count, c.out}, Layout::contiguous, kGpu);
        fused_mlp(x.view().rows(first, count), {}, w.mlp, some.view(), gpu->exec);
        gpu->cuda.synchronize();
        EXPECT_TRUE(same_bits(some.view(), all.view().rows(first, count)));
      }
    }
    gpu->exec.sums = Sums::fastest;
    const GuardedTensor once(GetParam(), {c.tokens, c.out}, Layout::contiguous, kGpu);
    fused_mlp(x.view(), {}, w.mlp, once.view(), gpu->exec);
    for (int run = 0; run < 10; ++run) {
      const GuardedTensor again(GetParam(), {c.tokens, c.out}, Layout::contiguous, kGpu);
      fused_mlp(x.view(), {}, w.mlp, again.view(), gpu->exec);
      gpu->cuda.synchronize();
      EXPECT_TRUE(same_bits(again.view(), once.view()));
    }
  }
}

// As a layer calls it.
TEST_P(GpuFusedMlp, MayWriteToX) {
  const FusedCase c{.neurons = 500, .in = 256, .out = 256, .tokens = 11};
  const Weights w(*this, c);
  const GuardedTensor x = rows(c.tokens, c.in);
  const GuardedTensor y(GetParam(), {c.tokens, c.out}, Layout::contiguous, kGpu);
  fused_mlp(x.view(), {}, w.mlp, y.view(), gpu->exec);
  fused_mlp(x.view(), {}, w.mlp, x.view(), gpu->exec);
  gpu->cuda.synchronize();
  EXPECT_TRUE(same_bits(x.view(), y.view()));
}

// A NaN is not below a threshold, and takes the votes of its token away: every neuron is active.
TEST_P(GpuFusedMlp, NanStaysNan) {
  for (const Votes votes : {Votes::weighted, Votes::sign}) {
    for (const int64_t tokens : {2, 3}) {
      const FusedCase c{.neurons = 200, .in = 256, .out = 64, .tokens = tokens, .votes = votes};
      const Weights w(*this, c);
      const GuardedTensor x = rows(c.tokens, c.in);
      std::vector<double> values = values_of(x.view());
      values[3] = std::nan("");
      set_values(x.view(), values);
      const GuardedTensor y(GetParam(), {c.tokens, c.out}, Layout::contiguous, kGpu);
      set_values(y.view(), std::vector<double>(static_cast<size_t>(c.tokens * c.out), 1.0));
      fused_mlp(x.view(), {}, w.mlp, y.view(), gpu->exec);
      gpu->cuda.synchronize();
      const std::vector<double> got = values_of(y.view());
      for (int64_t i = 0; i < c.tokens * c.out; ++i) {
        EXPECT_EQ(std::isnan(got[static_cast<size_t>(i)]), i < c.out);
      }
    }
  }
}

TEST_P(GpuFusedMlp, RefusesWhatDoesNotFit) {
  const FusedCase c{.neurons = 100, .in = 256, .out = 64, .tokens = 2};
  Weights w(*this, c);
  const GuardedTensor x = rows(c.tokens, c.in);
  const GuardedTensor y(GetParam(), {c.tokens, c.out}, Layout::contiguous, kGpu);
  FusedMlp other = w.mlp;
  other.prediction.alpha = 0.0f;
  EXPECT_TRUE(throws_error([&] { fused_mlp(x.view(), {}, other, y.view(), gpu->exec); },
                           "fused_mlp: alpha is 0; expected a finite number above 0"));
  other = w.mlp;
  other.activation = {.kind = Activation::Kind::silu};
  EXPECT_TRUE(throws_error([&] { fused_mlp(x.view(), {}, other, y.view(), gpu->exec); },
                           "fused_mlp: after silu few neurons are zero; expected relu or fatrelu"));
  other = w.mlp;
  const GuardedTensor gates = rows(c.tokens, c.neurons);
  other.gates = gates.view();
  EXPECT_TRUE(throws_error([&] { fused_mlp(x.view(), {}, other, y.view(), gpu->exec); },
                           "gates were computed, and their weights or signs are given"));
  const Weights few(*this, {.neurons = 16, .in = 128, .out = 8});
  EXPECT_FALSE(fused_mlp_fits(few.mlp, gpu->exec));
  other = w.mlp;
  other.up = w.mlp.up.columns(0, 200);
  EXPECT_FALSE(fused_mlp_fits(other, gpu->exec));
  other = w.mlp;
  other.signs.nonzero = other.signs.signs;
  EXPECT_FALSE(fused_mlp_fits(other, gpu->exec));
}

}  // namespace
}  // namespace sparsellm
