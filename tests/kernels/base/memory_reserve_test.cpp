#include "kernels/base/memory_reserve.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <new>
#include <optional>
#include <thread>

#include "tests/testing/sanitized.h"

namespace sparsellm {
namespace {

constexpr size_t kTooMuch = size_t{1} << 60;

// What operator new does when malloc has nothing: with true it tries again.
bool handler_helps() {
  try {
    std::get_new_handler()();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

rlim_t mapped_bytes() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

TEST(MemoryReserve, HelpsOnce) {
  const MemoryReserve reserve(1 << 20);
  EXPECT_NO_THROW(reserve.require_unused());
  EXPECT_TRUE(handler_helps());
  EXPECT_THROW(reserve.require_unused(), std::bad_alloc);
  EXPECT_FALSE(handler_helps());
}

TEST(MemoryReserve, IsOfItsScopeAndThread) {
  const MemoryReserve outer(1 << 20);
  {
    const MemoryReserve inner(1 << 16);
    bool helps = true;
    std::thread([&] { helps = handler_helps(); }).join();
    EXPECT_FALSE(helps);
    EXPECT_TRUE(handler_helps());
    EXPECT_THROW(inner.require_unused(), std::bad_alloc);
    EXPECT_NO_THROW(outer.require_unused());
  }
  EXPECT_TRUE(handler_helps());
  EXPECT_THROW(outer.require_unused(), std::bad_alloc);
}

TEST(MemoryReserve, WithoutOneMemoryEndsAsItDoesElsewhere) {
  { const MemoryReserve reserve(1); }
  EXPECT_FALSE(handler_helps());
}

TEST(MemoryReserve, MoreThanThereIsIsRefused) {
  EXPECT_THROW(MemoryReserve{kTooMuch}, std::bad_alloc);
}

// With a limit of the address space, as `ulimit -v` sets it.
TEST(MemoryReserve, GivesItsMemoryToTheHeap) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "sanitizers have an operator new of their own, and take the address space";
  }
  constexpr size_t kBytes = size_t{512} << 20;  // more than a thread's heap holds
  for (bool has_reserve : {true, false}) {
    ::malloc_trim(0);  // what other tests have freed
    std::optional<MemoryReserve> reserve;
    if (has_reserve) {
      reserve.emplace(kBytes);
    }
    struct rlimit before {};
    ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
    const struct rlimit full {
      .rlim_cur = mapped_bytes() + kBytes / 4, .rlim_max = before.rlim_max
    };
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &full), 0);
    void* volatile memory = ::operator new(kBytes / 4 * 3, std::nothrow);  // or it is left out
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
    EXPECT_EQ(memory != nullptr, has_reserve);
    ::operator delete(memory);
    if (has_reserve) {
      EXPECT_THROW(reserve->require_unused(), std::bad_alloc);
    }
  }
}

}  // namespace
}  // namespace sparsellm
