#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "tools/cli/cli_fwd.h"

namespace sparsellm {

// A flag or a combination of flags that makes no sense: exit code 2 instead of 1.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Writes to stderr; a stderr that cannot be written is no reason to fail.
void print_error_text(const std::string& text);

// One line "<tool>: <message>" on stderr, whatever text of a file or flag went into the message.
void report_error(const std::string& tool, std::string_view message);

// What every tool's main() does: adds --version, parses the command line, runs `body` and turns
// what goes wrong into one line on stderr and the exit code: 0, 1 for an Error, 2 for wrong usage,
// 128 and the signal after Ctrl-C (130), SIGTERM (143) and SIGHUP (129). A standard stream that is
// closed stays unusable, but is not taken by a file; a file that grows beyond the limit of its size
// is an Error. NCCL, if it is loaded later, leaves NVLink's multicast off.
int tool_main(CLI::App& app, int argc, char** argv, const std::function<void()>& body);

}  // namespace sparsellm
