#pragma once

#include <cstdint>

#include "kernels/gemm_stream_cuda.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"

namespace sparsellm::testing {

// Streamed products of few tokens, against naive sums. Skips where there are none.
class GemmStream : public GpuTest {
 protected:
  static constexpr StreamMemory kMemories[] = {StreamMemory::half, StreamMemory::whole};

  void SetUp() override;

  GuardedTensor on_gpu(int64_t rows, int64_t columns);
  GuardedTensor result(int64_t rows, int64_t columns);

  void expect_right(const GemmOperands& operands);

  Random random{79};
};

}  // namespace sparsellm::testing
