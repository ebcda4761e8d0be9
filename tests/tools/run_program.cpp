#include "tests/tools/run_program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::testing {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool is_running(pid_t child) {
  siginfo_t info{};
  // WNOWAIT: its exit code is for run_program().
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

Outcome run_program(const char* program, const std::vector<std::string>& args,
                    const RunOptions& options) {
  const TempDir directory;
  const std::filesystem::path in = directory.write("in", options.input);
  const std::filesystem::path out = directory.write("out", "");
  const std::filesystem::path err = directory.write("err", "");
  const std::string path = testing::program(program).string();
  std::fflush(nullptr);  // or before_exec may write the test's own output once more
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open(in.c_str(), O_RDONLY), STDIN_FILENO);
    ::dup2(::open(out.c_str(), O_WRONLY), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY), STDERR_FILENO);
    ::signal(SIGINT, SIG_DFL);  // a test run in the background inherits that it is ignored
    if (options.before_exec) {
      options.before_exec();
    }
    std::vector<char*> argv{const_cast<char*>(path.c_str())};
    for (const std::string& arg : args) {
      argv.push_back(const_cast<char*>(arg.c_str()));
    }
    argv.push_back(nullptr);
    ::execv(path.c_str(), argv.data());
    ::_exit(127);
  }
  if (options.meanwhile) {
    options.meanwhile(child, out);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
          .out = read_file(out),
          .err = read_file(err)};
}

}  // namespace sparsellm::testing
