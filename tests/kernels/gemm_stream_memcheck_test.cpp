#include <cstddef>
#include <cstdint>

#include "tests/kernels/gemm_stream_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, GemmStream, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GemmStream, AnyShape) {
  size_t combination = 0;
  for (const int64_t out : {1, 8, 63, 64, 65, 129, 520}) {
    for (const int64_t in : {8, 64, 72, 128, 136, 1032}) {
      const GuardedTensor w =
          random.tensor(GetParam(), {out, in + 16}, Layout::contiguous, -1.0, 1.0, kGpu);
      OwnedTensor bias = allocate_tensor(kGpu, GetParam(), {out}, "a bias");
      random.fill(bias.view);
      for (const int64_t tokens : {1, 2, 7, 8, 9, 16, 17, 32}) {
        const GuardedTensor x = on_gpu(tokens, in + 8);
        for (const StreamMemory memory : kMemories) {
          ++combination;
          const bool has_bias = combination % 3 != 0;
          const bool relu = combination / 3 % 2 == 0;
          const DType dtype = !has_bias && combination % 2 == 0 ? DType::f32 : GetParam();
          SCOPED_TRACE(fmt::format("{} tokens, {} x {}, bias {}, relu {}, {}", tokens, out, in,
                                   has_bias, relu, name_of(dtype)));
          const GuardedTensor y(dtype, {tokens, out + 3}, Layout::contiguous, kGpu);
          // Rows apart, each at a multiple of 16 bytes.
          const GemmOperands operands{.x = x.view().columns(8, in),
                                      .w = w.view().columns(combination % 2 == 0 ? 8 : 0, in),
                                      .bias = has_bias ? bias.view : Tensor(),
                                      .y = y.view().columns(3, out),
                                      .relu = relu};
          gemm_stream_cuda(operands, memory, gpu->exec);
          expect_right(operands);
          EXPECT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
