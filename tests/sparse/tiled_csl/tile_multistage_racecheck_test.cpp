#include <cstdint>

#include "kernels/base/cuda_graph.h"
#include "tests/sparse/tiled_csl/tile_multistage_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// The same bits run after run, with launches that overlap and without.
TEST_P(GpuTiledCslMultistage, ProductsOneAfterTheOther) {
  const Shape shape{900, 1024};
  const OwnedTensor w = uneven_weight(shape);
  const DeviceTileMatrix loaded(tiled_csl::encode_records(w.view, cpu.threads));
  for (const Launches launches : {Launches::ordinary, Launches::overlapping}) {
    exec->launches = launches;
    for (const TileMultistageDevice& device : {devices.front(), devices.at(2), devices.back()}) {
      for (int64_t tokens : {1, 16, 40}) {
        const GuardedTensor x = numbers(tokens, shape.columns);
        const GuardedTensor first(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
        const GuardedTensor second(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
        multiply(loaded.on(device), x.view(), first.view());
        multiply(loaded.on(device), x.view(), second.view());
        gpu->cuda.synchronize();
        EXPECT_TRUE(all_close(first.view(), expected_of(x.view(), w.view), kTolerance)) << tokens;
        EXPECT_TRUE(same_bits(first.view(), second.view())) << tokens;
      }
    }
  }
}

// At new values in the same places.
TEST_P(GpuTiledCslMultistage, RunsInAGraph) {
  const Shape shape{700, 264};
  const OwnedTensor w = weight(shape, 0.4);
  const DeviceTileMatrix loaded(tiled_csl::encode_records(w.view, cpu.threads));
  for (int64_t tokens : {4, 40}) {
    const GuardedTensor x = numbers(tokens, shape.columns);
    const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
    CudaGraph graph(gpu->cuda, [&] { multiply(loaded.matrix, x.view(), y.view()); });
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
