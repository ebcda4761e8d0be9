// tools/cli/terminate.cpp is linked into this program, as into the user's.

#include <gtest/gtest.h>

#include <csignal>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>

namespace sparsellm {
namespace {

void call_without_exceptions(const std::function<void()>& body) noexcept { body(); }

TEST(TerminateDeathTest, OutOfMemoryIsALineAndExitCode1) {
  EXPECT_EXIT(call_without_exceptions([] { throw std::bad_alloc(); }), ::testing::ExitedWithCode(1),
              "^[a-z_]+: out of memory\n$");
}

TEST(TerminateDeathTest, AllElseAborts) {
  EXPECT_EXIT(call_without_exceptions([] { throw std::runtime_error("other"); }),
              ::testing::KilledBySignal(SIGABRT), "other");
  EXPECT_EXIT(std::terminate(), ::testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace sparsellm
