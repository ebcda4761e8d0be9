#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "kernels/base/error.h"

namespace sparsellm {

// A flag or a combination of flags that makes no sense: exit code 2 instead of 1.
class UsageError : public Error {
 public:
  using Error::Error;
};

// What every tool's main() does: adds --version, parses the command line, runs `body` and turns
// what goes wrong into one line on stderr and the exit code: 0, 1 for an Error, 2 for wrong usage,
// 130 after Ctrl-C.
int tool_main(CLI::App& app, int argc, char** argv, const std::function<void()>& body);

}  // namespace sparsellm
