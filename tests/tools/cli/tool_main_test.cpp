#include "tools/cli/tool_main.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <new>
#include <string>

#include "tools/cli/interrupt.h"
#include "tools/cli/printable.h"

namespace sparsellm {
namespace {

struct Ended {
  int exit_code;
  std::string err;
};

// A tool without options.
Ended run(const std::function<void()>& body) {
  CLI::App app("Does nothing.", "tool");
  std::string name = "tool";
  char* argv[] = {name.data(), nullptr};
  ::testing::internal::CaptureStderr();
  const int exit_code = tool_main(app, 1, argv, body);
  return {.exit_code = exit_code, .err = ::testing::internal::GetCapturedStderr()};
}

TEST(ToolMain, ExitCodes) {
  struct Case {
    std::function<void()> body;
    int exit_code;
    std::string err;
  };
  const std::vector<Case> cases{
      {[] {}, 0, ""},
      {[] { fail("no {}", 1); }, 1, "tool: no 1\n"},
      {[] { throw UsageError("--x"); }, 2, "tool: --x\n"},
      {[] { throw Interrupted{}; }, 130, ""},
      {[] { throw std::bad_alloc(); }, 1, "tool: out of memory\n"},
      {[] { throw std::runtime_error("x"); }, 1, "tool: x\n"},
  };
  for (const Case& c : cases) {
    const Ended ended = run(c.body);
    EXPECT_EQ(ended.exit_code, c.exit_code);
    EXPECT_EQ(ended.err, c.err);
  }
}

// A program that catches interrupts in several places ends by one that came between them.
TEST(InterruptDeathTest, CountsUntilItIsForgotten) {
  const auto interrupt_twice = [] {
    std::signal(SIGINT, SIG_DFL);
    catch_interrupts();
    std::raise(SIGINT);
    catch_interrupts();
    const bool counts = interrupted();
    forget_interrupt();
    const bool is_forgotten = !interrupted();
    std::raise(SIGINT);
    std::exit(counts && is_forgotten && interrupting_signal() == SIGINT ? 0 : 1);
  };
  EXPECT_EXIT(interrupt_twice(), ::testing::ExitedWithCode(0), "");
}

TEST(ToolMain, MessagesAreOneLineThatATerminalCanShow) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", ""},
      {"a \\n \"b\" \xc3\xb6", "a \\n \"b\" \xc3\xb6"},
      {std::string("a\nb\tc\x1b[2Jd\x7f\0", 12), "a b c [2Jd  "},
      {"a\xc2\x9b"
       "2Jb\xc2\x85",
       "a 2Jb "},  // C1 control characters
      {"a\xe2\x80\xae"
       "b\xe2\x80\xa8",
       "a b "},
      {"a\xff\xc3", "a  "},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(one_line(text), expected);
  }
  const std::string longest = std::string(2000, 'a') + std::string(2000, 'b');
  EXPECT_EQ(one_line(longest), longest);
  EXPECT_EQ(one_line(std::string(2000, 'a') + std::string(100000, 'x') + std::string(2000, 'b')),
            std::string(2000, 'a') + " ... " + std::string(2000, 'b'));
}

}  // namespace
}  // namespace sparsellm
