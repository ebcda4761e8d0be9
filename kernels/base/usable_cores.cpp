#include "kernels/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Cores of a quota of microseconds in each period, rounded up.
int64_t cores_of(int64_t quota, int64_t period) {
  return quota > 0 && period > 0 ? (quota - 1) / period + 1 : kNoLimit;
}

// "max 100000" or "250000 100000".
int64_t quota_v2(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  int64_t quota = 0;
  int64_t period = 0;
  return file >> quota >> period ? cores_of(quota, period) : kNoLimit;
}

int64_t quota_v1(const fs::path& group) {
  return cores_of(number_in(group / "cpu.cfs_quota_us").value_or(0),
                  number_in(group / "cpu.cfs_period_us").value_or(0));
}

// The smallest quota of a group and those that it is in.
template <class Quota>
int64_t smallest_quota(const fs::path& mount, const std::string& group, Quota quota) {
  int64_t smallest = kNoLimit;
  for (fs::path path = fs::path(group).relative_path();; path = path.parent_path()) {
    smallest = std::min(smallest, quota(mount / path));
    if (path.empty()) {
      return smallest;
    }
  }
}

// Lines of /proc/self/cgroup: "number:controllers:group", without controllers for v2.
int64_t cores_of_quota(const fs::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  int64_t smallest = kNoLimit;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    const fs::path mount = root / "sys/fs/cgroup";
    if (controllers.empty()) {
      smallest = std::min(smallest, smallest_quota(mount, group, quota_v2));
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      for (const std::string& folder : {std::string("cpu"), controllers}) {
        smallest = std::min(smallest, smallest_quota(mount / folder, group, quota_v1));
      }
    }
  }
  return smallest;
}

std::vector<int> cpus_of_this_process() {
  constexpr int kMaxCpus = 1 << 16;
  std::vector<int> cpus;
  // The kernel refuses a set that is smaller than its own.
  for (int count = CPU_SETSIZE; count <= kMaxCpus; count *= 4) {
    std::vector<cpu_set_t> set(CPU_ALLOC_SIZE(count) / sizeof(cpu_set_t) + 1);
    const size_t bytes = set.size() * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, bytes, set.data()) == 0) {
      for (int cpu = 0; cpu < static_cast<int>(bytes * 8); ++cpu) {
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set.data())) {
          cpus.push_back(cpu);
        }
      }
      break;
    }
  }
  return cpus;
}

}  // namespace

int usable_cores(const fs::path& root, std::span<const int> cpus) {
  // By the hardware threads of a core, since numbers of cores occur twice, in two packages and in
  // two clusters of one.
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string name = std::to_string(cpu);
    const fs::path topology = root / "sys/devices/system/cpu" / ("cpu" + name) / "topology";
    std::string threads = line_of(topology / "core_cpus_list");
    if (threads.empty()) {
      threads = line_of(topology / "thread_siblings_list");  // of older kernels
    }
    cores.insert(threads.empty() ? name : threads);
  }
  return static_cast<int>(std::clamp<int64_t>(std::ssize(cores), 1, cores_of_quota(root)));
}

int usable_cores() {
  const std::vector<int> cpus = cpus_of_this_process();
  return cpus.empty() ? std::max(1, static_cast<int>(std::thread::hardware_concurrency()))
                      : usable_cores("/", cpus);
}

}  // namespace sparsellm
