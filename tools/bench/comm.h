#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/comm_plan.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "tools/cli/report.h"
#include "tools/cli/statistics.h"

namespace sparsellm {

// A way of a sum over ranks, or nothing: the one that the engine chooses by the size.
using CommBenchWay = std::optional<CommWay>;
std::vector<CommBenchWay> all_comm_ways();
std::string name_of(const CommBenchWay& way);  // "one-shot-packets", "chosen"

struct CommBenchOptions {
  std::vector<Device> devices;  // one for each rank, which are threads of this process
  std::vector<int64_t> bytes;   // of the tensor that is summed up
  std::vector<CommBenchWay> ways = all_comm_ways();
  DType dtype = DType::f16;
  int64_t calls = 100;  // of a graph
  int64_t repeat = 20;  // replays that the median is taken over
  uint64_t seed = 1;
};

struct CommResult {
  int64_t bytes = 0;
  std::string way;
  std::string taken = {};  // the way that was chosen
  bool measured = false;   // and verified
  Spread us = {};          // a call of the slowest rank
  std::string note = {};   // why it was not measured
};

// Throws Error: for options that make no sense, whatever the devices; and for devices that are not
// there, or not CUDA.
void check_options(const CommBenchOptions& options);
void check_comm_devices(const CommBenchOptions& options);

// All-reduces of all sizes and ways: a chain of `calls` in a graph, replayed on all ranks at once.
// Results are verified before and after: own kernels' have the bits of the sum in f32 in the order
// of the ranks, rounded once. A way that is not there is a result with a note. `on_result` gets
// every result as soon as it is complete, in another thread. Throws Error, for a wrong result too.
void bench_comm(const CommBenchOptions& options,
                const std::function<void(const CommResult&)>& on_result);

// Adds the table "comm".
void report_comm(const CommBenchOptions& options, ReportWriter& report);

std::vector<Column> comm_columns();
Row comm_row(const CommResult& result, int ranks);

}  // namespace sparsellm
