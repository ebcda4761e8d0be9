#include <cstdint>

#include "tests/kernels/gemm_stream_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, GemmStream, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// For tools that take long with each launch: all tiles, and row blocks that blocks share.
TEST_P(GemmStream, FewProducts) {
  for (const int64_t tokens : {3, 12, 30}) {
    const GuardedTensor w = on_gpu(200, 1032);
    const GuardedTensor x = on_gpu(tokens, 1032);
    const GuardedTensor y = result(tokens, 200);
    const GemmOperands operands{.x = x.view(), .w = w.view(), .bias = {}, .y = y.view()};
    for (const StreamMemory memory : kMemories) {
      gemm_stream_cuda(operands, memory, gpu->exec);
      expect_right(operands);
    }
  }
}

}  // namespace
}  // namespace sparsellm
