// Random weights on the first CUDA device.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/weights/random_loader.h"
#include "tests/testing/gpu_context.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr int64_t kRows = int64_t{1} << 15;  // 2 GiB with as many columns

class GpuRandomLoader : public GpuTest {
 protected:
  // Bytes at the end, which is filled last, by a copy that is not ordered with the loader's stream.
  static std::vector<std::byte> end_of(const Tensor& tensor) {
    std::vector<std::byte> bytes(1 << 16);
    const auto* const end = static_cast<const std::byte*>(tensor.raw()) + tensor.bytes();
    copy_bytes({}, bytes.data(), kGpu, end - bytes.size(), std::ssize(bytes));
    return bytes;
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuRandomLoader, ::testing::Values(DType::f16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// A builder that throws, as for want of memory, drops the tensors that it has: nothing writes to
// their memory any more.
TEST_P(GpuRandomLoader, NothingIsUnderWayWhenATensorIsThere) {
  RandomLoader loader(kGpu, {.dtype = GetParam()});
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    const OwnedTensor tensor = loader.matrix(fmt::format("{}.weight", i), kRows, kRows);
    const std::vector<std::byte> early = end_of(tensor.view);
    loader.finish();
    EXPECT_TRUE(early == end_of(tensor.view));
  }
}

TEST_P(GpuRandomLoader, TensorsMayGoAtOnce) {
  RandomLoader loader(kGpu, {.dtype = GetParam()});
  for (int i = 0; i < 8; ++i) {
    loader.matrix(fmt::format("{}.weight", i), kRows, kRows);
  }
  loader.finish();
  gpu->cuda.synchronize();
}

}  // namespace
}  // namespace sparsellm
