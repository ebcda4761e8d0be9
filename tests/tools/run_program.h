#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace sparsellm::testing {

struct Outcome {
  int exit_code = -1;  // minus the signal if one ended the program
  std::string out;
  std::string err;
};

struct RunOptions {
  std::string input;                  // stdin
  std::function<void()> before_exec;  // called in the new process
  // Gets the process id and the file that stdout goes to, while the program runs.
  std::function<void(pid_t child, const std::filesystem::path& out)> meanwhile;
};

// Runs a built tool, e.g. "sparsellm-run", to its end.
Outcome run_program(const char* program, const std::vector<std::string>& args,
                    const RunOptions& options = {});

bool is_running(pid_t child);

std::string read_file(const std::filesystem::path& path);

}  // namespace sparsellm::testing
