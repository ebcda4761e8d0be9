#include "kernels/base/usable_cores.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
namespace fs = std::filesystem;

class UsableCores : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    const fs::path path = root_.path() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  void cpu(int number, const std::string& threads, const char* file = "core_cpus_list") const {
    write("sys/devices/system/cpu/cpu" + std::to_string(number) + "/topology/" + file, threads);
  }
  int count(const std::vector<int>& cpus) const { return usable_cores(root_.path(), cpus); }

  TempDir root_;
};

TEST_F(UsableCores, HardwareThreadsOfACoreAreOne) {
  for (const char* file : {"thread_siblings_list", "core_cpus_list"}) {
    for (int i = 0; i < 4; ++i) {
      const std::string threads = std::to_string(i) + "," + std::to_string(4 + i);
      cpu(i, threads, file);
      cpu(4 + i, threads, file);
    }
    EXPECT_EQ(count({0, 1, 2, 3, 4, 5, 6, 7}), 4);
    EXPECT_EQ(count({1, 5}), 1);
    EXPECT_EQ(count({1, 6}), 2);
  }
}

TEST_F(UsableCores, WithoutATopologyEachCpuIsACore) {
  EXPECT_EQ(count({3, 8, 9}), 3);
  EXPECT_EQ(count({}), 1);
}

TEST_F(UsableCores, AQuotaOfAControlGroupIsALimit) {
  write("proc/self/cgroup", "0::/user/job");
  write("sys/fs/cgroup/user/job/cpu.max", "max 100000");
  EXPECT_EQ(count({0, 1, 2, 3, 4, 5, 6, 7}), 8);
  write("sys/fs/cgroup/user/job/cpu.max", "250000 100000");
  EXPECT_EQ(count({0, 1, 2, 3, 4, 5, 6, 7}), 3);
  EXPECT_EQ(count({0, 1}), 2);
  write("sys/fs/cgroup/user/cpu.max", "200000 100000");
  EXPECT_EQ(count({0, 1, 2, 3, 4, 5, 6, 7}), 2);
  write("sys/fs/cgroup/cpu.max", "10000 100000");
  EXPECT_EQ(count({0, 1, 2, 3, 4, 5, 6, 7}), 1);
}

TEST_F(UsableCores, AQuotaOfTheFirstVersionIsOne) {
  write("proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/a\n2:cpuset:/b");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "400000");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(count({0, 1, 2, 3, 4, 5, 6, 7}), 4);
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(count({0, 1, 2, 3, 4, 5, 6, 7}), 4);
}

TEST_F(UsableCores, WhatMakesNoSenseIsNoLimit) {
  write("proc/self/cgroup", "0::/job\nno colon\n7:cpu");
  for (const char* text : {"", "many of them", "-5 100000", "100000 0", "100000"}) {
    write("sys/fs/cgroup/job/cpu.max", text);
    EXPECT_EQ(count({0, 1, 2}), 3) << text;
  }
}

TEST(UsableCoresOfThisProcess, AreSome) { EXPECT_GE(usable_cores(), 1); }

}  // namespace
}  // namespace sparsellm
