
#include "tests/sparse/tca_bme/record_wgmma_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuRecordWgmma, SmallProducts) {
  for (double density : kDensities) {
    multiply_small({330, 264}, density, [](const RecordWgmmaConfig&) { return true; });
  }
}

}  // namespace
}  // namespace sparsellm
