#include "kernels/base/device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "kernels/base/device_cuda.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST(Device, Names) {
  EXPECT_EQ(to_string(Device{}), "cpu");
  EXPECT_EQ(to_string(Device{Device::Kind::cuda, 0}), "cuda:0");
  EXPECT_EQ(to_string(Device{Device::Kind::cuda, 3}), "cuda:3");
}

TEST(Device, Equality) {
  EXPECT_EQ(Device{}, (Device{Device::Kind::cpu, 0}));
  EXPECT_NE(Device{}, (Device{Device::Kind::cuda, 0}));
  EXPECT_NE((Device{Device::Kind::cuda, 1}), (Device{Device::Kind::cuda, 0}));
}

TEST(ParseDevice, Cpu) { EXPECT_EQ(parse_device("cpu"), Device{}); }

TEST(ParseDevice, RefusesWhatIsNoDevice) {
  for (const char* text : {"", "CPU", "cpu ", "cpu:0", "gpu", "cuda:", "cuda:x", "cuda:1x",
                           "cuda:-1", "cuda:+1", "cuda: 1", "cuda:99999999999", "cudax"}) {
    EXPECT_TRUE(throws_error([&] { parse_device(text); }, fmt::format("unknown device '{}'", text)))
        << text;
  }
}

TEST(ParseDevice, CudaIsThereOrTheReasonIsGiven) {
  if (cuda_device_count() > 0) {
    EXPECT_EQ(parse_device("cuda"), (Device{Device::Kind::cuda, 0}));
    EXPECT_EQ(parse_device("cuda:0"), (Device{Device::Kind::cuda, 0}));
  } else {
    EXPECT_TRUE(throws_error([] { parse_device("cuda"); }, "device cuda:0 is not there: "));
  }
  EXPECT_TRUE(throws_error([] { parse_device("cuda:9999"); }, "device cuda:9999 is not there: "));
}

TEST(ParseDevice, AutoIsTheCpuInSilenceWhereThereIsNoGpu) {
  const CudaFacts facts = cuda_facts();
  if (!facts.gpus.empty() || (facts.driver_version > 0 && !facts.problem.empty())) {
    GTEST_SKIP() << "there is a driver that has, or may have, a GPU";
  }
  EXPECT_EQ(choose_device("auto").device, Device{});
  EXPECT_EQ(choose_device("auto").warning, "");
}

TEST(CheckDevice, ADeviceThatIsNotThereIsRefused) {
  EXPECT_NO_THROW(check_device({}));
  EXPECT_TRUE(throws_error(
      [] {
        check_device({Device::Kind::cuda, 9999});
      },
      "device cuda:9999 is not there: "));
}

TEST(AllocateBytes, GivesAlignedMemoryOrNull) {
  void* data = allocate_bytes({}, 1000);
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0u);
  std::memset(data, 1, 1000);
  free_bytes({}, data, 1000);
  free_bytes({}, nullptr, 0);
  EXPECT_EQ(allocate_bytes({}, int64_t{1} << 60), nullptr);
}

TEST(AllocateBytes, LargeMemoryGoesBackToTheSystem) {
  constexpr int64_t kBytes = (16 << 20) + 4097;
  auto* const data = static_cast<unsigned char*>(allocate_bytes({}, kBytes));
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (2 << 20), 0u);
  std::memset(data, 1, kBytes);
  free_bytes({}, data, kBytes);
  unsigned char resident = 0;
  EXPECT_NE(::mincore(data, 4096, &resident), 0) << "the pages are still mapped";
}

TEST(CopyBytes, BetweenHostBuffers) {
  const char from[] = "0123456789";
  char to[] = "..........";
  copy_bytes({}, to + 2, {}, from, 5);
  EXPECT_STREQ(to, "..01234...");
  copy_bytes({}, nullptr, {}, nullptr, 0);
}

}  // namespace
}  // namespace sparsellm
