#include "kernels/base/memory_reserve.h"

#include <sys/mman.h>

#include <atomic>
#include <new>
#include <utility>

namespace sparsellm {
namespace {

// The handler has no other way to be told.
thread_local constinit MemoryReserve* current = nullptr;
constinit std::atomic<std::new_handler> outer_handler = nullptr;  // of the program

void* map(size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

// Not a block of the heap: that would change the sizes from which the heap maps blocks of its own.
MemoryReserve::MemoryReserve(size_t bytes)
    : bytes_(bytes), memory_(map(bytes)), outer_(std::exchange(current, this)) {
  // It may stay: without a reserve it does what was done before.
  static const bool is_set = [] {
    outer_handler = std::set_new_handler(&MemoryReserve::give_to_heap);
    return true;
  }();
  static_cast<void>(is_set);
}

MemoryReserve::~MemoryReserve() {
  release();
  current = outer_;
}

void MemoryReserve::require_unused() const {
  if (memory_ == nullptr) {
    throw std::bad_alloc();
  }
}

void MemoryReserve::give_to_heap() {
  if (current != nullptr && current->memory_ != nullptr) {
    current->release();
  } else if (const std::new_handler outer = outer_handler; outer != nullptr) {
    outer();
  } else {
    throw std::bad_alloc();
  }
}

void MemoryReserve::release() noexcept {
  if (memory_ != nullptr) {
    ::munmap(std::exchange(memory_, nullptr), bytes_);
  }
}

}  // namespace sparsellm
