// The tools on a machine whose driver is older than the build, which the library of old_driver.cpp
// plays.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

using testing::Outcome;

Outcome with_old_driver(const char* program, const std::vector<std::string>& args) {
  std::string folders = SPARSELLM_OLD_DRIVER;
  if (const char* const others = std::getenv("LD_LIBRARY_PATH"); others != nullptr) {
    folders += std::string(":") + others;
  }
  const auto use_it = [&folders] { ::setenv("LD_LIBRARY_PATH", folders.c_str(), 1); };
  return testing::run_program(program, args, {.input = {}, .before_exec = use_it, .meanwhile = {}});
}

Outcome run_with_old_driver(const std::vector<std::string>& flags) {
  std::vector<std::string> args{
      "-m", testing::data("models/fable-llama-relu-8m").string(), "-p", "Once", "-n", "2"};
  args.insert(args.end(), flags.begin(), flags.end());
  return with_old_driver("sparsellm-run", args);
}

size_t count(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++times;
  }
  return times;
}

TEST(OldDriver, AutoIsTheCpuAndSaysWhyOnce) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, std::vector<std::string>{"--device", "auto"},
        std::vector<std::string>{"--fit"}}) {
    const Outcome outcome = run_with_old_driver(flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("sparsellm-run: warning: the device is the CPU: "))
        << outcome.err;
    EXPECT_EQ(
        count(outcome.err, "(the NVIDIA driver knows CUDA up to 10.0, this build is of CUDA "), 1u)
        << outcome.err;
  }
}

// Of either of two models, and not twice of both.
TEST(OldDriver, AComparisonSaysSoOnce) {
  const testing::TempDir directory;
  const std::string text = directory.write("text", "Once upon a time there was a king").string();
  const auto warnings = [&](const std::vector<std::string>& devices) {
    std::vector<std::string> args{"compare",   testing::data("tiny/llama3").string(),
                                  "--text",    text,
                                  "--context", "4",
                                  "--threads", "1"};
    args.insert(args.end(), devices.begin(), devices.end());
    const Outcome outcome = with_old_driver("sparsellm-eval", args);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return count(outcome.err, "sparsellm-eval: warning: the device is the CPU: ");
  };
  EXPECT_EQ(warnings({}), 1u);
  EXPECT_EQ(warnings({"--device", "auto", "--device-b", "auto"}), 1u);
  EXPECT_EQ(warnings({"--device", "cpu", "--device-b", "auto"}), 1u);
  EXPECT_EQ(warnings({"--device", "auto", "--device-b", "cpu"}), 1u);
  EXPECT_EQ(warnings({"--device", "cpu"}), 0u);
}

TEST(OldDriver, NothingIsSaidWhereItDoesNotMatter) {
  const Outcome quiet = run_with_old_driver({"--quiet"});
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_EQ(quiet.err, "");
  EXPECT_EQ(count(run_with_old_driver({"--device", "cpu"}).err, "driver"), 0u);
}

TEST(OldDriver, ANamedGpuIsRefused) {
  const Outcome outcome = run_with_old_driver({"--device", "cuda:0"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(outcome.err.starts_with("sparsellm-run: device cuda:0 is not there: "))
      << outcome.err;
  EXPECT_EQ(count(outcome.err, "\n"), 1u) << outcome.err;
}

}  // namespace
}  // namespace sparsellm
