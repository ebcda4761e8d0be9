// Where memory ends and nothing may be thrown - before main(), in functions of libraries that are
// noexcept - the program ends as it does elsewhere: with a line that says so and the exit code 1.

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>

namespace sparsellm {
namespace {

constexpr int kFailed = 1;  // as tool_main() returns it

constinit std::terminate_handler other_handler = nullptr;

bool is_out_of_memory() noexcept {
  if (std::current_exception() == nullptr) {
    return false;
  }
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return true;
  } catch (...) {
    return false;
  }
}

void write_error(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

[[noreturn]] void terminate() {
  if (!is_out_of_memory()) {
    other_handler();
  }
  write_error(program_invocation_short_name);
  write_error(": out of memory\n");
  ::_exit(kFailed);
}

// Before the constructors of static objects.
[[gnu::constructor(102)]] void set_terminate_handler() {
  other_handler = std::set_terminate(terminate);
}

}  // namespace
}  // namespace sparsellm
