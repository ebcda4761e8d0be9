#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/base/device.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

class DeviceInfo : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "there is no CUDA device";
    }
  }
};

bool is_version(const std::string& text) {
  return !text.empty() && text.find('.') != std::string::npos &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
}

TEST_F(DeviceInfo, SaysWhatTheGpuIs) {
  const GpuInfo info = query_gpu(0);
  EXPECT_NE(info.name, "");
  EXPECT_GE(info.memory_bytes, device_memory({Device::Kind::cuda, 0}).free);
  EXPECT_GT(info.l2_bytes, 0);
  EXPECT_GT(info.multiprocessors, 0);
  EXPECT_GE(info.compute_capability, 80);
  EXPECT_TRUE(is_version(info.cuda_driver)) << info.cuda_driver;
  EXPECT_TRUE(is_version(info.cuda_runtime)) << info.cuda_runtime;
  EXPECT_TRUE(is_version(info.cublas)) << info.cublas;
  EXPECT_GT(info.sm_clock_max.value_or(0), 0);
  EXPECT_GT(info.memory_clock_max.value_or(0), 0);
  EXPECT_LE(info.sm_clock.value_or(0), info.sm_clock_max.value_or(0));
  EXPECT_LE(info.memory_clock.value_or(0), info.memory_clock_max.value_or(0));
}

TEST_F(DeviceInfo, RefusesADeviceThatIsNotThere) { EXPECT_THROW(query_gpu(99), Error); }

TEST_F(DeviceInfo, AutoIsTheFirstGpu) {
  const DeviceChoice choice = choose_device("auto");
  EXPECT_EQ(choice.device, (Device{.kind = Device::Kind::cuda, .index = 0}));
  EXPECT_EQ(choice.warning, "");
  for (int index = 0; index < cuda_device_count(); ++index) {
    EXPECT_NO_THROW(check_device({.kind = Device::Kind::cuda, .index = index}));
  }
}

}  // namespace
}  // namespace sparsellm
