#pragma once

#include <cstdint>
#include <functional>

namespace sparsellm::testing {

// For EXPECT_EXIT: runs body() with `mib` of memory besides what the process has, and ends the
// process: with 0, or with 3 if that was too little. Not with sanitizers, which reserve terabytes.
[[noreturn]] void exit_with_memory(int64_t mib, const std::function<void()>& body);

}  // namespace sparsellm::testing
