#include "tools/tool_main.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "sparsellm_version.h"
#include "tools/interrupt.h"

namespace sparsellm {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells report it

// stdout is for results alone.
void log_to_stderr() {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::move(sink)));
  spdlog::set_pattern("%v");
}

int report(const std::string& tool, std::string message, int code) {
  // One line, whatever text of a file or flag went into the message.
  for (char& c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      c = ' ';
    }
  }
  fmt::print(stderr, "{}: {}\n", tool, message);
  return code;
}

}  // namespace

int tool_main(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  const std::string tool = app.get_name();
  app.set_version_flag("--version", fmt::format("{} {} (commit {})", tool, kVersion, kCommit));
  log_to_stderr();
  try {
    app.parse(argc, argv);
    body();
    require(std::fflush(stdout) == 0 && std::ferror(stdout) == 0,
            "cannot write to standard output");
    return 0;
  } catch (const CLI::Success& answer) {  // --help, --version
    return app.exit(answer);
  } catch (const CLI::ParseError& error) {
    return report(tool, std::string(error.what()) + " (--help lists the options)", kUsage);
  } catch (const UsageError& error) {
    return report(tool, error.what(), kUsage);
  } catch (const Interrupted&) {
    return kInterrupted;
  } catch (const std::exception& error) {
    return report(tool, error.what(), kFailed);
  }
}

}  // namespace sparsellm
