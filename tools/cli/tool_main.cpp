#include "tools/cli/tool_main.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "kernels/base/lost_pages.h"
#include "kernels/base/memory_reserve.h"
#include "sparsellm_version.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/known_flags.h"
#include "tools/cli/nccl_environment.h"
#include "tools/cli/printable.h"

namespace sparsellm {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kSignals = 128;  // plus the signal, as shells report one

// The streams that help is put together in leave out what they have no memory for.
constexpr size_t kHelpBytes = 1 << 20;

// The first file that is opened would else become the standard output or error of a program that
// was started without. They cannot be read or written afterwards either.
void occupy_standard_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0) {
      ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

constexpr const char* kOutputFailed = "cannot write to standard output";

// False also if a write before has failed.
bool flush_output() { return std::fflush(stdout) == 0 && std::ferror(stdout) == 0; }

int fail_with(int code, const std::string& tool, const std::string& message) {
  report_error(tool, message);
  return code;
}

}  // namespace

void print_error_text(const std::string& text) { std::fputs(text.c_str(), stderr); }

void report_error(const std::string& tool, std::string_view message) {
  print_error_text(fmt::format("{}: {}\n", tool, one_line(message)));
}

int tool_main(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  occupy_standard_streams();
  ::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit is an error like others, not the end
  survive_lost_pages();
  leave_nvlink_multicast_off();
  const std::string tool = app.get_name();
  app.set_version_flag("--version", fmt::format("{} {} (commit {})", tool, kVersion, kCommit));
  try {
    require_known_flags(app, std::vector<std::string>(argv + 1, argv + argc));
    app.parse(argc, argv);
    body();
    require(flush_output(), "{}", kOutputFailed);
    return 0;
  } catch (const CLI::Success& answer) {  // --help, --version
    const MemoryReserve reserve(kHelpBytes);
    const int code = app.exit(answer);
    return flush_output() ? code : fail_with(kFailed, tool, kOutputFailed);
  } catch (const CLI::ParseError& error) {
    return fail_with(kUsage, tool, std::string(error.what()) + " (--help lists the options)");
  } catch (const UsageError& error) {
    return fail_with(kUsage, tool, error.what());
  } catch (const Interrupted&) {
    return kSignals + (interrupted() ? interrupting_signal() : SIGINT);
  } catch (const std::bad_alloc&) {
    return fail_with(kFailed, tool, "out of memory");
  } catch (const std::exception& error) {
    return fail_with(kFailed, tool, error.what());
  }
}

}  // namespace sparsellm
