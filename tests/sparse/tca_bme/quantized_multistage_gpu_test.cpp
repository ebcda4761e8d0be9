#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "sparse/quantize/quantized_matrix.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/cuda/record_weight.cuh"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "tests/sparse/tca_bme/quantized_matrices.h"
#include "tests/sparse/tca_bme/record_multistage_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// The multistage kernel over records of version 3, dense_i8 and dense_i4.
class GpuQuantizedMultistage : public GpuRecordMultistage {
 protected:
  void SetUp() override {
    GpuRecordMultistage::SetUp();
    std::erase_if(devices, [](const MultistageDevice& device) { return device.byte_products; });
  }

  // Scales are powers of two: the values are exact in f16 and bf16.
  static QuantizedMatrix matrix_of(QuantizedShape kind, const Shape& shape, double density,
                                   uint64_t seed) {
    kind.rows = shape.rows;
    kind.columns = shape.columns;
    kind.density = density;
    QuantizedMatrix q = random_quantized(kind, seed);
    for (float& scale : q.scales) {
      scale = std::exp2(std::floor(std::log2(scale)));
    }
    return q;
  }
  std::unique_ptr<WeightMatrix> load_quantized(const QuantizedShape& kind,
                                               const QuantizedMatrix& q) {
    EncodedWeight e = encode_as(kind, q, GetParam(), cpu.threads);
    return load(weight_format(kind.format), {&e, 1});
  }
  static RecordMatrix matrix_in(const WeightMatrix& weight) {
    RecordMatrix matrix = dynamic_cast<const tca_bme::CudaRecordWeight&>(weight).matrix();
    matrix.clusters = {};  // as on devices before Hopper
    return matrix;
  }
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuQuantizedMultistage, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuQuantizedMultistage, Multiplies) {
  uint64_t seed = 200;
  size_t number = 0;
  for (const Shape& shape :
       {Shape{1, 1}, Shape{64, 128}, Shape{127, 130}, Shape{65, 700}, Shape{1100, 520}}) {
    const GuardedTensor contiguous = numbers(130, shape.columns);
    const GuardedTensor strided = numbers(130, shape.columns, Layout::strided);
    for (const QuantizedShape& kind : quantized_kinds()) {
      for (const double density : {0.0, 0.01, 0.3, 1.0}) {
        const QuantizedMatrix q = matrix_of(kind, shape, density, ++seed);
        const OwnedTensor w = dequantize(q, GetParam(), cpu.threads);
        const std::unique_ptr<WeightMatrix> loaded = load_quantized(kind, q);
        const Tensor& all_x = seed % 3 == 0 ? strided.view() : contiguous.view();
        const Expected all = expected_of(all_x, w.view);
        for (const int64_t tokens : {1, 3, 8, 9, 17, 40, 64, 130}) {
          const MultistageDevice& device = devices[++number % devices.size()];
          SCOPED_TRACE(
              fmt::format("[{}, {}] of {} {}, density {}, {} tokens, {} bytes of shared memory",
                          shape.rows, shape.columns, kind.format, name_of(kind.type), density,
                          tokens, device.shared_bytes));
          const RecordMatrix matrix = on(matrix_in(*loaded), device);
          ASSERT_TRUE(record_multistage_fits(matrix));
          const Product product{
              .layout = number % 7 < 2 ? Layout::strided : Layout::contiguous,
              .has_bias = number % 4 < 2,
              .activation = number % 5 == 0 ? Activation::Kind::relu : Activation::Kind::none};
          ASSERT_TRUE(gives(tokens, shape.rows, first_rows(all, tokens, shape.rows), product,
                            [&](const Tensor& y, const Epilogue& epilogue) {
                              multiply(matrix, all_x.rows(0, tokens), y, device, epilogue);
                            }));
        }
      }
    }
  }
}

// In any batch, on any device.
TEST_P(GpuQuantizedMultistage, ARowHasTheSameBitsAlways) {
  const Shape shape{300, 1040};
  for (const QuantizedShape& kind : quantized_kinds()) {
    const std::unique_ptr<WeightMatrix> loaded =
        load_quantized(kind, matrix_of(kind, shape, 0.4, 7));
    const RecordMatrix matrix = matrix_in(*loaded);
    const GuardedTensor x = numbers(70, shape.columns);
    const GuardedTensor all(GetParam(), {70, shape.rows}, Layout::contiguous, kGpu);
    multiply(matrix, x.view(), all.view(), devices.front());
    for (const MultistageDevice& device : devices) {
      for (const int64_t tokens : {1, 9, 33, 64}) {
        const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
        multiply(matrix, x.view().rows(2, tokens), y.view(), device);
        gpu->cuda.synchronize();
        EXPECT_TRUE(same_bits(y.view(), all.view().rows(2, tokens)))
            << kind.format << " " << name_of(kind.type) << ", " << tokens << " tokens, "
            << device.shared_bytes;
      }
    }
  }
}

TEST_P(GpuQuantizedMultistage, IsChosenOnDevicesBeforeHopper) {
  for (const QuantizedShape& kind : quantized_kinds()) {
    const std::unique_ptr<WeightMatrix> loaded =
        load_quantized(kind, matrix_of(kind, {130, 200}, 0.4, 9));
    RecordMatrix matrix = on(matrix_in(*loaded), devices.front());
    for (const int64_t tokens : {1, 9, 64}) {
      const std::vector<RecordMatmulConfig> configs = record_matmul_candidates(matrix, tokens);
      ASSERT_EQ(configs.size(), 1);
      EXPECT_TRUE(configs.front().multistage);
      EXPECT_TRUE(record_matmul_fits(matrix, configs.front(), tokens));
    }
    // Where 1-bit products are emulated, an expansion is faster than to decode by them.
    matrix.multistage.byte_products = true;
    EXPECT_EQ(record_matmul_candidates(matrix, 1).empty(), !kind.dense());
  }
}

}  // namespace
}  // namespace sparsellm
