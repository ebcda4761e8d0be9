#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/registry.h"
#include "tests/sparse/quantize_gpu_fixture.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuQuantize : public GpuQuantizeTest {
 protected:
  // Without an Uploader, which weights that the host encodes take.
  std::unique_ptr<WeightMatrix> encoded_on_gpu(const Tensor& w, const std::string& layout,
                                               std::string_view format = "tca_bme") {
    LoadContext ctx = load_context();
    ctx.uploads = nullptr;
    return weight_format(format).encode_on_device(w, {.layout = layout}, ctx);
  }
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuQuantize, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuQuantize, GivesTheBytesOfTheHost) {
  uint64_t seed = 100;
  for (const Hardness hardness : kHardnesses) {
    for (const Shape& shape : {Shape{1, 1}, Shape{65, 129}, Shape{200, 1000}, Shape{33, 5000}}) {
      for (const double density : {0.05, 0.5, 1.0}) {
        expect_same({.dtype = GetParam(),
                     .rows = shape.rows,
                     .columns = shape.columns,
                     .density = density,
                     .hardness = hardness},
                    ++seed);
      }
    }
  }
}

// Chunks have fewer offsets from 55 % zeros on.
TEST_P(GpuQuantize, ChoosesTheLayoutOfTheHost) {
  for (const double density : {0.44, 0.45, 0.46}) {
    expect_same({.dtype = GetParam(), .rows = 256, .columns = 512, .density = density}, 5);
  }
}

TEST_P(GpuQuantize, LargeMatrices) {
  expect_same({.dtype = GetParam(), .rows = 512, .columns = 28672, .density = 0.4}, 6);
  if (GetParam() == DType::bf16) {
    expect_same({.dtype = GetParam(), .rows = 4096, .columns = 11008, .density = 0.5}, 7,
                std::span(kRoundedTo).first(1));
  }
}

TEST_P(GpuQuantize, MatricesWithoutElements) {
  expect_same({.dtype = GetParam(), .rows = 0, .columns = 130}, 8);
  expect_same({.dtype = GetParam(), .rows = 130, .columns = 0}, 8);
}

TEST_P(GpuQuantize, RefusesWhatIsNotFiniteWithTheWordsOfTheHost) {
  constexpr int64_t kRows = 70;
  constexpr int64_t kColumns = 300;
  for (const double strange : {std::nan(""), std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity()}) {
    std::vector<double> values(static_cast<size_t>(kRows * kColumns), 0.5);
    for (const int64_t at : {kRows * kColumns - 1, 5 * kColumns + 17, int64_t{0}}) {
      values[static_cast<size_t>(at)] = strange;  // before those that are not finite already
      for (const Layout layout : {Layout::contiguous, Layout::strided}) {
        const GuardedTensor w(GetParam(), {kRows, kColumns}, layout, kGpu);
        const GuardedTensor on_host(GetParam(), {kRows, kColumns}, layout);
        set_values(w.view(), values);
        set_values(on_host.view(), values);
        for (const RoundedTo& to : kRoundedTo) {
          const std::string words =
              fmt::format("the weight in row {}, column {} is {}; none can be quantised",
                          at / kColumns, at % kColumns, std::isnan(strange) ? "NaN" : "infinite");
          EXPECT_TRUE(throws_error(
              [&] { quantize(on_host.view(), to.type, to.group, cpu.threads); }, words));
          EXPECT_TRUE(
              throws_error([&] { quantize_cuda(w.view(), to.type, to.group, *exec); }, words));
        }
        if (layout == Layout::contiguous) {
          EXPECT_TRUE(throws_error([&] { encoded_on_gpu(w.view(), "i8"); },
                                   fmt::format("row {}, column {}", at / kColumns, at % kColumns)));
        }
      }
    }
  }
}

TEST_P(GpuQuantize, RefusesOtherTensorsAndGroups) {
  const GuardedTensor w(GetParam(), {4, 8}, Layout::contiguous, kGpu);
  set_values(w.view(), std::vector<double>(32, 1.0));
  EXPECT_TRUE(throws_error([&] { quantize_cuda(w.view(), ValueType::i4, 48, *exec); },
                           "48 columns of i4 share a scale; expected 32, 64 or 128"));
  const GuardedTensor f32(DType::f32, {4, 8}, Layout::contiguous, kGpu);
  EXPECT_TRUE(throws_error([&] { quantize_cuda(f32.view(), ValueType::i8, 0, *exec); }, "f32"));
  const GuardedTensor on_host(GetParam(), {4, 8});
  EXPECT_TRUE(
      throws_error([&] { quantize_cuda(on_host.view(), ValueType::i8, 0, *exec); }, "cuda"));
}

TEST_P(GpuQuantize, FormatsEncodeWithoutTheHost) {
  const OwnedTensor w =
      make_hard_weight({.dtype = GetParam(), .rows = 200, .columns = 1000, .density = 0.4}, 9);
  const OwnedTensor copy = on_gpu(w.view);
  for (const RoundedTo& to : kRoundedTo) {
    for (const std::string_view name : to.formats()) {
      SCOPED_TRACE(fmt::format("{} of {}", name, to.text()));
      const WeightFormat& format = weight_format(name);
      const std::unique_ptr<WeightMatrix> weight = encoded_on_gpu(copy.view, to.text(), name);
      EncodedWeight e = format.encode(w.view, {.layout = to.text()}, cpu.threads);
      const std::unique_ptr<WeightMatrix> expected = load(format, {&e, 1});
      EXPECT_EQ(weight->format(), name);
      EXPECT_EQ(weight->bytes(), expected->bytes());
      EXPECT_EQ(weight->nonzeros(), expected->nonzeros());
      const GuardedTensor got(GetParam(), {200, 1000}, Layout::contiguous, kGpu);
      const GuardedTensor dense(GetParam(), {200, 1000}, Layout::contiguous, kGpu);
      weight->expand({.begin = 0, .count = 200}, got.view(), *exec);
      expected->expand({.begin = 0, .count = 200}, dense.view(), *exec);
      gpu->cuda.synchronize();
      EXPECT_TRUE(same_bits(got.view(), dense.view()));
      const GuardedTensor x = numbers(3, 1000);
      const GuardedTensor y(GetParam(), {3, 200}, Layout::contiguous, kGpu);
      const GuardedTensor expected_y(GetParam(), {3, 200}, Layout::contiguous, kGpu);
      weight->matmul(x.view(), y.view(), {}, *exec);
      expected->matmul(x.view(), expected_y.view(), {}, *exec);
      gpu->cuda.synchronize();
      EXPECT_TRUE(same_bits(y.view(), expected_y.view()));
    }
  }
}

}  // namespace
}  // namespace sparsellm
