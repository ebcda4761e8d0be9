// Options and rows of the benchmark of sums over GPUs.

#include "tools/bench/comm.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST(BenchComm, AllWaysHaveNames) {
  std::set<std::string> names;
  for (const CommBenchWay& way : all_comm_ways()) {
    names.insert(name_of(way));
  }
  EXPECT_EQ(names, (std::set<std::string>{"one-shot-packets", "one-shot-tiles", "two-shot-packets",
                                          "two-shot-tiles", "nccl", "chosen"}));
}

TEST(BenchComm, InvalidOptionsAreRefused) {
  const auto refused = [](CommBenchOptions options, const char* message) {
    return throws_error([&] { check_options(options); }, message);
  };
  CommBenchOptions good;
  good.bytes = {16, 4096};
  check_options(good);
  CommBenchOptions options = good;
  options.bytes = {};
  EXPECT_TRUE(refused(options, "nothing to measure"));
  options = good;
  options.ways = {};
  EXPECT_TRUE(refused(options, "nothing to measure"));
  options = good;
  options.bytes = {3};
  EXPECT_TRUE(refused(options, "3 bytes are no whole number of elements in f16"));
  options = good;
  options.dtype = DType::f32;
  options.bytes = {6};
  EXPECT_TRUE(refused(options, "6 bytes"));
  options = good;
  options.dtype = DType::i32;
  EXPECT_TRUE(refused(options, "i32"));
  options = good;
  options.repeat = 0;
  EXPECT_TRUE(refused(options, "no median"));
}

TEST(BenchComm, RanksNeedGpusOfTheirOwn) {
  CommBenchOptions options;
  options.bytes = {16};
  options.devices.assign(99, {Device::Kind::cuda, 0});
  EXPECT_TRUE(throws_error([&] { check_comm_devices(options); }, "99 ranks need 99 GPUs, there "));
  if (cuda_device_count() > 0) {
    options.devices.assign(1, Device{});
    EXPECT_TRUE(throws_error([&] { check_comm_devices(options); }, "cpu is none"));
  }
  if (cuda_device_count() > 1) {
    options.devices.assign(2, {Device::Kind::cuda, 1});
    EXPECT_TRUE(throws_error([&] { check_comm_devices(options); }, "cuda:1 is there for two"));
  }
}

TEST(BenchComm, Rows) {
  const auto cell = [](const CommResult& result, const std::string& key) {
    const std::vector<Column> columns = comm_columns();
    const Row row = comm_row(result, 2);
    EXPECT_EQ(row.size(), columns.size());
    for (size_t i = 0; i < columns.size(); ++i) {
      if (columns[i].key == key) {
        return row[i];
      }
    }
    ADD_FAILURE() << "no column " << key;
    return Cell();
  };
  CommResult result{.bytes = 4000, .way = "nccl"};
  result.note = "there is none";
  EXPECT_TRUE(std::holds_alternative<NoValue>(cell(result, "time_us")));
  EXPECT_TRUE(std::holds_alternative<NoValue>(cell(result, "gb_per_s")));
  EXPECT_EQ(std::get<std::string>(cell(result, "note")), "there is none");
  result.measured = true;
  result.us = {.median = 4.0, .min = 3.0, .max = 5.0};
  EXPECT_EQ(std::get<int64_t>(cell(result, "ranks")), 2);
  EXPECT_EQ(std::get<Spread>(cell(result, "time_us")).median, 4.0);
  EXPECT_DOUBLE_EQ(std::get<double>(cell(result, "gb_per_s")), 1.0);
}

}  // namespace
}  // namespace sparsellm
