// sparsellm-convert as a user meets it: output, exit codes, one clear line for everything that is
// wrong, and what is left on disk when it ends early.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"
#include "tests/tools/synthetic_model.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Outcome;
using testing::read_file;
using testing::RunOptions;
using testing::TempDir;

std::string llama() { return testing::data("models/fable-llama-relu-8m").string(); }
std::string f32_model() { return testing::data("tiny/llama_bias").string(); }
std::string tiny() { return testing::data("tiny/llama3").string(); }
std::string text() { return testing::data("text/calibration.txt").string(); }

Outcome convert(const std::vector<std::string>& args, const RunOptions& options = {}) {
  return testing::run_program("sparsellm-convert", args, options);
}

std::set<std::string> entries(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

std::map<std::string, std::string> files_of(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const std::string& name : entries(directory)) {
    files[name] = read_file(directory / name);
  }
  return files;
}

void expect_error(const Outcome& outcome, int exit_code, std::string_view message) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
  EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("sparsellm-convert: ")) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

const json& table(const json& report, std::string_view name) {
  for (const json& candidate : report.at("tables")) {
    if (candidate.at("name") == name) {
      return candidate.at("rows");
    }
  }
  throw std::runtime_error("no table " + std::string(name));
}

TEST(ConvertCli, APrunedModelRuns) {
  const TempDir directory;
  const std::string output = (directory.path() / "out").string();
  const Outcome outcome = convert({"-m", llama(), "--output", output, "--prune", "magnitude",
                                   "--sparsity", "0.5", "--verify", "--quiet"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const char* word : {"mlp.down_proj", "tca_bme", "magnitude", "50.00"}) {
    EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
  }
  EXPECT_EQ(entries(directory.path()), std::set<std::string>{"out"});
  const Outcome run = testing::run_program(
      "sparsellm-run",
      {"-m", output, "--verify", "-p", "Once upon a time", "-n", "8", "--temp", "0", "--quiet"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_GT(run.out.size(), 8u);

  // One flipped bit of a weight.
  const fs::path file = fs::path(output) / "model.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  std::ofstream(file, std::ios::binary) << bytes;
  const Outcome damaged =
      testing::run_program("sparsellm-run", {"-m", output, "--verify", "-p", "x", "-n", "1"});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_NE(damaged.err.find("is damaged"), std::string::npos) << damaged.err;
}

TEST(ConvertCli, WandaWithACalibrationText) {
  const TempDir directory;
  const std::string output = (directory.path() / "out").string();
  const Outcome outcome =
      convert({"-m", tiny(), "--output", output, "--prune", "wanda", "--sparsity", "0.5",
               "--calibration", text(), "--calibration-tokens", "100", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report.at("environment").at("model"), tiny());
  for (const json& weight : table(report, "weights")) {
    EXPECT_EQ(weight.at("prune"), "wanda");
    EXPECT_EQ(weight.at("nonzeros").get<int64_t>() * 2,
              weight.at("out").get<int64_t>() * weight.at("in").get<int64_t>());
  }
  EXPECT_TRUE(fs::exists(output));
}

TEST(ConvertCli, ADryRunWritesNothingAndIsRight) {
  const TempDir directory;
  const TempDir cwd;
  const fs::path input = directory.path() / "in";
  fs::copy(tiny(), input);
  const auto before = files_of(input);
  const std::vector<std::string> prune{"-m",         input.string(), "--prune", "magnitude",
                                       "--sparsity", "0.7",          "--json",  "--quiet"};
  std::vector<std::string> dry = prune;
  dry.emplace_back("--dry-run");
  RunOptions options;
  options.before_exec = [&] {
    if (::chdir(cwd.path().c_str()) != 0) {
      ::_exit(126);
    }
  };
  const Outcome outcome = convert(dry, options);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(entries(directory.path()), std::set<std::string>{"in"});
  EXPECT_EQ(entries(cwd.path()), std::set<std::string>{});
  EXPECT_EQ(files_of(input), before);

  const json inspection = json::parse(outcome.out);
  for (const std::string format : {"auto", "smallest", "dense", "tiled_csl", "tca_bme"}) {
    SCOPED_TRACE(format);
    std::vector<std::string> real = prune;
    real.insert(real.end(), {"--output", (directory.path() / format).string(), "--format", format});
    const Outcome converted = convert(real);
    ASSERT_EQ(converted.exit_code, 0) << converted.err;
    const json report = json::parse(converted.out);
    const json& stored = table(report, "model").at(0);
    bool found = false;
    for (const json& row : table(inspection, "model")) {
      if (row.at("as") == format) {
        found = true;
        EXPECT_EQ(row.at("linear_mib"), stored.at("linear_mib"));
        EXPECT_EQ(row.at("other_mib"), stored.at("other_mib"));
      }
    }
    EXPECT_TRUE(found);
  }
}

// Not a compression of 1.000 without a word.
TEST(ConvertCli, WhatStaysDenseSaysWhy) {
  const TempDir directory;
  const std::string output = (directory.path() / "out").string();
  const std::string why = "tca_bme holds f16 and bf16 values, not f32: pass --dtype f16 or bf16";
  const std::string no_tokenizer =
      "sparsellm-convert: warning: the model has no tokenizer (tokenizer.model, tokenizer.json or "
      "vocab.json): what is converted takes and gives token ids alone\n";
  const std::vector<std::string> args{"-m",        f32_model(),  "--prune",
                                      "magnitude", "--sparsity", "0.7"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = args;
    all.insert(all.end(), more.begin(), more.end());
    return convert(all);
  };
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{"--output", output}, {"--dry-run"}}) {
    const Outcome outcome = with(how);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err,
              no_tokenizer +
                  "sparsellm-convert: warning: 14 of 14 linear layers stay dense: " + why + "\n");
    EXPECT_EQ(outcome.out.find(why) != std::string::npos, how.front() == "--output");
  }
  const Outcome quiet = with({"--output", output, "--force", "--json", "--quiet"});
  EXPECT_EQ(quiet.err, "");
  const json report = json::parse(quiet.out);
  EXPECT_EQ(table(report, "dense").at(0).at("why"), why);
  EXPECT_EQ(table(report, "dense").at(0).at("count"), 14);
  EXPECT_EQ(table(report, "weights").at(0).at("why_dense"), why);

  const Outcome sparse =
      with({"--output", output, "--force", "--json", "--dtype", "bf16", "--format", "smallest"});
  EXPECT_EQ(sparse.exit_code, 0);
  EXPECT_EQ(sparse.err, no_tokenizer);
  const json sparse_report = json::parse(sparse.out);
  for (const json& weight : table(sparse_report, "weights")) {
    EXPECT_NE(weight.at("format"), "dense");
    EXPECT_EQ(weight.at("why_dense"), "");
    EXPECT_EQ(weight.at("gpu"), "yes");
  }
  expect_error(with({"--output", output, "--force", "--format", "tca_bme"}), 1,
               "pass --dtype f16 or bf16");
}

TEST(ConvertCli, SmallestIsForAGpuToo) {
  const TempDir directory;
  const auto run = [&](const std::string& format) {
    return convert({"-m", llama(), "--output", (directory.path() / format).string(), "--prune",
                    "magnitude", "--sparsity", "0.97", "--json", "--format", format});
  };
  const Outcome automatic = run("auto");
  EXPECT_EQ(automatic.exit_code, 0);
  EXPECT_EQ(automatic.err, "");
  const Outcome outcome = run("smallest");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  const json weights = table(json::parse(outcome.out), "weights");
  EXPECT_EQ(weights.at(0).at("format"), "tiled_csl");
  EXPECT_EQ(weights.at(0).at("gpu"), "yes");
}

TEST(ConvertCli, OtherRulesMakeOtherFormats) {
  const TempDir directory;
  const std::string rules =
      directory.write("rules.json", R"({"gpu": "G", "rules": [{"format": "tiled_csl"}]})").string();
  const auto format_with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args{
        "-m",      llama(),     "--output",   (directory.path() / "out").string(),
        "--prune", "magnitude", "--sparsity", "0.8",
        "--json",  "--force",   "--quiet"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = convert(args);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return table(json::parse(outcome.out), "weights").at(0).at("format").get<std::string>();
  };
  EXPECT_EQ(format_with({}), "tca_bme");
  EXPECT_EQ(format_with({"--format-rules", rules}), "tiled_csl");
}

TEST(ConvertCli, ForceReplacesAModel) {
  const TempDir directory;
  const std::string output = (directory.path() / "out").string();
  const std::vector<std::string> args{"-m", tiny(), "--output", output, "--format"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = args;
    all.insert(all.end(), more.begin(), more.end());
    return convert(all);
  };
  ASSERT_EQ(with({"dense"}).exit_code, 0);
  const auto before = files_of(output);
  expect_error(with({"tca_bme"}), 1, "out exists; --force replaces it");
  EXPECT_EQ(files_of(output), before);
  EXPECT_EQ(with({"tca_bme", "--force"}).exit_code, 0);
  EXPECT_NE(files_of(output), before);
  EXPECT_EQ(with({"dense", "--force"}).exit_code, 0);
  EXPECT_EQ(files_of(output), before);
  EXPECT_EQ(entries(directory.path()), std::set<std::string>{"out"});
}

constexpr std::string_view kLayout =
    "positions=u8 shared-rows=2 panel=64 window=64 sorted=yes interleave=1 vector=1";

TEST(ConvertCli, AllWeightsInOneLayout) {
  const TempDir directory;
  const std::string output = (directory.path() / "out").string();
  const Outcome outcome = convert({"-m", tiny(), "--output", output, "--prune", "magnitude",
                                   "--sparsity", "0.7", "--format", "general_sparse", "--layout",
                                   std::string(kLayout), "--verify", "--json", "--quiet"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string bytes = read_file(fs::path(output) / "model.safetensors");
  size_t layouts = 0;
  for (size_t at = bytes.find("positions="); at != std::string::npos;
       at = bytes.find("positions=", at + 1)) {
    EXPECT_EQ(bytes.substr(at, kLayout.size()), kLayout);
    ++layouts;
  }
  const json report = json::parse(outcome.out);
  EXPECT_EQ(layouts, table(report, "weights").size());
  const Outcome run =
      testing::run_program("sparsellm-run", {"-m", output, "-p", "x", "-n", "2", "--quiet"});
  EXPECT_EQ(run.exit_code, 0) << run.err;

  // What it would take is that of the layout.
  const Outcome dry =
      convert({"-m", tiny(), "--dry-run", "--prune", "magnitude", "--sparsity", "0.7", "--format",
               "general_sparse", "--layout", std::string(kLayout), "--json", "--quiet"});
  ASSERT_EQ(dry.exit_code, 0) << dry.err;
  const json inspection = json::parse(dry.out);
  EXPECT_EQ(table(inspection, "model").at(0).at("linear_mib"),
            table(report, "model").at(0).at("linear_mib"));
}

TEST(ConvertCli, RecordsForSize) {
  const TempDir directory;
  const auto linear_mib = [&](std::vector<std::string> more) {
    std::vector<std::string> args{
        "-m",       llama(),  "--force", "--output", (directory.path() / "out").string(),
        "--verify", "--json", "--quiet"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = convert(args);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const Outcome run = testing::run_program(
        "sparsellm-run",
        {"-m", (directory.path() / "out").string(), "-p", "x", "-n", "2", "--quiet"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return table(json::parse(outcome.out), "model").at(0).at("linear_mib").get<double>();
  };
  const std::vector<std::string> tca_bme{"--prune",  "magnitude", "--sparsity", "0.8",
                                         "--format", "tca_bme",   "--records"};
  const auto of = [&](const char* records) {
    std::vector<std::string> args = tca_bme;
    args.emplace_back(records);
    return linear_mib(args);
  };
  const double size = of("size");
  EXPECT_LT(size, 0.8 * of("speed"));
  const std::string plan = directory.write("plan.json", R"({"default": {"prune": "magnitude",
      "sparsity": 0.8, "format": "tca_bme", "records": "size"}})");
  EXPECT_EQ(linear_mib({"--plan", plan}), size);
}

TEST(ConvertCli, NarrowValues) {
  const TempDir directory;
  const std::string output = (directory.path() / "out").string();
  const std::string plan = directory.write("plan.json", R"({"default": {"prune": "magnitude",
      "sparsity": 0.6, "format": "tca_bme", "values": "i4:64"}})");
  double previous = 0.0;
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{"--plan", plan},
        {"--prune", "magnitude", "--sparsity", "0.6", "--format", "smallest", "--values", "i8"},
        {"--prune", "magnitude", "--sparsity", "0.6", "--format", "tca_bme"}}) {
    std::vector<std::string> args{"-m",   llama(),    "--force", "--output",
                                  output, "--verify", "--json",  "--quiet"};
    args.insert(args.end(), how.begin(), how.end());
    const Outcome outcome = convert(args);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const json report = json::parse(outcome.out);
    const double mib = table(report, "model").at(0).at("linear_mib").get<double>();
    EXPECT_GT(mib, 1.2 * previous);
    previous = mib;
    if (how.back() != "tca_bme") {
      const json row = table(report, "values").at(0);
      EXPECT_GT(row.at("error_percent").get<double>(), 0.1);
      EXPECT_GT(row.at("added_percent").get<double>(), 0.0);
    }
    const Outcome run = testing::run_program(
        "sparsellm-run", {"-m", output, "-p", "x", "-n", "2", "--quiet", "--device", "cpu"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
  }
}

struct BadUse {
  const char* name;
  int exit_code;
  std::string message;
  // Besides "-m tiny".
  std::function<std::vector<std::string>(const TempDir& directory)> args;
};

std::ostream& operator<<(std::ostream& stream, const BadUse& use) { return stream << use.name; }

auto flags(std::vector<std::string> more) {
  return [more = std::move(more)](const TempDir&) { return more; };
}

// With --output in the folder of the test.
auto to_output(std::vector<std::string> more) {
  return [more = std::move(more)](const TempDir& directory) {
    std::vector<std::string> args = more;
    args.insert(args.end(), {"--output", (directory.path() / "out").string()});
    return args;
  };
}

auto with_plan(const char* plan, std::vector<std::string> more = {}) {
  return [plan, more = std::move(more)](const TempDir& directory) {
    std::vector<std::string> args = more;
    args.insert(args.end(), {"--output", (directory.path() / "out").string(), "--plan",
                             directory.write("plan.json", plan).string()});
    return args;
  };
}

std::vector<BadUse> bad_uses() {
  return {
      {"NoOutput", 2, "there is nothing to do; give --output DIR or --dry-run", flags({})},
      {"NoOutputToForce", 2, "--output", flags({"--dry-run", "--force"})},
      {"NoOutputToVerify", 2, "--output", flags({"--dry-run", "--verify"})},
      {"EmptyOutput", 2, "--output: is empty", flags({"--output", ""})},
      {"OutputOfADryRun", 2, "--dry-run", to_output({"--dry-run"})},
      {"PlanAndPrune", 2, "--prune", to_output({"--plan", "x", "--prune", "2:4"})},
      {"PlanAndFormat", 2, "--format", to_output({"--plan", "x", "--format", "dense"})},
      {"PlanAndSparsity", 2, "--sparsity", to_output({"--plan", "x", "--sparsity", "0.5"})},
      {"SparsityAlone", 2, "--sparsity 0.5 is not for --prune none",
       to_output({"--sparsity", "0.5"})},
      {"SparsityOfGroups", 2, "--sparsity 0.5 is not for --prune 2:4",
       to_output({"--prune", "2:4", "--sparsity", "0.5"})},
      {"NoSparsity", 2, "--prune magnitude needs --sparsity", to_output({"--prune", "magnitude"})},
      {"WandaAlone", 2, "--prune wanda needs --calibration",
       to_output({"--prune", "wanda", "--sparsity", "0.5"})},
      {"CalibrationOfMagnitude", 2, "--calibration is not for --prune magnitude",
       to_output({"--prune", "magnitude", "--sparsity", "0.5", "--calibration", text()})},
      {"ScopeOfGroups", 2, "--scope is not for --prune 2:4",
       to_output({"--prune", "2:4", "--scope", "matrix"})},
      {"BlockOfWanda", 2, "--block is not for --prune wanda",
       to_output({"--prune", "wanda", "--sparsity", "0.5", "--block", "4x4"})},
      {"BlockAlone", 2, "--block is not for --prune none", to_output({"--block", "4x4"})},
      {"Block", 2, "--block \"4x\"; expected RxC with R and C from 1 to 1024",
       to_output({"--prune", "random", "--sparsity", "0.5", "--block", "4x"})},
      {"PlanAndBlock", 2, "--block", to_output({"--plan", "x", "--block", "4x4"})},
      {"SeedOfMagnitude", 2, "--seed is not for --prune magnitude",
       to_output({"--prune", "magnitude", "--sparsity", "0.5", "--seed", "1"})},
      {"SeedBelowZero", 2, "--seed",
       to_output({"--prune", "random", "--sparsity", "0.5", "--seed=-1"})},
      {"Format", 2, "--format: csr", to_output({"--format", "csr"})},
      {"DType", 2, "--dtype: f32", to_output({"--dtype", "f32"})},
      {"EmptyDType", 2, "--dtype", to_output({"--dtype", ""})},
      {"Method", 2, "--prune: ", to_output({"--prune", "lottery"})},
      {"Groups", 2, "--prune: ", to_output({"--prune", "5:4"})},
      {"SparsityAboveOne", 2, "--sparsity",
       to_output({"--prune", "magnitude", "--sparsity", "1.5"})},
      {"SparsityBelowZero", 2, "--sparsity",
       to_output({"--prune", "magnitude", "--sparsity", "-0.1"})},
      {"SparsityNan", 2, "--sparsity", to_output({"--prune", "magnitude", "--sparsity", "nan"})},
      {"ShardSize", 2, "--max-shard-size", to_output({"--max-shard-size", "much"})},
      {"NoShardSize", 2, "--max-shard-size", to_output({"--max-shard-size", "0"})},
      {"CalibrationTokensAlone", 2, "--calibration", to_output({"--calibration-tokens", "9"})},
      {"NoCalibrationTokens", 2, "--calibration-tokens",
       to_output({"--prune", "2:4", "--calibration", text(), "--calibration-tokens", "0"})},
      {"VotesAlone", 2, "--votes needs --activation-sparsity", to_output({"--votes", "sign"})},
      {"MaxLossAlone", 2, "--max-loss needs --activation-sparsity",
       to_output({"--max-loss", "0.01"})},
      {"ActivationSparsityAlone", 2, "--activation-sparsity predict needs --calibration",
       to_output({"--activation-sparsity", "predict"})},
      {"ActivationSparsityOfADryRun", 2, "--activation-sparsity is not for --dry-run",
       flags({"--dry-run", "--activation-sparsity", "predict", "--calibration", text()})},
      {"OtherActivationSparsity", 2, "--activation-sparsity: some",
       to_output({"--activation-sparsity", "some", "--calibration", text()})},
      {"MaxLoss", 2, "--max-loss nan is not in (0, 1)",
       to_output(
           {"--activation-sparsity", "predict", "--calibration", text(), "--max-loss", "nan"})},
      {"LayoutOfNone", 2, "--layout: layout: expected 'positions=', found 'fast'",
       to_output({"--format", "general_sparse", "--layout", "fast"})},
      {"EmptyLayout", 2, "--layout", to_output({"--format", "general_sparse", "--layout", ""})},
      {"LayoutOfNoUse", 2, "--layout is not for --format tca_bme",
       to_output({"--format", "tca_bme", "--layout", std::string(kLayout)})},
      {"LayoutOfAuto", 2, "--layout is not for --format auto",
       flags({"--dry-run", "--layout", std::string(kLayout)})},
      {"PlanAndLayout", 2, "--layout",
       to_output({"--plan", "x", "--layout", std::string(kLayout)})},
      {"RecordsOfNone", 2, "--records: small not in",
       to_output({"--format", "tca_bme", "--records", "small"})},
      {"RecordsOfNoUse", 2, "--records is not for --format tiled_csl",
       to_output({"--format", "tiled_csl", "--records", "size"})},
      {"RecordsOfDense", 2, "--records is not for --format dense",
       flags({"--dry-run", "--format", "dense", "--records", "speed"})},
      {"ValuesOfNone", 2, "--values: i5 not in",
       to_output({"--format", "tca_bme", "--values", "i5"})},
      {"ValuesOfNoUse", 2, "--values is not for --format tiled_csl",
       to_output({"--format", "tiled_csl", "--values", "i8"})},
      {"ValuesAndRecords", 2, "--values", to_output({"--values", "i8", "--records", "size"})},
      {"PlanAndValues", 2, "--values", to_output({"--plan", "x", "--values", "i8"})},
      {"PlanAndRecords", 2, "--records", to_output({"--plan", "x", "--records", "size"})},
      {"Threads", 2, "--threads", to_output({"--threads", "-1"})},
      {"UnknownFlag", 2, "--frobnicate", to_output({"--frobnicate"})},

      {"NoCalibrationFile", 1, "/no/such/text",
       to_output({"--prune", "wanda", "--sparsity", "0.5", "--calibration", "/no/such/text"})},
      {"ActivationSparsityOfWhatIsPruned", 1, "prune first, and calibrate what was written",
       to_output({"--activation-sparsity", "predict", "--calibration", text(), "--prune", "2:4"})},
      {"ActivationSparsityWithoutZeros", 1, "needs relu or fatrelu; the model has silu",
       to_output({"--activation-sparsity", "predict", "--calibration", text()})},
      {"CalibrationIsAFolder", 1, "/tmp",
       to_output({"--prune", "wanda", "--sparsity", "0.5", "--calibration", "/tmp"})},
      {"FewCalibrationTokens", 1, "1 tokens are too few to calibrate with",
       to_output({"--prune", "wanda", "--sparsity", "0.5", "--calibration", text(),
                  "--calibration-tokens", "1"})},
      {"CalibrationIsNoText", 1, "UTF-8",
       [](const TempDir& directory) {
         return to_output({"--prune", "wanda", "--sparsity", "0.5", "--calibration",
                           directory.write("text", "king \xff\xfe").string()})(directory);
       }},
      {"NoRules", 1, "/no/such/rules", to_output({"--format-rules", "/no/such/rules"})},
      {"RulesAreWrong", 1, "rules.json: rule 1",
       [](const TempDir& directory) {
         directory.write("rules.json", R"({"gpu": "G", "rules": [{"format": "csr"}]})");
         return to_output({"--format-rules", (directory.path() / "rules.json").string()})(
             directory);
       }},
      {"RulesOfNoUse", 2, "--format-rules is not for --format dense",
       to_output({"--format-rules", "x", "--format", "dense"})},
      {"NoPlan", 1, "/no/such/plan", to_output({"--plan", "/no/such/plan"})},
      {"PlanIsNotJson", 1, "plan.json", with_plan("{")},
      {"PlanWithUnknownPattern", 1, "*.fc1",
       with_plan(R"({"rules": [{"tensors": "*.fc1", "prune": "none"}]})")},
      {"PlanWithUnknownFormat", 1, "csr",
       with_plan(R"({"default": {"prune": "none", "format": "csr"}})")},
      {"PlanWithMoreLayers", 1, "plan.json: rule 1",
       with_plan(R"({"rules": [{"tensors": "*", "layers": [9, 0], "prune": "none"}]})")},
      {"PlanWithWandaAlone", 1, "needs a text for calibration",
       with_plan(R"({"default": {"prune": "wanda", "sparsity": 0.5}})")},
      {"OutputExists", 1, "exists",
       [](const TempDir& directory) {
         fs::create_directory(directory.path() / "out");
         return to_output({})(directory);
       }},
      {"OutputIsAFile", 1, "it is a file",
       [](const TempDir& directory) {
         directory.write("out", "x");
         return to_output({"--force"})(directory);
       }},
      {"ForceOnNoModel", 1, "is not replaced: it is no model directory",
       [](const TempDir& directory) {
         directory.write("out/letter.txt", "dear");
         return to_output({"--force"})(directory);
       }},
      {"OutputInNoFolder", 1, "/no/such", flags({"--output", "/no/such/folder"})},
  };
}

class ConvertBadUse : public ::testing::TestWithParam<BadUse> {};
INSTANTIATE_TEST_SUITE_P(Uses, ConvertBadUse, ::testing::ValuesIn(bad_uses()),
                         [](const auto& use) { return std::string(use.param.name); });

TEST_P(ConvertBadUse, IsOneClearLine) {
  const BadUse& use = GetParam();
  const TempDir directory;
  std::vector<std::string> args{"-m", tiny()};
  const std::vector<std::string> more = use.args(directory);
  args.insert(args.end(), more.begin(), more.end());
  const std::set<std::string> before = entries(directory.path());
  args.emplace_back("--quiet");
  expect_error(convert(args), use.exit_code, use.message);
  EXPECT_EQ(entries(directory.path()), before);
}

TEST(ConvertCli, BadInputs) {
  const TempDir directory;
  const std::string output = (directory.path() / "out").string();
  const auto run = [&](const fs::path& input, const std::string& out) {
    return convert({"-m", input.string(), "--output", out});
  };
  directory.write("no weights/config.json", read_file(fs::path(tiny()) / "config.json"));
  directory.write("pytorch/config.json", read_file(fs::path(tiny()) / "config.json"));
  directory.write("pytorch/pytorch_model.bin", "x");
  fs::create_directory(directory.path() / "empty");
  fs::copy(tiny(), directory.path() / "in");
  const auto before = files_of(directory.path() / "in");
  expect_error(convert({"--output", output}), 2, "--model");
  expect_error(convert({"-m", "", "--output", output}), 2, "--model: is empty");
  expect_error(run("/no/such/model", output), 1, "/no/such/model");
  expect_error(run(directory.path() / "empty", output), 1, "config.json");
  expect_error(run(directory.path() / "no weights", output), 1, "no weights");
  expect_error(run(directory.path() / "pytorch", output), 1, "tools/bin_to_safetensors.py");
  const fs::path in = directory.path() / "in";
  for (const char* force : {"--quiet", "--force"}) {
    expect_error(convert({"-m", in.string(), "--output", in.string(), force}), 1,
                 "would replace the input");
    expect_error(convert({"-m", in.string(), "--output", directory.path().string(), force}), 1,
                 "would replace the input");
    expect_error(convert({"-m", in.string(), "--output", (in / "out").string(), force}), 1,
                 "is inside the input");
  }
  EXPECT_EQ(files_of(in), before);
  EXPECT_EQ(entries(directory.path()),
            (std::set<std::string>{"empty", "in", "no weights", "pytorch"}));
}

// ---- Faults.

// A model that takes a while, and its conversion.
class SlowConversion {
 public:
  SlowConversion() {
    testing::write_synthetic_model(
        input(), {.hidden = 1024, .intermediate = testing::kSanitized ? 256 : 2048, .blocks = 4});
    before_ = files_of(input());
  }

  fs::path input() const { return directory_.path() / "in"; }
  fs::path output() const { return directory_.path() / "out"; }
  std::set<std::string> left() const {
    std::set<std::string> names = entries(directory_.path());
    names.erase("in");
    return names;
  }
  void expect_untouched_input() const { EXPECT_TRUE(files_of(input()) == before_); }

  Outcome run(const RunOptions& options = {}, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args{
        "-m",        input().string(), "--output", output().string(), "--prune",
        "magnitude", "--sparsity",     "0.6",      "--threads",       "1"};
    args.insert(args.end(), more.begin(), more.end());
    return convert(args, options);
  }

  // Sends a signal so long after the first file was begun.
  Outcome run_until(int signal, int microseconds, const std::vector<std::string>& more = {}) const {
    RunOptions options;
    const std::set<std::string> before = left();
    options.meanwhile = [&](pid_t child, const fs::path&) {
      while (testing::is_running(child) && !has_begun(before)) {
        ::usleep(200);
      }
      ::usleep(static_cast<useconds_t>(microseconds));
      ::kill(child, signal);
    };
    return run(options, more);
  }

 private:
  // Whether there is a file beside those of earlier runs.
  bool has_begun(const std::set<std::string>& before) const {
    const std::set<std::string> names = left();
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      std::error_code gone;
      return !before.contains(name) && !fs::is_empty(directory_.path() / name, gone) && !gone;
    });
  }

  TempDir directory_;
  std::map<std::string, std::string> before_;
};

TEST(ConvertFaults, AKilledRunLeavesNoModel) {
  const SlowConversion conversion;
  std::set<std::string> left;
  for (const int microseconds : {0, 3'000, 20'000, 40'000}) {
    SCOPED_TRACE(microseconds);
    const Outcome outcome = conversion.run_until(SIGKILL, microseconds);
    ASSERT_EQ(outcome.exit_code, -SIGKILL);
    EXPECT_FALSE(fs::exists(conversion.output()));
    conversion.expect_untouched_input();
    left = conversion.left();
    for (const std::string& name : left) {
      EXPECT_TRUE(name.starts_with(".out.partial-")) << name;
      // What is there is no model for anybody.
      const fs::path partial = conversion.output().parent_path() / name;
      EXPECT_EQ(
          testing::run_program("sparsellm-run", {"-m", partial.string(), "-p", "x"}).exit_code, 1);
    }
  }
  EXPECT_EQ(left.size(), 4u);
  const Outcome again = conversion.run();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(entries(conversion.output()),
            (std::set<std::string>{"README.md", "config.json", "model.safetensors",
                                   "sparsellm_manifest.json"}));
  const auto good = files_of(conversion.output());

  // Nor does it touch an older one.
  EXPECT_EQ(conversion.run_until(SIGKILL, 20'000, {"--force"}).exit_code, -SIGKILL);
  EXPECT_TRUE(files_of(conversion.output()) == good);
  conversion.expect_untouched_input();
}

TEST(ConvertFaults, AnInterruptLeavesNothing) {
  const SlowConversion conversion;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (const int microseconds : {0, 5'000, 20'000}) {
      SCOPED_TRACE("signal " + std::to_string(signal) + ", " + std::to_string(microseconds) +
                   " us");
      const Outcome outcome = conversion.run_until(signal, microseconds);
      EXPECT_EQ(outcome.exit_code, 128 + signal) << outcome.err;
      EXPECT_EQ(outcome.out, "");
      EXPECT_EQ(conversion.left(), std::set<std::string>{});
      conversion.expect_untouched_input();
    }
  }
}

// Then the files of the model get the numbers of the standard streams.
TEST(ConvertFaults, NoStandardInput) {
  const TempDir directory;
  RunOptions options;
  options.before_exec = [] { ::close(STDIN_FILENO); };
  const std::string output = (directory.path() / "out").string();
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--force"}}) {
    std::vector<std::string> args{"-m", tiny(), "--output", output, "--quiet"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = convert(args, options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
}

TEST(ConvertFaults, AFileThatMayNotGrow) {
  const SlowConversion conversion;
  RunOptions options;
  options.before_exec = [] {
    const struct rlimit limit { .rlim_cur = 3'000'000, .rlim_max = 3'000'000 };
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  expect_error(conversion.run(options, {"--quiet"}), 1, "File too large");
  EXPECT_EQ(conversion.left(), std::set<std::string>{});
  conversion.expect_untouched_input();
}

TEST(ConvertFaults, AFullDisk) {
  const testing::SmallDisk disk("2m");
  if (!disk.mounted()) {
    GTEST_SKIP() << "may not mount a small file system";
  }
  const std::string output = (disk.path() / "out").string();
  expect_error(convert({"-m", llama(), "--output", output, "--quiet"}), 1,
               "No space left on device");
  EXPECT_EQ(entries(disk.path()), std::set<std::string>{});
  // An older model stays.
  ASSERT_EQ(convert({"-m", tiny(), "--output", output, "--quiet"}).exit_code, 0);
  const auto before = files_of(output);
  expect_error(convert({"-m", llama(), "--output", output, "--quiet", "--force"}), 1,
               "No space left on device");
  EXPECT_EQ(files_of(output), before);
  EXPECT_EQ(entries(disk.path()), std::set<std::string>{"out"});
}

TEST(ConvertFaults, AFullStandardOutput) {
  const TempDir directory;
  RunOptions options;
  options.before_exec = [] {
    if (::freopen("/dev/full", "w", stdout) == nullptr) {
      ::_exit(126);
    }
  };
  const Outcome outcome = convert({"-m", tiny(), "--dry-run", "--quiet"}, options);
  expect_error(outcome, 1, "cannot write to standard output");
}

}  // namespace
}  // namespace sparsellm
