#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/sparse/tca_bme/quantized_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuQuantizedRaces : public GpuQuantized {
 protected:
  static constexpr Shape kSmall{66, 640};
  static constexpr int64_t kMany = 20;

  // A configuration for these tokens: by warpgroups, or another one.
  void multiply(const QuantizedKind& kind, double density, int64_t tokens,
                const Shape& shape = kSmall) {
    const QuantizedMatrix q = matrix_of(kind, shape, density, /*seed=*/1);
    const OwnedTensor w = dense_of(q);
    const std::unique_ptr<WeightMatrix> loaded = load_quantized(kind, q);
    const GuardedTensor x = numbers(tokens, shape.columns, Layout::contiguous);
    const Expected expected = with_rounded_x(expected_of(x.view(), w.view), x.view(),
                                             sums_of(w.view), /*first_column=*/0);
    const auto check = [&](const auto& config, const std::string& name) {
      SCOPED_TRACE(name);
      ASSERT_TRUE(
          gives(tokens, shape.rows, expected, {}, [&](const Tensor& y, const Epilogue& epilogue) {
            as_records(*loaded).run(config, x.view(), y, epilogue, *exec);
          }));
    };
    if (tokens < kMany) {
      const auto configs = as_records(*loaded).configs_for(GetParam(), tokens);
      ASSERT_FALSE(configs.empty());
      check(configs.front(), record_matmul_name(configs.front()));
      return;
    }
    // Parts of K in one block: a lane arrives at a barrier for all lanes of its warp, which
    // racecheck does not take for an order of what the others have stored.
    auto configs = as_records(*loaded).wgmma_configs_for(GetParam(), tokens);
    const bool none = configs.empty();  // on this device
    std::erase_if(configs, [](const RecordWgmmaConfig& config) {
      constexpr int kMostRowBlocks = 4;
      return config.split == 1 && config.row_blocks < kMostRowBlocks;
    });
    ASSERT_EQ(configs.empty(), none);
    if (!none) {
      check(configs.front(), record_wgmma_name(configs.front()));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuQuantizedRaces, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Of dense enough records a chunk has 16 offsets, of others 8.
TEST_P(GpuQuantizedRaces, I8) { multiply({ValueType::i8}, 0.6, 7); }
TEST_P(GpuQuantizedRaces, I8OfFewNonzeros) { multiply({ValueType::i8}, 0.3, 2); }
TEST_P(GpuQuantizedRaces, F8) { multiply({ValueType::f8}, 0.3, 12); }
TEST_P(GpuQuantizedRaces, I4) { multiply({ValueType::i4, 64}, 0.3, 12); }
TEST_P(GpuQuantizedRaces, DenseI8) { multiply({ValueType::i8, 0, "dense_i8"}, 0.5, 12); }
TEST_P(GpuQuantizedRaces, DenseI4) { multiply({ValueType::i4, 128, "dense_i4"}, 0.5, 7); }
TEST_P(GpuQuantizedRaces, I8ByWarpgroups) { multiply({ValueType::i8}, 0.6, kMany); }
TEST_P(GpuQuantizedRaces, I8OfFewNonzerosByWarpgroups) { multiply({ValueType::i8}, 0.3, kMany); }
TEST_P(GpuQuantizedRaces, F8ByWarpgroups) { multiply({ValueType::f8}, 0.3, kMany); }
TEST_P(GpuQuantizedRaces, I4ByWarpgroups) { multiply({ValueType::i4, 64}, 0.3, kMany); }
// As many columns as there is room for at once. With 640, where a stage is used again, racecheck
// had not ended after four minutes; perhaps because one lane tells the producer that its whole warp
// has read a stage, which it does not take for an order of the other lanes' reads.
TEST_P(GpuQuantizedRaces, DenseI8ByWarpgroups) {
  multiply({ValueType::i8, 0, "dense_i8"}, 0.5, kMany, {66, 512});
}
TEST_P(GpuQuantizedRaces, DenseI4ByWarpgroups) {
  multiply({ValueType::i4, 128, "dense_i4"}, 0.5, kMany);
}

}  // namespace
}  // namespace sparsellm
