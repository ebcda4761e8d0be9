#include "tests/testing/resident_pages.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "kernels/base/file_descriptor.h"

namespace sparsellm::testing {

// An entry of 64 bits for each page of the address space, the highest of which says whether it is
// there: proc_pid_pagemap(5).
std::optional<int64_t> resident_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGE_SIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t first = (begin + page - 1) / page;
  const uintptr_t last = (begin + bytes.size()) / page;
  std::vector<uint64_t> entries(last > first ? last - first : 0);
  const size_t size = entries.size() * sizeof(uint64_t);
  const FileDescriptor pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const auto offset = static_cast<off_t>(first * sizeof(uint64_t));
  if (pagemap.get() < 0 ||
      ::pread(pagemap.get(), entries.data(), size, offset) != static_cast<ssize_t>(size)) {
    return std::nullopt;
  }
  return std::count_if(entries.begin(), entries.end(),
                       [](uint64_t entry) { return entry >> 63 != 0; });
}

}  // namespace sparsellm::testing
