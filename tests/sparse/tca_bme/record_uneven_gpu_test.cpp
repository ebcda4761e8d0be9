#include <memory>
#include <string>
#include <vector>

#include "kernels/base/tune_cache.h"
#include "sparse/tca_bme/cuda/record_plan.h"
#include "tests/sparse/tca_bme/record_uneven_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, GpuUnevenRecords, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuUnevenRecords, EveryConfiguration) {
  for (double density : kDensities) {
    for (const OwnedTensor& w : uneven_weights(density)) {
      SCOPED_TRACE(fmt::format("density {}", density));
      check_all_configs(w, clusters);
      check_all_configs(w, {6, 3, 2, 1, 1});  // as on a device that holds few blocks at once
    }
  }
}

// Pairs of weights of one shape and percentage of nonzeros, one of which has a full record: tuned
// together and one after the other, in both orders, with a cache that is empty or another's.
TEST_P(GpuUnevenRecords, APlanFitsAllWeightsThatItIsUsedFor) {
  constexpr int64_t kBuckets[] = {1, 16, 64};
  for (double density : {0.5, 0.45, 0.32, 0.25, 0.1}) {
    std::vector<OwnedTensor> weights;
    weights.push_back(weight(kShape, density));
    weights.push_back(weight_with(density, {{11, 7}}));
    weights.push_back(sloping_weight(density));
    for (const std::vector<size_t>& order :
         {std::vector<size_t>{0, 1}, {1, 0}, {2, 1, 0}, {0, 2, 1}}) {
      SCOPED_TRACE(fmt::format("density {}, {} first", density, order.front()));
      std::vector<std::unique_ptr<WeightMatrix>> loaded;
      std::vector<const WeightMatrix*> alike;
      for (size_t i : order) {
        loaded.push_back(load(weights[i]));
        alike.push_back(loaded.back().get());
      }
      TuneCache cache;
      for (const WeightMatrix* const& each : alike) {  // each finds what was found for another
        each->tune({.alike = {&each, 1}, .epilogue = {}, .y = GetParam(), .tokens = kBuckets},
                   cache, *exec);
      }
      for (int turn = 0; turn < 2; ++turn) {
        for (size_t i = 0; i < loaded.size(); ++i) {
          for (int64_t tokens : {1, 16, 50}) {
            check_product(*loaded[i], weights[order[i]], tokens);
          }
        }
        alike.front()->tune({.alike = alike, .epilogue = {}, .y = GetParam(), .tokens = kBuckets},
                            cache, *exec);
      }
    }
  }
}

// A plan of a matrix of small records is not taken for one whose records do not fit it.
TEST_P(GpuUnevenRecords, APlanThatDoesNotFitIsReplaced) {
  RecordMatrix even{.rows = 7168, .columns = 28672, .chunks = 8, .clusters = clusters};
  even.largest_record = even.common_record = 6800;
  RecordMatrix full = even;
  full.largest_record = full.common_record = 17920;
  int refused = 0;
  for (int64_t tokens : {1, 16, 64}) {
    for (const RecordMatmulConfig& config : record_matmul_candidates(even, tokens)) {
      refused += record_matmul_fits(full, config, tokens) ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace sparsellm
