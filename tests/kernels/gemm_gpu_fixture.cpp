#include "tests/kernels/gemm_gpu_fixture.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/base/tune_cache.h"

namespace sparsellm::testing {
namespace {

double unit_of(DType dtype) {
  return dtype == DType::f16 ? 0x1p-11 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-24;
}

}  // namespace

bool Gemm::is_fused(const Activation& activation) {
  return activation.kind == Kind::none || activation.kind == Kind::relu;
}

GuardedTensor Gemm::on_gpu(std::initializer_list<int64_t> sizes, Layout layout) {
  return random.tensor(GetParam(), sizes, layout, -1.0, 1.0, kGpu);
}

GuardedTensor Gemm::weight_on_gpu(int64_t out, int64_t in, Layout layout) {
  return order == WeightOrder::out_in ? on_gpu({out, in}, layout) : on_gpu({in, out}, layout);
}

OwnedTensor Gemm::bias_on_gpu(int64_t size) {
  OwnedTensor bias = allocate_tensor(kGpu, GetParam(), {size}, "a bias");
  random.fill(bias.view);
  return bias;
}

void Gemm::multiply(const Tensor& x, const Tensor& w, const Epilogue& epilogue, const Tensor& y,
                    ExecContext& ctx) const {
  (order == WeightOrder::out_in ? gemm : gemm_transposed)(x, w, epilogue, y, ctx);
}

GuardedTensor Gemm::sums_of(const Tensor& x, const Tensor& w, const Tensor& bias, int64_t out) {
  GuardedTensor sums(DType::f32, {x.size(0), out});
  const GuardedTensor bias_twin = bias.empty() ? GuardedTensor(DType::f32, {0}) : cpu_twin(bias);
  multiply(cpu_twin(x).view(), cpu_twin(w).view(),
           {.bias = bias.empty() ? Tensor() : bias_twin.view(), .activation = {}}, sums.view(),
           cpu.exec);
  return sums;
}

void Gemm::expect_right(const Tensor& x, const Tensor& w, const Epilogue& epilogue,
                        const GuardedTensor& y) {
  const GuardedTensor twin = sums_of(x, w, epilogue.bias, y.view().size(1));
  const std::vector<double> sums = values_of(twin.view());
  const std::vector<double> biases =
      epilogue.bias.empty() ? std::vector<double>() : values_of(epilogue.bias);
  activate(epilogue.activation, twin.view(), cpu.exec);
  std::vector<double> expected = values_of(twin.view());
  const std::vector<double> got = values_of(y.view());
  const double unit = unit_of(y.view().dtype());
  const double sum_error = 0x1p-22 * static_cast<double>(x.size(1) + 8);
  constexpr double kMaxSlope = 1.13;
  std::vector<double> tolerances;
  for (size_t i = 0; i < sums.size(); ++i) {
    // Sums may be rounded before the bias is added.
    const double of_bias =
        epilogue.bias.empty() ? 0.0 : unit * std::abs(sums[i] - biases[i % biases.size()]);
    const double before = is_fused(epilogue.activation)
                              ? sum_error + of_bias
                              : kMaxSlope * (sum_error + of_bias + unit * std::abs(sums[i]));
    tolerances.push_back(before + unit * std::abs(expected[i]) + 0x1p-25);
    // fatrelu jumps: a sum that rounds to the other side of the threshold is right too.
    if (epilogue.activation.kind == Kind::fatrelu &&
        std::abs(sums[i] - double{epilogue.activation.threshold}) <= before) {
      expected[i] = got[i] == 0.0 ? 0.0 : sums[i];
    }
  }
  EXPECT_TRUE(all_close(y.view(), expected, tolerances));
  EXPECT_TRUE(y.guards_intact());
}

void Gemm::run_and_expect_right(const Tensor& x, const Tensor& w, const Epilogue& epilogue,
                                const GuardedTensor& y) {
  multiply(x, w, epilogue, y.view(), gpu->exec);
  expect_right(x, w, epilogue, y);
}

void Gemm::expect_invariant(const Tensor& x, const Tensor& w, const Epilogue& epilogue,
                            DType y_dtype) {
  const int64_t tokens = x.size(0);
  const int64_t out = w.size(order == WeightOrder::out_in ? 0 : 1);
  const GuardedTensor alone(y_dtype, {tokens, out}, Layout::contiguous, kGpu);
  for (int64_t t = 0; t < tokens; ++t) {
    multiply(x.rows(t, 1), w, epilogue, alone.view().rows(t, 1), gpu->exec);
  }
  const std::vector<std::byte> bits = bytes_of(alone.view());
  const auto row_bytes = out * size_of(y_dtype);
  const GuardedTensor y(y_dtype, {tokens, out}, Layout::contiguous, kGpu);
  for (int64_t count = 1; count <= tokens; ++count) {
    const int64_t begin = count * 7 % (tokens - count + 1);
    const Tensor part = y.view().rows(0, count);
    multiply(x.rows(begin, count), w, epilogue, part, gpu->exec);
    const std::vector<std::byte> got = bytes_of(part);
    ASSERT_EQ(std::memcmp(got.data(), bits.data() + begin * row_bytes, got.size()), 0)
        << count << " rows from row " << begin;
  }
  EXPECT_TRUE(y.guards_intact());
}

void Gemm::expect_right_for(const Sizes& sizes) {
  size_t combination = 0;
  for (const int64_t tokens : sizes.tokens) {
    for (const int64_t in : sizes.in) {
      for (const int64_t out : sizes.out) {
        ++combination;
        const auto layout = [&](size_t period) {
          return combination / period % 2 == 0 ? Layout::contiguous : Layout::strided;
        };
        const Activation activation = kActivations[combination % std::size(kActivations)];
        const bool has_bias = combination / 6 % 2 == 0;
        const DType y_dtype =
            is_fused(activation) && !has_bias && combination % 4 == 0 ? DType::f32 : GetParam();
        SCOPED_TRACE(fmt::format("{} tokens, {} x {}, {}, bias {}, {}, layouts {}", tokens, out, in,
                                 name_of(activation.kind), has_bias, name_of(y_dtype),
                                 combination % 8));
        const GuardedTensor x = on_gpu({tokens, in}, layout(1));
        const GuardedTensor w = weight_on_gpu(out, in, layout(2));
        const OwnedTensor bias = bias_on_gpu(out);
        const GuardedTensor y(y_dtype, {tokens, out}, layout(4), kGpu);
        run_and_expect_right(x.view(), w.view(),
                             {.bias = has_bias ? bias.view : Tensor(), .activation = activation},
                             y);
      }
    }
  }
}

void Gemm::expect_right_when_tuned(const Tuned& tuned) {
  for (const auto& [out, in] : {std::pair(512, 1024), std::pair(33, 40)}) {
    for (const bool has_bias : {false, true}) {
      SCOPED_TRACE(fmt::format("{} x {}, bias {}", out, in, has_bias));
      const GuardedTensor w = weight_on_gpu(out, in);
      const GuardedTensor w2 = weight_on_gpu(out, in);
      const OwnedTensor bias = bias_on_gpu(out);
      const Tensor weights[] = {w.view(), w2.view()};
      const Epilogue epilogue{.bias = has_bias ? bias.view : Tensor(),
                              .activation = {has_bias ? Kind::relu : Kind::none, 0.0f}};
      for (const DType y_dtype : tuned.y_dtypes) {
        if (has_bias && y_dtype == DType::f32) {
          continue;
        }
        TuneCache cache;
        const GemmTuning tuning{.weights = weights,
                                .order = order,
                                .epilogue = epilogue,
                                .y = y_dtype,
                                .tokens = tuned.tokens};
        EXPECT_EQ(tune_gemm(tuning, cache, gpu->exec), tuned.buckets);
        EXPECT_EQ(tune_gemm(tuning, cache, gpu->exec), 0);
        for (const int64_t tokens : {1, 2, 3, 4, 9, 12, 13, 16, 17, 24, 33, 48, 130, 200}) {
          for (const Layout layout : {Layout::contiguous, Layout::strided}) {
            SCOPED_TRACE(fmt::format("{} tokens", tokens));
            const GuardedTensor x = on_gpu({tokens, in}, layout);
            const GuardedTensor y(y_dtype, {tokens, out}, layout, kGpu);
            run_and_expect_right(x.view(), w2.view(), epilogue, y);
          }
        }
      }
    }
  }
}

void Gemm::expect_rows_invariant() {
  gpu->exec.sums = Sums::batch_invariant;
  struct Case {
    int64_t out;
    int64_t in;
    bool has_bias;
    Kind activation;
    bool f32_result;
  };
  for (const Case& c :
       {Case{256, 640, true, Kind::relu, false}, Case{33, 130, true, Kind::none, false},
        Case{130, 33, false, Kind::gelu, false}, Case{1000, 96, false, Kind::none, true}}) {
    SCOPED_TRACE(fmt::format("{} x {}", c.out, c.in));
    const GuardedTensor x = on_gpu({300, c.in});
    const GuardedTensor w = weight_on_gpu(c.out, c.in);
    const OwnedTensor bias = bias_on_gpu(c.out);
    const Epilogue epilogue{.bias = c.has_bias ? bias.view : Tensor(),
                            .activation = {c.activation, 0.0f}};
    const DType y_dtype = c.f32_result ? DType::f32 : GetParam();
    const GuardedTensor y(y_dtype, {300, c.out}, Layout::contiguous, kGpu);
    run_and_expect_right(x.view(), w.view(), epilogue, y);
    expect_invariant(x.view(), w.view(), epilogue, y_dtype);
  }
}

}  // namespace sparsellm::testing
