// Replaces malloc in a program, so that also allocations of libraries in C can be made to fail. Not
// for sanitizers, which have a malloc of their own.

#include <cstddef>

#include "tests/testing/failing_allocations.h"

extern "C" {

void* __libc_malloc(size_t bytes);

void* malloc(size_t bytes) {
  return sparsellm::testing::fails_now() ? nullptr : __libc_malloc(bytes);
}

}  // extern "C"
