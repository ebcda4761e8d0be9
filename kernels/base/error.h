#pragma once

#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <stdexcept>
#include <utility>

namespace sparsellm {

// The one exception of the project. Its text is one line that names what is wrong and with which
// value; the tools print it as it is.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Want of memory on a device, for callers that can do with less.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// A device that takes nothing more from this process, and with it all that was in its memory: every
// later call on it fails the same way. Nothing but another process helps.
class DeviceLost : public Error {
 public:
  using Error::Error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// For everything that comes from outside: files, flags, requests, and the contracts of ops. Checked
// in release builds too; `assert` is for invariants only. The arguments are evaluated in any case:
// where an exception for want of memory would hide what has been done (a file made, a directory
// renamed) they may take none. A path's native() takes none, its string() does.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]] {
    fail(format, std::forward<Args>(args)...);
  }
}

// Products and sums of sizes that were read from a file or a flag; an overflow is an Error that
// names `what`.
inline int64_t checked_mul(int64_t a, int64_t b, const char* what) {
  int64_t result = 0;
  require(!__builtin_mul_overflow(a, b, &result), "{}: {} * {} does not fit 64 bits", what, a, b);
  return result;
}

inline int64_t checked_add(int64_t a, int64_t b, const char* what) {
  int64_t result = 0;
  require(!__builtin_add_overflow(a, b, &result), "{}: {} + {} does not fit 64 bits", what, a, b);
  return result;
}

}  // namespace sparsellm
