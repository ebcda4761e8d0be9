#include "tools/bench/args.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "tests/testing/throws_error.h"
#include "tools/bench/engine.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

using testing::throws_error;

// The arguments are the command line without the program's name.
OutputArgs parse(std::vector<std::string> words, OutputTokens tokens = OutputTokens::yes) {
  CLI::App app("test");
  OutputArgs args;
  add_output_args(app, args, tokens);
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  app.parse(words);
  return args;
}

TEST(BenchArgs, OutputIsTokensOrFormat) {
  EXPECT_FALSE(parse({}).tokens);
  EXPECT_FALSE(parse({}).format);
  EXPECT_EQ(parse({"--output", "256"}).tokens->min, 256);
  EXPECT_EQ(parse({"--output", "csv"}).format, ReportFormat::csv);
  const OutputArgs both = parse({"--output", "16:64", "--output", "json"});
  EXPECT_EQ(both.tokens->min, 16);
  EXPECT_EQ(both.tokens->max, 64);
  EXPECT_EQ(both.format, ReportFormat::json);
  EXPECT_EQ(parse({"--output", "8", "--format", "md"}).format, ReportFormat::md);
  EXPECT_EQ(parse({"--output", "md"}, OutputTokens::no).format, ReportFormat::md);
}

TEST(BenchArgs, OutputErrors) {
  EXPECT_TRUE(throws_error([] { parse({"--output", "xml"}); }, "--output \"xml\""));
  EXPECT_TRUE(throws_error([] { parse({"--output", "0"}); }, "--output \"0\""));
  EXPECT_TRUE(throws_error([] { parse({"--output=-1"}); }, "--output \"-1\""));
  EXPECT_TRUE(throws_error([] { parse({"--output", "8x"}); }, "--output \"8x\""));
  EXPECT_TRUE(throws_error(
      [] {
        parse({"--output", "1", "--output", "2"});
      },
      "--output gives the number of tokens a second time"));
  EXPECT_TRUE(throws_error([] { parse({"--output", "md", "--format", "md"}); }, "a second time"));
  EXPECT_TRUE(throws_error([] { parse({"--output", "8"}, OutputTokens::no); }, "--output \"8\""));
}

TEST(BenchArgs, LengthRanges) {
  EXPECT_TRUE(parse_length_range("--prompt", "64").is_fixed());
  EXPECT_TRUE(parse_length_range("--prompt", "7:7").is_fixed());
  EXPECT_EQ(parse_length_range("--prompt", "32:512").max, 512);
  for (const char* text :
       {"", "0", "-1", "x", "1:", ":1", "5:4", "1:2:3", "1.5", " 1", "99999999999"}) {
    EXPECT_THROW(parse_length_range("--prompt", text), UsageError) << text;
  }
}

TEST(BenchArgs, Shapes) {
  EXPECT_EQ(parse_shape("--shape", "28672x7168"), (std::pair<int64_t, int64_t>(28672, 7168)));
  for (const char* text : {"", "1", "x", "1x", "x1", "0x1", "1x2x3", "1X2", "-1x2"}) {
    EXPECT_THROW(parse_shape("--shape", text), UsageError) << text;
  }
}

BenchModelArgs parse_model_args(std::vector<std::string> words) {
  CLI::App app("test");
  BenchModelArgs args;
  add_bench_model_args(app, args);
  std::reverse(words.begin(), words.end());
  app.parse(words);
  return args;
}

TEST(BenchArgs, SharesAndSeedsFromTheFirstToTheLast) {
  for (const char* seed : {"0", "4611686018427387904"}) {
    EXPECT_EQ(std::to_string(parse_model_args({"--seed", seed}).seed), seed);
  }
  for (const char* share : {"0", "1"}) {
    EXPECT_EQ(parse_model_args({"--sparsity", share}).sparsity, std::stod(share));
  }
  for (const char* share : {"0.01", "1"}) {
    EXPECT_EQ(parse_model_args({"--gpu-memory-utilization", share}).gpu_memory_utilization,
              std::stod(share));
  }
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--seed=-1"},
                                             {"--seed", "4611686018427387905"},
                                             {"--seed", "18446744073709551616"},
                                             {"--sparsity=-0.001"},
                                             {"--sparsity", "1.001"},
                                             {"--gpu-memory-utilization", "0.009"},
                                             {"--gpu-memory-utilization", "1.001"}}) {
    EXPECT_THROW(parse_model_args(words), CLI::ParseError) << words.front();
  }
}

TEST(BenchArgs, Poisson) {
  EXPECT_EQ(parse_poisson("--arrivals", "poisson:2.5"), 2.5);
  for (const char* text : {"", "poisson", "poisson:", "poisson:0", "poisson:-1", "poisson:inf",
                           "poisson:nan", "poisson:1x", "uniform:1", "2"}) {
    EXPECT_THROW(parse_poisson("--arrivals", text), UsageError) << text;
  }
}

}  // namespace
}  // namespace sparsellm
