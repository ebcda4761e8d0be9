#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/sparse/tca_bme/quantized_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuQuantizedRaces : public GpuQuantized {};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuQuantizedRaces, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// A configuration of each kernel, with a part of a block of x's columns at the end.
TEST_P(GpuQuantizedRaces, FewSmallProducts) {
  constexpr Shape kShape{66, 640};
  struct Case {
    QuantizedKind kind;
    double density;  // by which records have 16 or 8 offsets of a chunk
  };
  uint64_t seed = 1;
  size_t turn = 0;  // of configurations
  for (const auto& [kind, density] :
       {Case{{ValueType::i8}, 0.6}, Case{{ValueType::i8}, 0.3}, Case{{ValueType::f8}, 0.3},
        Case{{ValueType::i4, 64}, 0.3}, Case{{ValueType::i8, 0, "dense_i8"}, 0.5},
        Case{{ValueType::i4, 128, "dense_i4"}, 0.5}}) {
    const QuantizedMatrix q = matrix_of(kind, kShape, density, ++seed);
    const OwnedTensor w = dense_of(q);
    const std::unique_ptr<WeightMatrix> loaded = load_quantized(kind, q);
    const GuardedTensor x = numbers(20, kShape.columns, Layout::contiguous);
    const Expected all = with_rounded_x(expected_of(x.view(), w.view), x.view(), sums_of(w.view),
                                        /*first_column=*/0);
    // 20: by warpgroups, too. Under racecheck each kernel takes seconds, so that not all kinds have
    // all kernels for few tokens.
    constexpr int64_t kFewTokens[] = {2, 7, 12};
    for (const int64_t tokens : {kFewTokens[seed % std::size(kFewTokens)], int64_t{20}}) {
      SCOPED_TRACE(fmt::format("{} {}, density {}, {} tokens", kind.format, name_of(kind.type),
                               density, tokens));
      const Expected expected = first_rows(all, tokens, kShape.rows);
      const auto check = [&](const auto& configs, const auto& name) {
        if (configs.empty()) {  // for so few tokens, or on this device
          return;
        }
        const auto& config = configs[++turn % configs.size()];
        SCOPED_TRACE(name(config));
        ASSERT_TRUE(gives(
            tokens, kShape.rows, expected, {}, [&](const Tensor& y, const Epilogue& epilogue) {
              as_records(*loaded).run(config, x.view().rows(0, tokens), y, epilogue, *exec);
            }));
      };
      check(as_records(*loaded).configs_for(GetParam(), tokens), record_matmul_name);
      // Parts of K in one block: a lane arrives at a barrier for all lanes of its warp, which
      // racecheck does not take for an order of what the others have stored.
      const auto all_by_warpgroups = as_records(*loaded).wgmma_configs_for(GetParam(), tokens);
      auto by_warpgroups = all_by_warpgroups;
      std::erase_if(by_warpgroups, [](const RecordWgmmaConfig& config) {
        constexpr int kMostRowBlocks = 4;
        return config.split == 1 && config.row_blocks < kMostRowBlocks;
      });
      ASSERT_EQ(by_warpgroups.empty(), all_by_warpgroups.empty());
      check(by_warpgroups, record_wgmma_name);
    }
  }
}

}  // namespace
}  // namespace sparsellm
