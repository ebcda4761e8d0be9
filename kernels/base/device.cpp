#include "kernels/base/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels/base/choose_device.h"
#include "kernels/base/device_cuda.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

constexpr int64_t kCpuAlignment = 256;  // as cudaMalloc; Workspace hands it on
constexpr int64_t kHugePage = 2 << 20;

// The heap would keep large blocks that are freed, in pieces that nothing else fits into: whoever
// reads a model weight by weight would end up with many of them.
bool is_large(int64_t bytes) { return bytes >= 2 * kHugePage; }

int64_t whole_pages(int64_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// Aligned to kHugePage: that much more is mapped, and what lies before and after the aligned part
// is unmapped.
void* map_memory(int64_t bytes) {
  if (bytes > std::numeric_limits<int64_t>::max() - 2 * kHugePage) {
    return nullptr;
  }
  const int64_t size = whole_pages(bytes);
  void* const mapped = ::mmap(nullptr, static_cast<size_t>(size + kHugePage),
                              PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  auto* const first = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<uintptr_t>(first);
  const auto before = static_cast<int64_t>(-address % static_cast<uintptr_t>(kHugePage));
  if (before > 0) {
    ::munmap(first, static_cast<size_t>(before));
  }
  if (before < kHugePage) {
    ::munmap(first + before + size, static_cast<size_t>(kHugePage - before));
  }
  // Weights and KV cache are read far and wide; a hint, so that its failure does not matter.
  ::madvise(first + before, static_cast<size_t>(size), MADV_HUGEPAGE);
  return first + before;
}

}  // namespace

std::string to_string(Device device) {
  if (device.is_planned()) {
    return "a planned GPU";
  }
  return device.is_cuda() ? fmt::format("cuda:{}", device.index) : "cpu";
}

DeviceChoice choose_device(std::string_view text) { return choose_device(text, cuda_facts()); }

Device parse_device(std::string_view text) { return choose_device(text).device; }

void check_device(Device device) {
  if (device.is_cuda()) {
    choose_device(to_string(device));
  }
}

DeviceMemory device_memory(Device device) {
  if (device.is_cuda()) {
    return device_memory_cuda(device.index);
  }
  const int64_t total = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
  return {.total = total, .free = total};
}

int64_t peak_memory(Device device) { return device.is_cuda() ? peak_memory_cuda(device.index) : 0; }

void* allocate_bytes(Device device, int64_t bytes) {
  if (device.is_cuda()) {
    return allocate_bytes_cuda(device.index, bytes);
  }
  if (is_large(bytes)) {
    return map_memory(bytes);
  }
  const int64_t rounded = (bytes + kCpuAlignment - 1) / kCpuAlignment * kCpuAlignment;
  return std::aligned_alloc(static_cast<size_t>(kCpuAlignment), static_cast<size_t>(rounded));
}

void free_bytes(Device device, void* data, int64_t bytes) noexcept {
  if (data == nullptr) {
    return;
  }
  if (device.is_cuda()) {
    free_bytes_cuda(device.index, data);
  } else if (is_large(bytes)) {
    ::munmap(data, static_cast<size_t>(whole_pages(bytes)));
  } else {
    std::free(data);
  }
}

void copy_bytes(Device to, void* destination, Device from, const void* source, int64_t bytes) {
  if (bytes == 0) {
    return;
  }
  if (to.is_cuda() || from.is_cuda()) {
    copy_bytes_cuda(to.is_cuda() ? to.index : from.index, destination, source, bytes);
  } else {
    std::memcpy(destination, source, static_cast<size_t>(bytes));
  }
}

}  // namespace sparsellm
