// Replaces the operators new and delete of a program, so that allocations can be made to fail.

#include <cstddef>
#include <cstdlib>
#include <new>

#include "tests/testing/failing_allocations.h"

namespace {

[[gnu::noinline]] void* allocate(size_t bytes) noexcept {
  return sparsellm::testing::fails_now() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}

[[gnu::noinline]] void* allocate_or_throw(size_t bytes) {
  void* memory = allocate(bytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

[[gnu::noinline]] void release(void* memory) noexcept { std::free(memory); }

}  // namespace

void* operator new(size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }
