#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "kernels/base/tune_cache.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Kind = Activation::Kind;

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr Activation kActivations[] = {
    {Kind::none, 0.0f},      {Kind::relu, 0.0f}, {Kind::gelu, 0.0f},
    {Kind::gelu_tanh, 0.0f}, {Kind::silu, 0.0f}, {Kind::fatrelu, 0.25f},
};
constexpr int64_t kTokens[] = {1, 2, 3, 4, 5, 8, 17, 130};
struct Shape {
  int64_t out;
  int64_t in;
};
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {16, 8}, {33, 257}, {129, 640}};

double apply(const Activation& activation, double x) {
  switch (activation.kind) {
    case Kind::none:
      return x;
    case Kind::relu:
      return x > 0.0 ? x : 0.0;
    case Kind::gelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Kind::gelu_tanh:
      return 0.5 * x *
             (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Kind::silu:
      return x / (1.0 + std::exp(-x));
    case Kind::fatrelu:
      return x > static_cast<double>(activation.threshold) ? x : 0.0;
  }
  return std::nan("");
}

// No slope of an activation is above 1.13, so that an error of the sum grows by no more.
Expected reference(const Tensor& x, const Tensor& w, const Epilogue& epilogue) {
  const std::vector<double> a = values_of(x);
  const std::vector<double> b = values_of(w);
  const auto tokens = static_cast<size_t>(x.size(0));
  const auto out = static_cast<size_t>(w.size(0));
  const auto in = static_cast<size_t>(w.size(1));
  const std::vector<double> bias =
      epilogue.bias.empty() ? std::vector<double>(out, 0.0) : values_of(epilogue.bias);
  Expected result;
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t o = 0; o < out; ++o) {
      double sum = bias[o];
      double magnitude = std::abs(bias[o]);
      for (size_t i = 0; i < in; ++i) {
        const double product = a[t * in + i] * b[o * in + i];
        sum += product;
        magnitude += std::abs(product);
      }
      result.values.push_back(apply(epilogue.activation, sum));
      result.magnitudes.push_back(magnitude);
    }
  }
  return result;
}

// fatrelu jumps: a sum that rounds to the other side of the threshold is right too.
void accept_either_side(const Activation& activation, const Tensor& y, Expected& expected) {
  if (activation.kind != Kind::fatrelu) {
    return;
  }
  const std::vector<double> got = values_of(y);
  for (size_t i = 0; i < got.size(); ++i) {
    const double edge = std::max(got[i], expected.values[i]) - double{activation.threshold};
    if (std::abs(edge) < 1e-6 * expected.magnitudes[i]) {
      expected.values[i] = got[i];
    }
  }
}

TEST(Gemm, AnySizeStrideDtypeEpilogueAndThreadCount) {
  Random random(51);
  CpuContext contexts[] = {CpuContext(1), CpuContext(2), CpuContext(5)};
  size_t combination = 0;
  for (const Shape& shape : kShapes) {
    for (int64_t tokens : kTokens) {
      for (DType weight_dtype : kFloats) {
        ++combination;
        CpuContext& cpu = contexts[combination % 3];
        const Layout x_layout = combination / 2 % 2 == 0 ? Layout::contiguous : Layout::strided;
        const Layout w_layout = combination / 3 % 2 == 0 ? Layout::contiguous : Layout::strided;
        const Layout y_layout = combination / 5 % 2 == 0 ? Layout::contiguous : Layout::strided;
        const Activation activation = kActivations[combination % std::size(kActivations)];
        const bool has_bias = combination % 4 != 0;
        const DType bias_dtype = kFloats[combination / 4 % 3];
        SCOPED_TRACE(fmt::format("{} threads, {} tokens, w {} [{}, {}], bias {}, {}",
                                 cpu.threads.size(), tokens, name_of(weight_dtype), shape.out,
                                 shape.in, has_bias ? name_of(bias_dtype) : "none",
                                 name_of(activation.kind)));
        const GuardedTensor x = random.tensor(DType::f32, {tokens, shape.in}, x_layout);
        const GuardedTensor w = random.tensor(weight_dtype, {shape.out, shape.in}, w_layout);
        const GuardedTensor bias = random.tensor(bias_dtype, {shape.out});
        const GuardedTensor y(DType::f32, {tokens, shape.out}, y_layout);
        const Epilogue epilogue{.bias = has_bias ? bias.view() : Tensor(),
                                .activation = activation};
        Expected expected = reference(x.view(), w.view(), epilogue);
        gemm(x.view(), w.view(), epilogue, y.view(), cpu.exec);
        accept_either_side(activation, y.view(), expected);
        EXPECT_TRUE(all_close(y.view(), expected, 2.0));
        EXPECT_TRUE(y.guards_intact());
      }
    }
  }
}

// More than are multiplied at once.
TEST(Gemm, ManyTokens) {
  CpuContext cpu(2);
  Random random(31);
  const GuardedTensor x = random.tensor(DType::f32, {1000, 70});
  const GuardedTensor w = random.tensor(DType::f16, {3, 70});
  const GuardedTensor y(DType::f32, {1000, 3});
  gemm(x.view(), w.view(), {}, y.view(), cpu.exec);
  EXPECT_TRUE(all_close(y.view(), reference(x.view(), w.view(), {}), 70.0));
  EXPECT_TRUE(y.guards_intact());
}

TEST(Gemm, TakesTheWorkspaceThatItSays) {
  Random random(53);
  for (int64_t in : {1, 70, 1025}) {
    const GuardedTensor w = random.tensor(DType::f16, {3, in});
    for (int64_t tokens : {1, 6, 7, 127, 128, 129, 300}) {
      SCOPED_TRACE(fmt::format("{} tokens, [3, {}]", tokens, in));
      const int64_t bytes = gemm_workspace_bytes({}, in, tokens);
      CpuContext cpu(1, bytes);
      const GuardedTensor x = random.tensor(DType::f32, {tokens, in});
      const GuardedTensor y(DType::f32, {tokens, 3});
      gemm(x.view(), w.view(), {}, y.view(), cpu.exec);
      EXPECT_EQ(cpu.workspace.peak_bytes(), bytes);
      EXPECT_TRUE(all_close(y.view(), reference(x.view(), w.view(), {}), 70.0));
    }
  }
  EXPECT_EQ(gemm_workspace_bytes({Device::Kind::cuda, 0}, 1025, 300), 0);
}

TEST(Gemm, EveryActivationWithEveryBias) {
  Random random(52);
  CpuContext cpu(2);
  for (int64_t tokens : {1, 6}) {
    for (const Activation& activation : kActivations) {
      for (DType dtype : kFloats) {
        for (bool has_bias : {false, true}) {
          SCOPED_TRACE(fmt::format("{} tokens, {}, bias {}", tokens, name_of(activation.kind),
                                   has_bias ? name_of(dtype) : "none"));
          const GuardedTensor x = random.tensor(DType::f32, {tokens, 31});
          const GuardedTensor w = random.tensor(dtype, {45, 31});
          const GuardedTensor bias = random.tensor(dtype, {45});
          const GuardedTensor y(DType::f32, {tokens, 45});
          const Epilogue epilogue{.bias = has_bias ? bias.view() : Tensor(),
                                  .activation = activation};
          Expected expected = reference(x.view(), w.view(), epilogue);
          gemm(x.view(), w.view(), epilogue, y.view(), cpu.exec);
          accept_either_side(activation, y.view(), expected);
          EXPECT_TRUE(all_close(y.view(), expected, 2.0));
        }
      }
    }
  }
}

// Long enough that blocks of x, several ranges and both paths (weights as stored, weights expanded)
// take part.
TEST(Gemm, ARowHasTheSameBitsInAnyBatch) {
  Random random(53);
  CpuContext one(1, 8 << 20);
  CpuContext five(5, 8 << 20);
  for (DType dtype : kFloats) {
    for (const Shape& shape : {Shape{3, 7}, Shape{97, 257}, Shape{70, 1100}}) {
      const int64_t tokens = 150;
      SCOPED_TRACE(fmt::format("{} [{}, {}]", name_of(dtype), shape.out, shape.in));
      const GuardedTensor x = random.tensor(DType::f32, {tokens, shape.in}, Layout::strided);
      const GuardedTensor w = random.tensor(dtype, {shape.out, shape.in});
      const GuardedTensor bias = random.tensor(DType::f32, {shape.out});
      const Epilogue epilogue{.bias = bias.view(), .activation = {Kind::silu, 0.0f}};
      const GuardedTensor alone(DType::f32, {tokens, shape.out});
      for (int64_t t = 0; t < tokens; ++t) {
        gemm(x.view().rows(t, 1), w.view(), epilogue, alone.view().rows(t, 1), one.exec);
      }
      for (int64_t batch : {2, 3, 4, 5, 7, 8, 33, 150}) {
        for (CpuContext* cpu : {&one, &five}) {
          const GuardedTensor y(DType::f32, {tokens, shape.out}, Layout::strided);
          for (int64_t t = 0; t < tokens; t += batch) {
            const int64_t rows = std::min(batch, tokens - t);
            gemm(x.view().rows(t, rows), w.view(), epilogue, y.view().rows(t, rows), cpu->exec);
          }
          EXPECT_TRUE(same_bits(y.view(), alone.view()))
              << "batches of " << batch << ", " << cpu->threads.size() << " threads";
        }
      }
    }
  }
}

TEST(Gemm, AnOutputDoesNotDependOnTheOtherRowsOfTheWeight) {
  Random random(54);
  CpuContext cpu;
  const GuardedTensor w = random.tensor(DType::f16, {29, 100});
  for (int64_t tokens : {1, 3, 9}) {
    const GuardedTensor x = random.tensor(DType::f32, {tokens, 100});
    const GuardedTensor all(DType::f32, {tokens, 29});
    gemm(x.view(), w.view(), {}, all.view(), cpu.exec);
    const GuardedTensor single(DType::f32, {tokens, 29});
    for (int64_t row = 0; row < 29; ++row) {
      gemm(x.view(), w.view().rows(row, 1), {}, single.view().columns(row, 1), cpu.exec);
    }
    EXPECT_TRUE(same_bits(single.view(), all.view())) << tokens;
  }
}

TEST(Gemm, NanAndInfinityReachWhatTheyTakePartIn) {
  Random random(55);
  CpuContext cpu(2);
  for (int64_t tokens : {1, 6}) {
    for (int64_t place : {0, 13, 18}) {  // vectors and the tail
      const GuardedTensor x = random.tensor(DType::f32, {tokens, 19});
      const GuardedTensor w = random.tensor(DType::bf16, {30, 19});
      x.view().row<float>(tokens - 1)[place] = std::numeric_limits<float>::quiet_NaN();
      const GuardedTensor y(DType::f32, {tokens, 30});
      gemm(x.view(), w.view(), {.bias = {}, .activation = {Kind::relu, 0.0f}}, y.view(), cpu.exec);
      const std::vector<double> values = values_of(y.view());
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(std::isnan(values[i]), i / 30 == static_cast<size_t>(tokens - 1)) << i;
      }
    }
  }
}

TEST(Gemm, RefusesMismatchedOperands) {
  CpuContext cpu;
  const GuardedTensor x(DType::f32, {3, 8});
  const GuardedTensor w(DType::f16, {5, 8});
  const GuardedTensor y(DType::f32, {3, 5});
  const GuardedTensor bias(DType::f16, {5});
  const auto product = [&](const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d) {
    gemm(a, b, {.bias = c, .activation = {}}, d, cpu.exec);
  };
  const GuardedTensor x9(DType::f32, {3, 9});
  const GuardedTensor x_half(DType::f16, {3, 8});
  const GuardedTensor w_ints(DType::i32, {5, 8});
  const GuardedTensor w1(DType::f16, {40});
  const GuardedTensor y4(DType::f32, {4, 5});
  const GuardedTensor y6(DType::f32, {3, 6});
  const GuardedTensor y_half(DType::f16, {3, 5});
  const GuardedTensor bias6(DType::f16, {6});
  const GuardedTensor bias_ints(DType::i32, {5});
  const GuardedTensor bias_row(DType::f16, {1, 5});
  const GuardedTensor square(DType::f32, {3, 8});
  const GuardedTensor w8(DType::f16, {8, 8});
  const Tensor on_gpu(w.view().raw(), DType::f16, {5, 8}, {Device::Kind::cuda, 0});
  struct Case {
    Tensor x, w, bias, y;
    const char* message;
  };
  const Case cases[] = {
      {x9.view(), w.view(), bias.view(), y.view(), "[3, 9]"},
      {x_half.view(), w.view(), bias.view(), y.view(), "f16"},
      {{}, w.view(), bias.view(), y.view(), "gemm"},
      {x.view(), w_ints.view(), bias.view(), y.view(), "i32"},
      {x.view(), w1.view(), bias.view(), y.view(), "[40]"},
      {x.view(), {}, bias.view(), y.view(), "gemm"},
      {x.view(), on_gpu, bias.view(), y.view(), "cuda:0"},
      {x.view(), w.view(), bias.view(), y4.view(), "[4, 5]"},
      {x.view(), w.view(), bias.view(), y6.view(), "[3, 6]"},
      {x.view(), w.view(), bias.view(), y_half.view(), "f16"},
      {x.view(), w.view(), bias.view(), {}, "gemm"},
      {x.view(), w.view(), bias6.view(), y.view(), "[6]"},
      {x.view(), w.view(), bias_ints.view(), y.view(), "i32"},
      {x.view(), w.view(), bias_row.view(), y.view(), "[1, 5]"},
      {square.view(), w8.view(), {}, square.view(), "overlap"},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    const Case& c = cases[i];
    EXPECT_TRUE(throws_error([&] { product(c.x, c.w, c.bias, c.y); }, c.message)) << "case " << i;
  }
}

TEST(TuneGemm, OnTheCpuThereIsNoChoice) {
  CpuContext cpu;
  TuneCache cache;
  const GuardedTensor w(DType::f16, {5, 8});
  const GuardedTensor other(DType::f16, {5, 9});
  const GuardedTensor taller(DType::f16, {6, 8});
  const Tensor strided = other.view().columns(0, 8);
  const GuardedTensor f32(DType::f32, {5, 8});
  const GuardedTensor ints(DType::i32, {5, 8});
  const GuardedTensor bias(DType::f32, {5});
  const GuardedTensor long_bias(DType::f32, {6});
  const auto tune = [&](std::vector<Tensor> weights, Tensor b, std::vector<int64_t> tokens) {
    return tune_gemm({.weights = weights,
                      .epilogue = {.bias = b, .activation = {}},
                      .y = DType::f32,
                      .tokens = tokens},
                     cache, cpu.exec);
  };
  EXPECT_EQ(tune({w.view(), w.view()}, {}, {1, 16}), 0);
  EXPECT_EQ(tune({w.view()}, bias.view(), {1 << 20}), 0);
  const Tensor weights[] = {w.view()};
  const auto tune_transposed = [&](const Tensor& b) {
    return tune_gemm({.weights = weights,
                      .order = WeightOrder::in_out,
                      .epilogue = {.bias = b, .activation = {}},
                      .y = DType::f32,
                      .tokens = {}},
                     cache, cpu.exec);
  };
  const GuardedTensor bias_of_eight(DType::f32, {8});
  EXPECT_EQ(tune_transposed(bias_of_eight.view()), 0);
  EXPECT_TRUE(throws_error([&] { tune_transposed(bias.view()); }, "bias is f32 [5] on cpu"));
  struct Case {
    std::vector<Tensor> weights;
    Tensor bias;
    std::vector<int64_t> tokens;
    const char* message;
  };
  const Case cases[] = {
      {{}, {}, {1}, "tune_gemm: there are no weights"},
      {{ints.view()}, {}, {1}, "i32"},
      {{w.view(), f32.view()}, {}, {1}, "f32"},
      {{w.view(), other.view()},
       {},
       {1},
       "tune_gemm: weights [5, 8] and [5, 9] with row strides 8 and 9"},
      {{w.view(), w.view(), taller.view()},
       {},
       {1},
       "weights [5, 8] and [6, 8] with row strides 8 and 8"},
      {{w.view(), strided}, {}, {1}, "weights [5, 8] and [5, 8] with row strides 8 and 9"},
      {{w.view()}, long_bias.view(), {1}, "[6]"},
      {{w.view()}, {}, {1, 0}, "tune_gemm: 0 tokens; expected 1 to 1048576"},
      {{w.view()}, {}, {1, (1 << 20) + 1}, "1048577 tokens"},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    const Case& c = cases[i];
    EXPECT_TRUE(throws_error([&] { tune(c.weights, c.bias, c.tokens); }, c.message)) << i;
  }
}

}  // namespace
}  // namespace sparsellm
