#pragma once

#include <stdexcept>
#include <string>

namespace sparsellm::fuzz {

// Something that holds for all that a loader accepts. Nobody catches the exception, so that it ends
// the program, and the fuzzer keeps the input.
inline void expect(bool condition, const char* what) {
  if (!condition) {
    throw std::logic_error(std::string("expected: ") + what);
  }
}

}  // namespace sparsellm::fuzz
