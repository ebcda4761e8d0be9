#include <cstdint>

#include "kernels/base/cuda_graph.h"
#include "tests/sparse/tca_bme/record_multistage_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// At new values in the same places.
TEST_P(GpuRecordMultistage, RunsInAGraph) {
  const Shape shape{700, 264};
  const OwnedTensor w = weight(shape, 0.4);
  const DeviceMatrix loaded(tca_bme::encode_records(w.view, LayoutFor::speed, cpu.threads));
  for (int64_t tokens : {4, 100}) {
    const GuardedTensor x = numbers(tokens, shape.columns);
    const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
    CudaGraph graph(gpu->cuda,
                    [&] { multiply(loaded.matrix, x.view(), y.view(), devices.front()); });
    for (int round = 0; round < 2; ++round) {
      set_values(x.view(), values(tokens * shape.columns));
      graph.launch();
      gpu->cuda.synchronize();
      EXPECT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), kTolerance));
    }
  }
}

}  // namespace
}  // namespace sparsellm
