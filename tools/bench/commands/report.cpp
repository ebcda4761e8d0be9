#include "tools/bench/commands/report.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>

#include "kernels/base/cpu_isa.h"
#include "tools/bench/environment.h"
#include "tools/bench/read_bandwidth.h"
#include "tools/bench/turns.h"
#include "tools/cli/args.h"

namespace sparsellm {
namespace {

// What is read to measure the read bandwidth: many times any last cache.
constexpr int64_t kCpuReadBytes = int64_t{256} << 20;
constexpr int64_t kGpuReadBytes = int64_t{2} << 30;

void write_stdout(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);  // a reader of lines sees each row when it is there
}

}  // namespace

void with_report(const OutputArgs& output, Environment environment,
                 const std::function<void(ReportWriter& report)>& body) {
  ReportWriter report(output.format.value_or(ReportFormat::table), std::move(environment),
                      write_stdout);
  try {
    body(report);
  } catch (...) {
    report.finish();
    throw;
  }
  report.finish();
}

Environment describe_model_environment(const BenchModelArgs& args,
                                       const std::vector<std::string>& command_line) {
  Environment environment =
      describe_environment(device_of(args.model), command_line, parse_cpu_isa(args.model.cpu_isa));
  if (args.model.ranks.ranks() > 1) {
    environment.push_back({.key = "devices", .value = devices_text(args.model)});
  }
  if (!args.plan.empty()) {
    environment.push_back({.key = "plan", .value = args.plan});
  }
  return environment;
}

Property dtype_property(DType dtype) {
  return {.key = "dtype", .value = std::string(name_of(dtype))};
}

Property verdict_property() { return {.key = "verdict", .value = std::string(verdict_rule())}; }

Property read_bandwidth_property(double bytes_per_second) {
  return {.key = "read_bandwidth_gb_per_s", .value = std::round(bytes_per_second * 1e-8) / 10.0};
}

double measure_memory_bandwidth(Device device) {
  return measure_read_bandwidth(device, device.is_cuda() ? kGpuReadBytes : kCpuReadBytes);
}

}  // namespace sparsellm
