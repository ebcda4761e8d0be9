// Captures that come to nothing.

#include <gtest/gtest.h>

#include <thread>

#include "kernels/base/cuda_graph.h"
#include "kernels/base/error.h"
#include "kernels/fill_random.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/wait_for_device.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuGraph : public GpuTest {};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuGraph, ::testing::Values(DType::f16));

// What a library's wait for all of the device does in another thread. The two take turns here: a
// driver may not survive one that is repeated while kernels are captured (580.159 did not).
void break_capture() {
  std::thread([] {
    try {
      wait_for_device(kGpu);
    } catch (const Error&) {
      // It may not wait while another thread captures.
    }
  }).join();
}

TEST_P(GpuGraph, ABrokenCaptureLeavesTheContextInOrder) {
  constexpr int64_t kCount = 1000;
  const GuardedTensor x(DType::f32, {kCount}, Layout::contiguous, kGpu);
  const GuardedTensor expected(DType::f32, {kCount}, Layout::contiguous, Device{});
  const auto fill = [&](uint64_t key) { fill_random({.key = key}, x.view(), gpu->exec); };
  for (uint64_t key = 1; key <= 5; ++key) {
    EXPECT_THROW(CudaGraph(gpu->cuda,
                           [&] {
                             fill(key);
                             break_capture();
                             fill(key);
                           }),
                 CaptureFailed);
    fill(100 + key);  // one kernel at a time
    gpu->cuda.synchronize();
    fill_random({.key = 100 + key}, expected.view(), cpu.exec);
    EXPECT_TRUE(same_bits(x.view(), expected.view()));

    CudaGraph graph(gpu->cuda, [&] { fill(200 + key); });
    graph.launch();
    gpu->cuda.synchronize();
    fill_random({.key = 200 + key}, expected.view(), cpu.exec);
    EXPECT_TRUE(same_bits(x.view(), expected.view()));
    EXPECT_TRUE(x.guards_intact());
  }
}

TEST_P(GpuGraph, AnExceptionOfTheWorkIsThrownOn) {
  EXPECT_THROW(CudaGraph(gpu->cuda, [] { fail("a test"); }), Error);
  try {
    const CudaGraph graph(gpu->cuda, [] { fail("a test"); });
    FAIL() << "no exception";
  } catch (const CaptureFailed&) {
    FAIL() << "the capture was in order";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a test");
  }
}

}  // namespace
}  // namespace sparsellm
