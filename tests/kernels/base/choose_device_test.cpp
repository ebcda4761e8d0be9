#include "kernels/base/choose_device.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

const GpuFacts kT4{.name = "Tesla T4", .compute_capability = 75};
const GpuFacts kV100{.name = "Tesla V100-SXM2-16GB", .compute_capability = 70};
const GpuFacts kA100{.name = "NVIDIA A100-SXM4-40GB", .compute_capability = 80};
const GpuFacts kB200{.name = "NVIDIA B200", .compute_capability = 100};
const GpuFacts kRtx5090{.name = "NVIDIA GeForce RTX 5090", .compute_capability = 120};

Device gpu(int index) { return {.kind = Device::Kind::cuda, .index = index}; }

CudaFacts machine(std::vector<GpuFacts> gpus) {
  CudaFacts facts;
  facts.driver_version = 13000;
  facts.runtime_version = 13000;
  facts.gpus = std::move(gpus);
  return facts;
}

// A build with code for A100s alone.
CudaFacts machine_of_a100_build(std::vector<GpuFacts> gpus) {
  CudaFacts facts = machine(std::move(gpus));
  facts.why_no_code = [of = facts.gpus](int index) {
    return of.at(static_cast<size_t>(index)).compute_capability == 80 ? "" : "it has no code";
  };
  return facts;
}

CudaFacts no_driver() {
  CudaFacts facts = machine({});
  facts.driver_version = 0;
  facts.problem = "CUDA driver version is insufficient for CUDA runtime version";  // CUDA's text
  return facts;
}

CudaFacts old_driver() {
  CudaFacts facts = no_driver();
  facts.driver_version = 12020;
  return facts;
}

CudaFacts cpu_only_build() { return {}; }

TEST(ChooseDevice, AutoTakesTheFirstGpuThatCanBeUsed) {
  const std::vector<std::pair<std::vector<GpuFacts>, int>> cases{
      {{kA100}, 0}, {{kB200, kA100}, 0}, {{kT4, kA100, kB200}, 1}, {{kV100, kT4, kRtx5090}, 2}};
  for (const auto& [gpus, first] : cases) {
    const DeviceChoice choice = choose_device("auto", machine(gpus));
    EXPECT_EQ(choice.device, gpu(first));
    EXPECT_EQ(choice.warning, "");
  }
  const DeviceChoice choice =
      choose_device("auto", machine_of_a100_build({kRtx5090, kB200, kT4, kA100, kA100}));
  EXPECT_EQ(choice.device, gpu(3));
  EXPECT_EQ(choice.warning, "");
}

TEST(ChooseDevice, AutoSaysWhyItIsTheCpu) {
  const DeviceChoice old = choose_device("auto", machine({kT4}));
  EXPECT_EQ(old.device, Device{});
  EXPECT_EQ(old.warning,
            "the device is the CPU: cuda:0 (Tesla T4, compute capability 7.5) cannot be used: at "
            "least 8.0 is needed");

  const DeviceChoice two = choose_device("auto", machine_of_a100_build({kV100, kRtx5090}));
  EXPECT_EQ(two.device, Device{});
  EXPECT_EQ(two.warning,
            "the device is the CPU: cuda:0 (Tesla V100-SXM2-16GB, compute capability 7.0) cannot "
            "be used: at least 8.0 is needed; cuda:1 (NVIDIA GeForce RTX 5090, compute capability "
            "12.0) cannot be used: it has no code");

  const DeviceChoice driver = choose_device("auto", old_driver());
  EXPECT_EQ(driver.device, Device{});
  EXPECT_EQ(driver.warning,
            "the device is the CPU: CUDA driver version is insufficient for CUDA runtime version "
            "(the NVIDIA driver knows CUDA up to 12.2, this build is of CUDA 13.0)");
}

// Without a driver CUDA answers as it does with an old one; only the driver's version differs.
TEST(ChooseDevice, AutoIsSilentWhereThereIsNoGpu) {
  for (const CudaFacts& facts : {machine({}), no_driver(), cpu_only_build()}) {
    const DeviceChoice choice = choose_device("auto", facts);
    EXPECT_EQ(choice.device, Device{});
    EXPECT_EQ(choice.warning, "");
  }
}

TEST(ChooseDevice, TheCpuAsksNothing) {
  for (const CudaFacts& facts :
       {machine({kT4}), machine({kA100}), old_driver(), cpu_only_build()}) {
    EXPECT_EQ(choose_device("cpu", facts).device, Device{});
    EXPECT_EQ(choose_device("cpu", facts).warning, "");
  }
}

TEST(ChooseDevice, ByName) {
  const CudaFacts facts = machine_of_a100_build({kA100, kT4, kB200, kA100});
  EXPECT_EQ(choose_device("cuda", facts).device, gpu(0));
  EXPECT_EQ(choose_device("cuda:0", facts).device, gpu(0));
  EXPECT_EQ(choose_device("cuda:3", facts).device, gpu(3));
  EXPECT_EQ(choose_device("cuda:3", facts).warning, "");
  EXPECT_TRUE(throws_error([&] { choose_device("cuda:1", facts); },
                           "device cuda:1 (Tesla T4, compute capability 7.5) cannot be used: at "
                           "least 8.0 is needed"));
  EXPECT_TRUE(throws_error([&] { choose_device("cuda:2", facts); },
                           "device cuda:2 (NVIDIA B200, compute capability 10.0) cannot be used: "
                           "it has no code"));
  EXPECT_TRUE(throws_error([&] { choose_device("cuda:4", facts); },
                           "device cuda:4 is not there: this machine has 4 CUDA device(s)"));
}

TEST(ChooseDevice, ByNameWithoutGpus) {
  const std::vector<std::pair<CudaFacts, std::string>> cases{
      {machine({}), "device cuda:0 is not there: this machine has no CUDA device"},
      {no_driver(), "device cuda:0 is not there: there is no NVIDIA driver"},
      {old_driver(),
       "device cuda:0 is not there: CUDA driver version is insufficient for CUDA runtime version "
       "(the NVIDIA driver knows CUDA up to 12.2, this build is of CUDA 13.0)"},
      {cpu_only_build(), "device cuda:0 is not there: this build has the CPU device only"}};
  for (const auto& [facts, message] : cases) {
    EXPECT_TRUE(throws_error([&on = facts] { choose_device("cuda", on); }, message));
    EXPECT_TRUE(
        throws_error([&on = facts] { choose_device("cuda:x", on); }, "unknown device 'cuda:x'"));
  }
}

// A GPU that is not the answer is left alone: to ask it takes its memory.
TEST(ChooseDevice, AsksNoMoreGpusThanItHasTo) {
  CudaFacts facts = machine({kT4, kA100, kA100, kB200});
  std::vector<int> asked;
  facts.why_no_code = [&asked](int index) {
    asked.push_back(index);
    return std::string();
  };
  choose_device("cpu", facts);
  EXPECT_EQ(asked, std::vector<int>{});
  choose_device("auto", facts);
  choose_device("cuda:3", facts);
  EXPECT_EQ(asked, (std::vector<int>{1, 3}));
}

}  // namespace
}  // namespace sparsellm
