#include <algorithm>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/tca_bme/cuda/record_expand_cuda.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "tests/sparse/tca_bme/record_multistage_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tca_bme::ceil_div;
using tca_bme::RecordParts;

INSTANTIATE_TEST_SUITE_P(Gpu, GpuRecordMultistage, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Enough row blocks for the densities to come out as they should, and for blocks that take several.
TEST_P(GpuRecordMultistage, ProductsOfAllLayouts) {
  constexpr int64_t kTokens[] = {1, 3, 8, 9, 16, 17, 32, 33, 57, 64, 65, 130};
  constexpr int64_t kMaxTokens = 130;
  size_t number = 0;
  for (const Shape& shape : {Shape{1024, 520}, Shape{1022, 777}}) {
    const GuardedTensor contiguous = numbers(kMaxTokens, shape.columns);
    const GuardedTensor strided = numbers(kMaxTokens, shape.columns, Layout::strided);
    // Rows aligned to 16 bytes, with NaN beside them.
    const GuardedTensor wide(GetParam(), {kMaxTokens, ceil_div(shape.columns + 16, 8) * 8},
                             Layout::contiguous, kGpu);
    const Tensor inner = wide.view().columns(8, shape.columns);
    set_values(inner, values(kMaxTokens * shape.columns));
    const OwnedTensor bias = bias_of(shape.rows);
    const std::vector<double> bias_values = values_of(bias.view);
    for (const Mix& mix : kMixes) {
      SCOPED_TRACE(fmt::format("[{}, {}], density {} and {}", shape.rows, shape.columns,
                               mix.density, mix.between));
      const OwnedTensor w = mixed_weight(shape, mix);
      const EncodedWeight encoded = tca_bme::encode_records(w.view, LayoutFor::speed, cpu.threads);
      ASSERT_TRUE(RecordParts(encoded).layout == mix.layout);
      const DeviceMatrix loaded(encoded);
      for (const Tensor& x : {contiguous.view(), strided.view(), inner}) {
        const Expected all = expected_of(x, w.view);
        for (int64_t tokens : kTokens) {
          ++number;
          const MultistageDevice& device = devices[number % devices.size()];
          SCOPED_TRACE(fmt::format("{} tokens, {} bytes of shared memory, {} products", tokens,
                                   device.shared_bytes, device.byte_products ? "byte" : "1-bit"));
          ASSERT_TRUE(record_multistage_fits(on(loaded.matrix, device)));
          const bool has_bias = number % 4 < 2;
          const Activation activation{.kind = number % 5 == 0 ? Activation::Kind::relu
                                                              : Activation::Kind::none};
          const GuardedTensor y(GetParam(), {tokens, shape.rows},
                                number % 7 < 2 ? Layout::strided : Layout::contiguous, kGpu);
          multiply(loaded.matrix, x.rows(0, tokens), y.view(), device,
                   {.bias = has_bias ? bias.view : Tensor(), .activation = activation});
          gpu->cuda.synchronize();
          ASSERT_TRUE(all_close(
              y.view(),
              with_epilogue(first_rows(all, tokens, shape.rows),
                            has_bias ? bias_values : std::vector<double>(), activation.kind),
              kTolerance));
          ASSERT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

TEST_P(GpuRecordMultistage, RandomCases) {
  constexpr int kWeights = 300;
  constexpr int kProducts = 5;  // of each
  for (int round = 0; round < kWeights; ++round) {
    const int64_t most = round % 10 == 0 ? 1500 : 250;
    const Shape shape{1 + random.below(most), 1 + random.below(most)};
    const double density = random.uniform(0.0, 1.0) * random.uniform(0.0, 1.0);
    const OwnedTensor w = weight(shape, density);
    const DeviceMatrix loaded(tca_bme::encode_records(w.view, LayoutFor::speed, cpu.threads));
    for (int product = 0; product < kProducts; ++product) {
      const int64_t tokens = 1 + random.below(product == 0 ? 130 : 20);
      SCOPED_TRACE(fmt::format("[{}, {}], density {}, {} tokens", shape.rows, shape.columns,
                               density, tokens));
      const GuardedTensor x =
          numbers(tokens, shape.columns, product % 2 == 0 ? Layout::contiguous : Layout::strided);
      const GuardedTensor y(GetParam(), {tokens, shape.rows},
                            product % 3 == 0 ? Layout::strided : Layout::contiguous, kGpu);
      multiply(loaded.matrix, x.view(), y.view(),
               devices[static_cast<size_t>(random.below(std::ssize(devices)))]);
      gpu->cuda.synchronize();
      ASSERT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), kTolerance));
      ASSERT_TRUE(y.guards_intact());
    }
  }
}

// More records in a part than the lanes of a warp hold entries of the table for.
TEST_P(GpuRecordMultistage, ManyColumns) {
  for (const Shape& shape : {Shape{130, 17000}, Shape{70, 33999}}) {
    for (double density : {0.5, 0.2, 0.05}) {
      const OwnedTensor w = weight(shape, density);
      const DeviceMatrix loaded(tca_bme::encode_records(w.view, LayoutFor::speed, cpu.threads));
      const GuardedTensor x = numbers(5, shape.columns);
      const Expected expected = expected_of(x.view(), w.view);
      for (const MultistageDevice& device : devices) {
        SCOPED_TRACE(fmt::format("[{}, {}], density {}, {} bytes of shared memory", shape.rows,
                                 shape.columns, density, device.shared_bytes));
        const GuardedTensor y(GetParam(), {5, shape.rows}, Layout::contiguous, kGpu);
        multiply(loaded.matrix, x.view(), y.view(), device);
        gpu->cuda.synchronize();
        EXPECT_TRUE(all_close(y.view(), expected, kTolerance));
        EXPECT_TRUE(y.guards_intact());
      }
    }
  }
}

// In any batch, on any device, run after run.
TEST_P(GpuRecordMultistage, ARowHasTheSameBitsAlways) {
  constexpr int64_t kAlone = 70;
  for (const Shape& shape : {Shape{1030, 1040}, Shape{700, 333}}) {
    for (double density : {0.5, 0.3, 0.1}) {
      const DeviceMatrix loaded(
          tca_bme::encode_records(weight(shape, density).view, LayoutFor::speed, cpu.threads));
      const GuardedTensor x = numbers(200, shape.columns);
      const GuardedTensor alone(GetParam(), {kAlone, shape.rows}, Layout::contiguous, kGpu);
      for (int64_t t = 0; t < kAlone; ++t) {
        multiply(loaded.matrix, x.view().rows(t, 1), alone.view().rows(t, 1), devices.front());
      }
      for (const MultistageDevice& device : devices) {
        for (int64_t tokens : {1, 1, 2, 8, 9, 16, 17, 31, 33, 64, 64, 65, 70, 200}) {
          const int64_t begin = tokens < kAlone ? (kAlone - tokens) / 2 : 0;
          const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
          multiply(loaded.matrix, x.view().rows(begin, tokens), y.view(), device);
          gpu->cuda.synchronize();
          const int64_t count = std::min(tokens, kAlone - begin);
          EXPECT_TRUE(same_bits(y.view().rows(0, count), alone.view().rows(begin, count)))
              << fmt::format("[{}, {}], density {}, {} tokens, {} bytes of shared memory",
                             shape.rows, shape.columns, density, tokens, device.shared_bytes);
        }
      }
    }
  }
}

// By both kinds of products: every value is where it was.
TEST_P(GpuRecordMultistage, Expands) {
  for (const Shape& shape : {Shape{1024, 520}, Shape{130, 777}, Shape{1, 1}}) {
    for (const Mix& mix : kMixes) {
      const OwnedTensor w = mixed_weight(shape, mix);
      const DeviceMatrix loaded(tca_bme::encode_records(w.view, LayoutFor::speed, cpu.threads));
      for (const MultistageDevice& device : {devices.front(), devices.back()}) {
        SCOPED_TRACE(fmt::format("[{}, {}], density {} and {}, {} products", shape.rows,
                                 shape.columns, mix.density, mix.between,
                                 device.byte_products ? "byte" : "1-bit"));
        const GuardedTensor dense(GetParam(), {shape.rows, shape.columns}, Layout::contiguous,
                                  kGpu);
        record_expand_cuda(on(loaded.matrix, device), {.begin = 0, .count = shape.rows},
                           dense.view().raw(), GetParam(), device.multiprocessors, *exec);
        gpu->cuda.synchronize();
        EXPECT_TRUE(same_bits(dense.view(), w.view));
        EXPECT_TRUE(dense.guards_intact());
      }
    }
  }
}

// The only choice without clusters.
TEST_P(GpuRecordMultistage, IsChosenOnDevicesBeforeHopper) {
  const Shape shape{130, 200};
  const OwnedTensor w = weight(shape, 0.4);
  const DeviceMatrix loaded(tca_bme::encode_records(w.view, LayoutFor::speed, cpu.threads));
  RecordMatrix before = loaded.matrix;
  before.clusters = {};
  const std::vector<RecordMatmulConfig> configs = record_matmul_candidates(before, 9);
  ASSERT_EQ(configs.size(), 1);
  EXPECT_EQ(record_matmul_name(configs.front()), "multistage");
  const GuardedTensor x = numbers(9, shape.columns);
  const GuardedTensor y(GetParam(), {9, shape.rows}, Layout::contiguous, kGpu);
  const Tensor out = y.view();
  record_matmul_cuda(before,
                     {.x = x.view().raw(),
                      .x_stride = x.view().row_stride(),
                      .y = out.raw(),
                      .y_stride = out.row_stride(),
                      .tokens = 9,
                      .dtype = GetParam()},
                     configs.front(), *exec);
  gpu->cuda.synchronize();
  EXPECT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), kTolerance));
}

TEST_P(GpuRecordMultistage, RefusesMismatchedOperands) {
  const DeviceMatrix loaded(
      tca_bme::encode_records(weight({64, 64}, 1.0).view, LayoutFor::speed, cpu.threads));
  const GuardedTensor x = numbers(2, 64);
  const GuardedTensor y(GetParam(), {2, 64}, Layout::contiguous, kGpu);
  for (const MultistageDevice& device :
       {MultistageDevice{}, MultistageDevice{.multiprocessors = 1, .shared_bytes = 16 << 10}}) {
    EXPECT_FALSE(record_multistage_fits(on(loaded.matrix, device)));
    EXPECT_THROW(multiply(loaded.matrix, x.view(), y.view(), device), Error);
  }
  const GuardedTensor f32(DType::f32, {2, 64}, Layout::contiguous, kGpu);
  EXPECT_THROW(multiply(loaded.matrix, f32.view(), y.view(), devices.front()), Error);
  RecordMatrix odd = loaded.matrix;
  odd.chunks = 5;
  EXPECT_THROW(multiply(odd, x.view(), y.view(), devices.front()), Error);
}

}  // namespace
}  // namespace sparsellm
