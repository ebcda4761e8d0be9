// sparsellm-run at a terminal, which gives it a prompt a line.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

using testing::Outcome;

// Runs it with a terminal for stdin, at which these keys were pressed.
Outcome at_terminal(std::string_view keys, const std::vector<std::string>& more) {
  const int keyboard = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  EXPECT_EQ(::grantpt(keyboard), 0);
  EXPECT_EQ(::unlockpt(keyboard), 0);
  const std::string terminal = ::ptsname(keyboard);
  const int kept_open = ::open(terminal.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  EXPECT_EQ(::write(keyboard, keys.data(), keys.size()), std::ssize(keys));
  std::vector<std::string> args{
      "-m", testing::data("models/fable-llama-relu-8m").string(), "-n", "5", "--temp", "0"};
  args.insert(args.end(), more.begin(), more.end());
  Outcome outcome = testing::run_program(
      "sparsellm-run", args,
      {.input = {},
       .before_exec = [&] { ::dup2(::open(terminal.c_str(), O_RDWR | O_NOCTTY), STDIN_FILENO); },
       .meanwhile = {}});
  ::close(kept_open);
  ::close(keyboard);
  return outcome;
}

std::string continuation(const std::string& prompt) {
  return testing::run_program("sparsellm-run",
                              {"-m", testing::data("models/fable-llama-relu-8m").string(), "-n",
                               "5", "--temp", "0", "-p", prompt, "--quiet"})
      .out;
}

int64_t count(std::string_view text, std::string_view part) {
  int64_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) {
    ++found;
  }
  return found;
}

constexpr char kEndOfFile[] = "\x04";

// Empty lines are none, and a prompt that fails does not keep the next one away.
TEST(Terminal, APromptALine) {
  const std::string too_long = std::string(1500, '7');  // as many tokens; the context holds 1024
  const std::string keys =
      "The king\n\n" + too_long + "\nOnce upon a time\n" + std::string(kEndOfFile);
  const Outcome outcome = at_terminal(keys, {});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, continuation("The king") + continuation("Once upon a time"));
  EXPECT_EQ(count(outcome.err, "> "), 5) << outcome.err;
  EXPECT_EQ(count(outcome.err, "the prompt has 1502 tokens"), 1) << outcome.err;
}

TEST(Terminal, Quiet) {
  const Outcome outcome = at_terminal("The king\n" + std::string(kEndOfFile), {"--quiet"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, continuation("The king"));
  EXPECT_EQ(outcome.err, "");
}

}  // namespace
}  // namespace sparsellm
