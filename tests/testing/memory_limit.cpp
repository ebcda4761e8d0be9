#include "tests/testing/memory_limit.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <new>

namespace sparsellm::testing {

void exit_with_memory(int64_t mib, const std::function<void()>& body) {
  // What earlier tests have freed would be memory besides, and the heap a place for large blocks.
  ::malloc_trim(0);
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
  std::ifstream file("/proc/self/statm");
  int64_t pages[6] = {};
  for (int64_t& count : pages) {
    file >> count;
  }
  const auto bytes = static_cast<rlim_t>(pages[5] * ::sysconf(_SC_PAGESIZE) + (mib << 20));
  const struct rlimit limit { .rlim_cur = bytes, .rlim_max = bytes };
  ::setrlimit(RLIMIT_DATA, &limit);
  try {
    body();
  } catch (const std::bad_alloc&) {
    std::_Exit(3);
  }
  std::_Exit(0);
}

}  // namespace sparsellm::testing
