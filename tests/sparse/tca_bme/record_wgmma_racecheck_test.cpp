#include <set>
#include <tuple>

#include "tests/sparse/tca_bme/record_wgmma_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// Each tile and way to share the columns out once.
TEST_P(GpuRecordWgmma, FewSmallProducts) {
  for (double density : {0.05, 0.4}) {
    std::set<std::tuple<int, bool, bool>> kinds;
    multiply_small({130, 136}, density, [&](const RecordWgmmaConfig& config) {
      return kinds.insert({config.tile, config.stream_k, config.split > 1}).second;
    });
  }
}

}  // namespace
}  // namespace sparsellm
