#include "tools/bench/environment.h"

#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>

#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "kernels/base/usable_cores.h"
#include "sparsellm_version.h"
#include "tools/bench/cpu_clock.h"

namespace sparsellm {
namespace {

// ISO 8601.
std::string now_in_utc() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

// As Linux on x86 gives it; empty elsewhere.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return {};
}

std::string shell_word(const std::string& word) {
  constexpr char kPlain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,=+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
    return word;
  }
  std::string quoted = "'";
  for (char c : word) {
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return quoted + "'";
}

void add_gpu(Environment& environment, const GpuInfo& gpu) {
  const auto add = [&](const char* key, Cell value) {
    environment.push_back({.key = key, .value = std::move(value)});
  };
  const auto add_known = [&](const char* key, const auto& value) {
    if (value) {
      add(key, *value);
    }
  };
  add("gpu", gpu.name);
  add("gpu_count", static_cast<int64_t>(cuda_device_count()));
  add("gpu_memory_gib",
      std::round(std::ldexp(static_cast<double>(gpu.memory_bytes), -30) * 10) / 10);
  add("multiprocessors", static_cast<int64_t>(gpu.multiprocessors));
  add("compute_capability",
      fmt::format("{}.{}", gpu.compute_capability / 10, gpu.compute_capability % 10));
  add("l2_mib", gpu.l2_bytes >> 20);
  add_known("sm_clock_mhz", gpu.sm_clock);
  add_known("sm_clock_max_mhz", gpu.sm_clock_max);
  add_known("memory_clock_mhz", gpu.memory_clock);
  add_known("memory_clock_max_mhz", gpu.memory_clock_max);
  add_known("driver", gpu.driver);
  add("cuda_driver", gpu.cuda_driver);
  add("cuda_runtime", gpu.cuda_runtime);
  add("cublas", gpu.cublas);
}

}  // namespace

Environment describe_environment(Device device, const std::vector<std::string>& command_line,
                                 CpuIsa isa) {
  Environment environment{
      {.key = "version", .value = kVersion},
      {.key = "commit", .value = kCommit},
      {.key = "date", .value = now_in_utc()},
      {.key = "command", .value = shell_line(command_line)},
      {.key = "device", .value = to_string(device)},
  };
  if (const std::string cpu = cpu_name(); !cpu.empty()) {
    environment.push_back({.key = "cpu", .value = cpu});
  }
  environment.push_back({.key = "cpu_cores", .value = static_cast<int64_t>(usable_cores())});
  environment.push_back({.key = "cpu_isa", .value = std::string(name_of(isa))});
  if (const double clock = measure_cpu_clock(); clock > 0.0) {
    environment.push_back({.key = "cpu_clock_mhz", .value = std::round(clock * 1e-6)});
  }
  if (device.is_cuda()) {
    add_gpu(environment, query_gpu(device.index));
  }
  return environment;
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    line += (line.empty() ? "" : " ") + shell_word(word);
  }
  return line;
}

}  // namespace sparsellm
