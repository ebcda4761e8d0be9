#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "kernels/base/cuda_context.h"
#include "kernels/base/exec.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/tensor_values.h"

namespace sparsellm::testing {

inline constexpr Device kGpu{Device::Kind::cuda, 0};

// What an op on the first CUDA device needs.
struct GpuContext {
  Workspace workspace{kGpu, 1 << 20};
  ThreadPool threads{1};
  CudaContext cuda{kGpu};
  ExecContext exec{.device = kGpu, .workspace = workspace, .threads = threads, .cuda = &cuda};
};

// Skipped, with a message, where there is no CUDA device.
class GpuTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "there is no CUDA device";
    }
    gpu = std::make_unique<GpuContext>();
  }

  std::unique_ptr<GpuContext> gpu;
  CpuContext cpu{2};
};

// The values of a tensor on the GPU as f32 on the CPU: the operands of the op's CPU twin.
GuardedTensor cpu_twin(const Tensor& x);

}  // namespace sparsellm::testing
