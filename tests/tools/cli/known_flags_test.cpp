#include "tools/cli/known_flags.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

// The message; empty if there is none.
std::string refusal(const std::vector<std::string>& args) {
  CLI::App app("test", "tool");
  std::string text;
  int number = 0;
  std::optional<float> share;
  bool flag = false;
  bool not_flag = false;
  std::vector<std::string> one;
  std::vector<std::string> many;
  app.add_option("-m,--model", text);
  app.add_option("-p,--prompt", text);
  app.add_option("-n,--n-predict,--max-tokens", number)->check(CLI::Range(0, 5));
  app.add_option("-t,--threads", number);
  app.add_option("--temp", share);
  app.add_option("--stop", one)->allow_extra_args(false);
  app.add_option("--files", many);
  app.add_flag("-v,--verbose", flag);
  app.add_flag("!--no-tune", not_flag);
  CLI::App* const command = app.add_subcommand("score", "with words");
  command->add_option("A", text);
  command->add_option("--context", number);
  try {
    require_known_flags(app, args);
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

TEST(KnownFlags, WhatCliTakesIsLeftToIt) {
  const std::vector<std::vector<std::string>> good{
      {},
      {"-m", "model", "-p", "text"},
      {"--model=x", "--temp=-1", "--temp", "-1"},
      {"-n5", "-n-1", "-n+1", "-pThe king", "-vn5", "-vn", "5", "-v"},
      {"-p", "-temp", "--prompt", "--no-such-flag", "-m", "-ngl"},  // values
      {"--stop", "-", "--stop", "--stop"},
      {"--files", "a", "b", "c", "-v"},
      {"--no-tune", "--max-tokens", "3"},
      {"-n"},
      {"-n", "many"},  // which is said of the value
      {"--", "word", "-x"},
      {"score", "a", "b", "--context", "7"},
      {"-v", "score", "a"},
      {"--nonsense", "--help"},
      {"-nonsense", "-h"},
      {"--version", "--nonsense"},
  };
  for (const std::vector<std::string>& args : good) {
    EXPECT_EQ(refusal(args), "") << ::testing::PrintToString(args);
  }
}

TEST(KnownFlags, WhatToUseInstead) {
  struct Case {
    std::vector<std::string> args;
    std::string message;
  };
  const std::vector<Case> cases{
      {{"-temp", "0"}, "there is no flag \"-temp\"; use --temp"},
      {{"-temp=0"}, "there is no flag \"-temp\"; use --temp"},
      {{"-model", "x"}, "there is no flag \"-model\"; use --model"},
      {{"-verbose"}, "there is no flag \"-verbose\"; use --verbose"},
      {{"--max_tokens", "1"}, "there is no flag \"--max_tokens\"; use --max-tokens"},
      {{"--Temp", "1"}, "there is no flag \"--Temp\"; use --temp"},
      {{"\xe2\x80\x93temp", "1"}, "; use --temp"},
      {{"--max-new-tokens", "1"}, "there is no flag \"--max-new-tokens\"; use --n-predict"},
      {{"--max_new_tokens=1"}, "there is no flag \"--max_new_tokens\"; use --n-predict"},
      {{"-tb", "4"}, "there is no flag \"-tb\"; use --threads"},
      {{"-hf", "x"}, "there is no flag \"-hf\"; use --model, a directory"},
      {{"-ngl", "3"},
       "there is no flag \"-ngl\" in front of a command: score"},  // this tool has no --device
      {{"-fa"}, "there is no flag \"-fa\": attention"},
      {{"--treads", "4"}, "there is no flag \"--treads\"; did you mean --threads?"},
      {{"--promt", "4"}, "there is no flag \"--promt\"; did you mean --prompt?"},
      {{"--frobnicate"}, "there is no flag \"--frobnicate\" in front of a command: score"},
      {{"-x"}, "there is no flag \"-x\" in front of a command: score"},
      {{"-nx"}, "there is no flag \"-nx\" in front of a command: score"},
      {{"-vx"}, "there is no flag \"-vx\" in front of a command: score"},
      {{"-n=5"}, "\"-n=5\"; a value is given as in -n 5"},
      {{"-m", "x", "-vtemp"}, "there is no flag \"-vtemp\"; did you mean --temp?"},
      {{"score", "a", "--contxt", "3"}, "there is no flag \"--contxt\"; did you mean --context?"},
      {{"score", "a", "--frobnicate"}, "\"--frobnicate\" (--help lists the options)"},
      {{"score", "a", "-c", "3"}, "there is no flag \"-c\"; use --context"},
      {{"-v", "scores"}, "there is no command \"scores\"; there are score"},
      {{"--", "x"}, ""},
  };
  for (const Case& c : cases) {
    const std::string message = refusal(c.args);
    EXPECT_NE(message.find(c.message), std::string::npos)
        << ::testing::PrintToString(c.args) << ": " << message;
  }
}

}  // namespace
}  // namespace sparsellm
