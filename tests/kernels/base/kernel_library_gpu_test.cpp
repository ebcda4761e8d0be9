// Kernels that are compiled when the program runs.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/cuda_graph.h"
#include "kernels/base/error.h"
#include "kernels/base/kernel_cache.h"
#include "kernels/base/kernel_library.h"
#include "kernels/base/launch.cuh"
#include "kernels/base/run_time_compiler.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr int64_t kThreads = 128;

struct AxpyParameters {
  const float* x;
  float* y;
  float a;
  int64_t count;
};

// y += a x. axpy_shared carries x through dynamic shared memory, at the end of what it is launched
// with.
constexpr std::string_view kAxpy = R"(
struct Parameters {
  const float* x;
  float* y;
  float a;
  long long count;
};

__device__ inline void wait_on_dependencies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(kThreads) axpy(Parameters p) {
  wait_on_dependencies();
  const long long i = blockIdx.x * static_cast<long long>(kThreads) + threadIdx.x;
  if (i < p.count) {
    p.y[i] += p.a * p.x[i];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) axpy_shared(Parameters p) {
  extern __shared__ float shared[];
  unsigned bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  float* const last = shared + bytes / sizeof(float) - kThreads;
  wait_on_dependencies();
  const long long i = blockIdx.x * static_cast<long long>(kThreads) + threadIdx.x;
  last[threadIdx.x] = i < p.count ? p.x[i] : 0.0f;
  __syncthreads();
  if (i < p.count) {
    p.y[i] += p.a * last[threadIdx.x];
  }
}

extern "C" __global__ void two_parameters(Parameters p, int more) {
  if (threadIdx.x == 0) {
    p.y[0] = static_cast<float>(more);
  }
}

extern "C" __global__ void no_parameters() {}
)";

class GpuKernelLibrary : public GpuTest {
 protected:
  static constexpr int64_t kCount = 1000;  // no multiple of kThreads

  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    if (const std::string problem = compiler.why_not(); !problem.empty()) {
      GTEST_SKIP() << problem;
    }
    code = cache.get({.name = "axpy",
                      .text = std::string(kAxpy),
                      .architecture = gpu->cuda.state().compute_capability,
                      .defines = {fmt::format("kThreads={}", kThreads)}});
    x.emplace(DType::f32, std::initializer_list<int64_t>{kCount}, Layout::contiguous, kGpu);
    y.emplace(DType::f32, std::initializer_list<int64_t>{kCount}, Layout::contiguous, kGpu);
    std::vector<float> values(kCount);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i % 97) - 48.0f;  // all sums are exact
    }
    copy(x->view().data<float>(), values.data());
    values.assign(kCount, 1.0f);
    copy(y->view().data<float>(), values.data());
  }

  void copy(void* to, const void* from) {
    gpu->cuda.copy(to, from, kCount * int64_t{sizeof(float)});
  }
  AxpyParameters parameters(float a) const {
    return {.x = x->view().data<float>(), .y = y->view().data<float>(), .a = a, .count = kCount};
  }
  static LaunchShape shape(int64_t shared_bytes = 0) {
    return {.blocks = dim3((kCount + kThreads - 1) / kThreads),
            .threads = dim3(kThreads),
            .shared_bytes = static_cast<size_t>(shared_bytes),
            .pdl = true};
  }
  // That y = 1 + a x after all that was enqueued.
  void expect_sum(double a) {
    gpu->cuda.synchronize();
    std::vector<float> found(kCount);
    copy(found.data(), y->view().data<float>());
    for (size_t i = 0; i < found.size(); ++i) {
      const double expected = 1.0 + a * (static_cast<double>(i % 97) - 48.0);
      ASSERT_EQ(static_cast<double>(found[i]), expected) << i;
    }
    EXPECT_TRUE(x->guards_intact());
    EXPECT_TRUE(y->guards_intact());
  }

  RunTimeCompiler compiler;
  KernelCache cache{compiler, {}};
  std::span<const std::byte> code;
  std::optional<GuardedTensor> x;
  std::optional<GuardedTensor> y;
};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuKernelLibrary, ::testing::Values(DType::f32));

constexpr KernelNeeds kNeeds{.parameter_bytes = sizeof(AxpyParameters)};

TEST_P(GpuKernelLibrary, RunsWithEitherKindOfLaunch) {
  const KernelLibrary library(code, gpu->cuda);
  CUkern_st* const kernel = library.kernel("axpy", kNeeds);
  double sum = 0.0;
  for (const Launches launches : {Launches::ordinary, Launches::overlapping}) {
    gpu->exec.launches = launches;
    for (const float a : {1.0f, 2.0f, -0.5f}) {  // each adds to what the one before has written
      launch(gpu->exec, kernel, shape(), parameters(a));
      sum += a;
    }
    expect_sum(sum);
  }
  LaunchShape none = shape();
  none.blocks = dim3(0);
  launch(gpu->exec, kernel, none, parameters(100.0f));
  expect_sum(sum);
}

TEST_P(GpuKernelLibrary, RunsInAGraph) {
  const KernelLibrary library(code, gpu->cuda);
  CUkern_st* const kernel = library.kernel("axpy", kNeeds);  // it has not run yet
  const CudaGraph graph(gpu->cuda, [&] {
    launch(gpu->exec, kernel, shape(), parameters(1.0f));
    launch(gpu->exec, kernel, shape(), parameters(2.0f));
  });
  expect_sum(0.0);
  graph.launch();
  graph.launch();
  expect_sum(6.0);
}

TEST_P(GpuKernelLibrary, TakesMoreThan48KiBOfSharedMemory) {
  constexpr int64_t kShared = 64 << 10;
  const KernelLibrary library(code, gpu->cuda);
  CUkern_st* const kernel = library.kernel(
      "axpy_shared", {.parameter_bytes = sizeof(AxpyParameters), .shared_bytes = kShared});
  launch(gpu->exec, kernel, shape(kShared), parameters(1.0f));
  expect_sum(1.0);
  const CudaGraph graph(gpu->cuda,
                        [&] { launch(gpu->exec, kernel, shape(kShared), parameters(2.0f)); });
  graph.launch();
  expect_sum(3.0);
  for (const int64_t bytes : {int64_t{-1}, int64_t{1} << 20, int64_t{1} << 40}) {
    EXPECT_TRUE(throws_error(
        [&] {
          library.kernel("axpy_shared",
                         {.parameter_bytes = sizeof(AxpyParameters), .shared_bytes = bytes});
        },
        "bytes of shared memory"));
  }
}

TEST_P(GpuKernelLibrary, AKernelOfAnotherNameOrParameterIsRefused) {
  const KernelLibrary library(code, gpu->cuda);
  EXPECT_TRUE(throws_error([&] { library.kernel("axpi", kNeeds); }, "has no kernel axpi"));
  for (const int64_t bytes : {int64_t{0}, kNeeds.parameter_bytes - 8, kNeeds.parameter_bytes + 8}) {
    EXPECT_TRUE(throws_error([&] { library.kernel("axpy", {.parameter_bytes = bytes}); },
                             "kernel axpy does not take one parameter of "));
  }
  for (const char* name : {"two_parameters", "no_parameters"}) {
    EXPECT_TRUE(throws_error([&] { library.kernel(name, kNeeds); },
                             fmt::format("kernel {} does not take one parameter of ", name)));
  }
  // What was refused is told once, and not by the next launch again.
  launch(gpu->exec, library.kernel("axpy", kNeeds), shape(), parameters(1.0f));
  expect_sum(1.0);
}

TEST_P(GpuKernelLibrary, CodeThatIsNoneIsRefused) {
  EXPECT_TRUE(throws_error([&] { KernelLibrary({}, gpu->cuda); }, "are no code of kernels"));
  EXPECT_TRUE(throws_error([&] { KernelLibrary(code.first(63), gpu->cuda); },
                           "63 bytes that are no code of kernels"));
  EXPECT_TRUE(throws_error([&] { KernelLibrary(std::as_bytes(std::span(kAxpy)), gpu->cuda); },
                           "are no code of kernels"));
  // Of an architecture that this device is not.
  const int other = gpu->cuda.state().compute_capability / 10 == 8 ? 90 : 80;
  const std::span<const std::byte> other_code =
      cache.get({.name = "axpy",
                 .text = std::string(kAxpy),
                 .architecture = other,
                 .defines = {fmt::format("kThreads={}", kThreads)}});
  EXPECT_THROW(KernelLibrary(other_code, gpu->cuda).kernel("axpy", kNeeds), Error);
  expect_sum(0.0);
}

TEST_P(GpuKernelLibrary, MovesWithItsKernels) {
  KernelLibrary first(code, gpu->cuda);
  CUkern_st* const kernel = first.kernel("axpy", kNeeds);
  const KernelLibrary second = std::move(first);
  launch(gpu->exec, kernel, shape(), parameters(1.0f));
  launch(gpu->exec, second.kernel("axpy", kNeeds), shape(), parameters(1.0f));
  expect_sum(2.0);
}

}  // namespace
}  // namespace sparsellm
