// sparsellm-bench as a user meets it.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::Outcome;

Outcome bench(const std::vector<std::string>& args) {
  return testing::run_program("sparsellm-bench", args);
}

std::string llama() { return testing::data("models/fable-llama-relu-8m").string(); }
std::string config(const char* name) { return (testing::source_dir() / "configs" / name).string(); }

TEST(Bench, Help) {
  const Outcome all = bench({"--help"});
  EXPECT_EQ(all.exit_code, 0);
  for (const char* subcommand :
       {"throughput", "kernel", "mlp", "attention", "comm", "layers", "tune"}) {
    EXPECT_NE(all.out.find(subcommand), std::string::npos);
    const Outcome one = bench({subcommand, "--help"});
    EXPECT_EQ(one.exit_code, 0);
    EXPECT_NE(one.out.find("--format"), std::string::npos) << one.out;
  }
  EXPECT_TRUE(bench({"--version"}).out.starts_with("sparsellm-bench "));
}

TEST(Bench, ThroughputAsTable) {
  const Outcome outcome = bench({"throughput", "-m", llama(), "--device", "cpu", "--batch", "1,2",
                                 "--prompt", "4", "--output", "3", "--repeat", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const char* part : {"version", "commit", "command", "throughput -m", "device", "cpu",
                           "read_bandwidth_gb_per_s", " tokens/s", "decode step"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out;
  }
  EXPECT_EQ(outcome.out.find("GPU-s"), std::string::npos) << outcome.out;
  const Outcome arrivals =
      bench({"throughput", "-m", llama(), "--device", "cpu", "--arrivals", "poisson:100",
             "--requests", "2", "--prompt", "4", "--output", "3"});
  ASSERT_EQ(arrivals.exit_code, 0) << arrivals.err;
  EXPECT_NE(arrivals.out.find(" tokens/s"), std::string::npos) << arrivals.out;
  EXPECT_EQ(arrivals.out.find("GPU-s"), std::string::npos) << arrivals.out;
}

// Prompts in chunks: the warm-up ends where all requests are in the decode phase.
TEST(Bench, StepsOfFewTokens) {
  const Outcome outcome =
      bench({"throughput", "-m", llama(), "--device", "cpu", "--batch", "3", "--step-tokens", "3",
             "--prompt", "7", "--output", "16", "--repeat", "1", "--format", "jsonl"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const size_t row = outcome.out.find("\"table\":\"throughput\"");
  ASSERT_NE(row, std::string::npos) << outcome.out;
  const json result = json::parse(outcome.out.substr(outcome.out.rfind('\n', row) + 1));
  EXPECT_GT(result.at("tokens_per_gpu_second"), 0.0);
}

TEST(Bench, AdjustedAndScoredRequests) {
  const Outcome outcome =
      bench({"throughput", "-m", llama(), "--device", "cpu", "--batch", "3", "--prompt", "4",
             "--output", "3", "--repeat", "1", "--adjusted", "2", "--scored", "--format", "jsonl"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\"table\":\"throughput\""), std::string::npos) << outcome.out;
}

TEST(Bench, OutputAsTokensAndAsFormat) {
  const Outcome outcome =
      bench({"throughput", "-m", llama(), "--device", "cpu", "--batch", "2", "--prompt", "4",
             "--output", "3", "--output", "jsonl", "--repeat", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string line;
  std::getline(lines, line);
  const json environment = json::parse(line);
  EXPECT_EQ(environment.at("table"), "environment");
  EXPECT_EQ(environment.at("device"), "cpu");
  std::getline(lines, line);
  const json row = json::parse(line);
  EXPECT_EQ(row.at("batch"), 2);
  EXPECT_GT(row.at("tokens_per_gpu_second"), 0.0);
}

TEST(Bench, Arrivals) {
  const Outcome outcome = bench({"throughput", "-m", llama(), "--device", "cpu", "--batch", "4",
                                 "--prompt", "4:9", "--output", "3:5", "--format", "json",
                                 "--arrivals", "poisson:200", "--requests", "6"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report.at("tables")[0].at("rows")[0].at("requests"), 6);
  EXPECT_EQ(report.at("tables")[1].at("rows")[0].at("metric"), "time to first token");
}

// Of one request: its first token, the others at equal distances, its last.
TEST(Bench, LatenciesOfARequestAddUp) {
  constexpr int kTokens = 9;
  const Outcome outcome = bench({"throughput", "-m", llama(), "--device", "cpu", "--batch", "1",
                                 "--prompt", "4", "--output", std::to_string(kTokens), "--format",
                                 "json", "--arrivals", "poisson:200", "--requests", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json rows = json::parse(outcome.out).at("tables")[1].at("rows");
  const auto mean = [&](size_t row) { return rows.at(row).at("mean_ms").get<double>(); };
  ASSERT_EQ(rows.at(1).at("metric"), "time per output token");
  EXPECT_GT(mean(1), 0.0);
  EXPECT_NEAR(mean(0) + (kTokens - 1) * mean(1), mean(2), 1e-6 * mean(2));
}

TEST(Bench, KernelsAreOfTheRequestedDType) {
  for (const char* dtype : {"f16", "bf16"}) {
    const Outcome outcome = bench({"kernel", "--device", "cpu", "--shape", "64x64", "--tokens", "1",
                                   "--sparsity", "0.5", "--repeat", "1", "--copies-mib", "1",
                                   "--dtype", dtype, "--seed", "0", "--format", "json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(json::parse(outcome.out).at("environment").at("dtype"), dtype);
  }
}

TEST(Bench, AnInterruptEndsIt) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--batch", "1", "--output", "900", "--repeat", "10000"},
        {"--arrivals", "poisson:100", "--requests", "100000", "--output", "30"}}) {
    std::vector<std::string> args{"throughput", "-m", llama(), "--device", "cpu", "--prompt", "4"};
    args.insert(args.end(), more.begin(), more.end());
    testing::RunOptions options;
    options.meanwhile = [](pid_t child, const std::filesystem::path&) {
      ::usleep(1'000'000);  // until it measures
      ::kill(child, SIGINT);
    };
    EXPECT_EQ(testing::run_program("sparsellm-bench", args, options).exit_code, 130);
  }
}

TEST(Bench, OutOfMemoryIsARow) {
  const Outcome outcome =
      bench({"throughput", "-m", llama(), "--device", "cpu", "--batch", "1,64", "--prompt", "4",
             "--output", "8", "--repeat", "1", "--kv-memory", "1M", "--format", "csv"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\n64,"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("out of memory: 64 requests of 12 tokens"), std::string::npos)
      << outcome.out;
}

TEST(Bench, KernelOnTheCpu) {
  const Outcome outcome =
      bench({"kernel", "--device", "cpu", "--config", config("opt-125m.json"), "--tensor-parallel",
             "4", "--tokens", "2", "--sparsity", "0.7", "--formats", "tca_bme", "--repeat", "1",
             "--copies-mib", "1", "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_TRUE(report.at("environment").contains("commit"));
  const json rows = report.at("tables")[0].at("rows");
  ASSERT_EQ(rows.size(), 3u * 2u);  // up and down have the same shape
  EXPECT_EQ(rows[0].at("out"), 3 * 768 / 4);
  EXPECT_EQ(rows[0].at("format"), "dense");
  EXPECT_EQ(rows[1].at("format"), "tca_bme");
  EXPECT_GT(rows[1].at("speedup"), 0.0);
  EXPECT_EQ(rows[1].at("baseline"), "dense");
  EXPECT_FALSE(rows[1].at("verdict").is_null());
  EXPECT_TRUE(rows[1].at("library_speedup").is_null());  // there is no library on the CPU
  EXPECT_NE(std::string(report.at("environment").at("verdict")).find("equal"), std::string::npos);
  EXPECT_LT(rows[1].at("percent_of_dense"), 60.0);
  const json summary = report.at("tables")[1].at("rows");
  ASSERT_EQ(summary.size(), 1u);
  EXPECT_EQ(summary[0].at("cells"), 3);
  EXPECT_EQ(summary[0].at("failed"), 0);
}

TEST(Bench, KernelOfPatterns) {
  const Outcome outcome =
      bench({"kernel", "--device", "cpu", "--shape", "130x260", "--tokens", "2", "--sparsity",
             "0.7", "--pattern", "uniform,rows:0.5,dense-blocks:1e-2", "--formats", "tca_bme",
             "--repeat", "1", "--copies-mib", "1", "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  const json rows = report.at("tables")[0].at("rows");
  const json summary = report.at("tables")[1].at("rows");
  const std::vector<std::string> patterns{"uniform", "rows:0.5", "dense-blocks:0.01"};
  ASSERT_EQ(rows.size(), 1 + patterns.size());  // what is dense once
  ASSERT_EQ(summary.size(), patterns.size());
  EXPECT_EQ(rows[0].at("format"), "dense");
  EXPECT_EQ(rows[0].at("pattern"), patterns[0]);
  for (size_t i = 0; i < patterns.size(); ++i) {
    EXPECT_EQ(rows[i + 1].at("pattern"), patterns[i]);
    EXPECT_EQ(rows[i + 1].at("format"), "tca_bme");
    EXPECT_EQ(rows[i + 1].at("baseline"), "dense");
    EXPECT_FALSE(rows[i + 1].at("verdict").is_null());
    EXPECT_EQ(summary[i].at("pattern"), patterns[i]);
  }
}

TEST(Bench, ThroughputAndLayersOfAPattern) {
  const std::vector<std::string> common{
      "--config",        testing::data("tiny/llama3/config.json").string(),
      "--device",        "cpu",
      "--sparsity",      "0.6",
      "--format",        "json",
      "--weight-format", "tca_bme",
      "--pattern",       "columns:0.5"};
  const auto patterns_of = [&](std::vector<std::string> args) {
    args.insert(args.end(), common.begin(), common.end());
    const Outcome outcome = bench(args);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<std::string> patterns;
    const json report = json::parse(outcome.out);
    for (const json& table : report.at("tables")) {
      for (const json& row : table.at("rows")) {
        patterns.push_back(row.at("pattern"));
      }
    }
    return patterns;
  };
  const std::string pattern = "columns:0.5";
  EXPECT_EQ(patterns_of({"throughput", "--batch", "1", "--prompt", "2", "--output", "2", "--repeat",
                         "1", "--no-layers"}),
            std::vector<std::string>{pattern});
  EXPECT_EQ(patterns_of({"throughput", "--batch", "1", "--prompt", "2", "--output", "2",
                         "--arrivals", "poisson:200", "--requests", "1", "--no-layers"}),
            std::vector<std::string>(4, pattern));
  EXPECT_EQ(patterns_of({"layers", "--tokens", "1", "--repeat", "1", "--copies-mib", "1"}),
            std::vector<std::string>(5, pattern));
}

// Of the layers that follow a run, too: there are sparse ones without --weight-format.
TEST(Bench, ThroughputAndLayersOfAPlan) {
  const testing::TempDir dir;
  const std::string plan = dir.write("plan.json", R"({"rules": [
      {"tensors": "*.o_proj", "prune": "none"},
      {"tensors": "*.down_proj", "prune": "2:4", "format": "tiled_csl"}],
      "default": {"prune": "wanda", "sparsity": 0.75, "format": "tca_bme"}})");
  const auto report = [&](std::vector<std::string> more) {
    std::vector<std::string> args{"throughput",
                                  "--batch",
                                  "1",
                                  "--prompt",
                                  "2",
                                  "--output",
                                  "2",
                                  "--repeat",
                                  "1",
                                  "--device",
                                  "cpu",
                                  "--plan",
                                  plan,
                                  "--format",
                                  "jsonl",
                                  "--config",
                                  testing::data("tiny/llama3/config.json").string()};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = bench(args);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<json> rows;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      rows.push_back(json::parse(line));
    }
    return rows;
  };
  const std::vector<json> rows = report({});
  ASSERT_EQ(rows.size(), 1u + 1u + 4u + 1u);
  EXPECT_EQ(rows[0].at("plan"), plan);
  EXPECT_EQ(rows[1].at("pattern"), "by plan");
  const std::vector<std::string> formats{"tca_bme", "dense", "tca_bme", "tiled_csl"};
  const std::vector<double> densities{25.0, 100.0, 25.0, 50.0};
  for (size_t i = 0; i < formats.size(); ++i) {
    EXPECT_EQ(rows[2 + i].at("format"), formats[i]);
    EXPECT_EQ(rows[2 + i].at("density_percent"), densities[i]);
    EXPECT_EQ(rows[2 + i].at("layers"), 2);
  }
  // What is given goes before it.
  const std::vector<json> given = report({"--weight-format", "tca_bme", "--pattern", "uniform"});
  ASSERT_EQ(given.size(), rows.size());
  EXPECT_EQ(given[1].at("pattern"), "uniform");
  for (size_t i = 0; i < formats.size(); ++i) {
    EXPECT_EQ(given[2 + i].at("format"), "tca_bme");
  }
  EXPECT_EQ(report({"--weight-format", "dense"}).size(), 2u);
  const Outcome table =
      bench({"layers", "--device", "cpu", "--tokens", "1", "--repeat", "1", "--copies-mib", "1",
             "--plan", plan, "--config", testing::data("tiny/llama3/config.json").string()});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(table.out.find(plan), std::string::npos) << table.out;
}

// Of kernels, of random weights in one format and of those of a plan. On the CPU all are panels.
TEST(Bench, RecordsOfAllThatIsTcaBme) {
  const testing::TempDir dir;
  const std::string plan = dir.write("plan.json", R"({"default": {"prune": "random",
      "sparsity": 0.8, "format": "tca_bme", "records": "speed"}})");
  const std::string shapes = testing::data("tiny/llama3/config.json").string();
  for (const std::vector<std::string>& model : std::vector<std::vector<std::string>>{
           {"kernel", "--shape", "130x260", "--formats", "tca_bme", "--sparsity", "0.8"},
           {"layers", "--config", shapes, "--plan", plan},
           {"layers", "--config", shapes, "--weight-format", "tca_bme", "--sparsity", "0.8"}}) {
    std::vector<std::string> args = model;
    args.insert(args.end(), {"--device", "cpu", "--tokens", "1", "--repeat", "1", "--copies-mib",
                             "1", "--records", "size"});
    const Outcome outcome = bench(args);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("tca_bme"), std::string::npos) << outcome.out;
  }
}

// A given "auto" chooses what the plan does not name.
TEST(Bench, ChoicesOfFormatsWithAPlan) {
  const testing::TempDir dir;
  const std::string plan = dir.write("plan.json", R"({"rules": [
      {"tensors": "*.out_proj", "prune": "magnitude", "sparsity": 0.6, "format": "tiled_csl"},
      {"tensors": "*.fc1", "layers": {"ends": "1/4"}, "prune": "none"}],
      "default": {"prune": "magnitude", "sparsity": 0.8}})");
  const Outcome outcome =
      bench({"layers", "--config", config("opt-125m.json"), "--device", "cpu", "--plan", plan,
             "--weight-format", "auto", "--choices", "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  const json& rows = report.at("tables").at(0).at("rows");
  ASSERT_EQ(rows.size(), 5u);
  const std::vector<std::string> formats{"tca_bme", "tiled_csl", "dense", "tca_bme", "tca_bme"};
  const std::vector<int64_t> layers{12, 12, 6, 12, 6};
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(rows.at(i).at("format"), formats[i]);
    EXPECT_EQ(rows.at(i).at("layers"), layers[i]);
    EXPECT_EQ(rows.at(i).at("by"), i == 1 ? "plan" : "rules");
  }
}

// Shapes that configs and degrees have in common are measured once.
TEST(Bench, KernelOfManyConfigs) {
  const Outcome outcome =
      bench({"kernel", "--device", "cpu", "--config", config("opt-125m.json"),
             config("opt-125m.json"), "--tensor-parallel", "1,2", "--tokens", "1", "--sparsity",
             "0.5", "--repeat", "1", "--copies-mib", "1", "--format", "jsonl"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  // 2304x768, 768x768, 3072x768, 768x3072; 1152x768, 768x384, 1536x768, 768x1536
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1 + 8) << outcome.out;
}

std::vector<std::string> tables_of(std::vector<std::string> args) {
  args.insert(args.end(), {"--device", "cpu", "--format", "json"});
  const Outcome outcome = bench(args);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<std::string> names;
  const json report = json::parse(outcome.out);
  for (const json& table : report.at("tables")) {
    names.push_back(table.at("name"));
  }
  return names;
}

TEST(Bench, Layers) {
  const std::vector<std::string> both{"layers", "layer totals"};
  EXPECT_EQ(tables_of({"layers", "-m", llama(), "--tokens", "1", "--repeat", "1", "--weight-format",
                       "tca_bme", "--all", "--copies-mib", "1"}),
            both);
  EXPECT_EQ(tables_of({"layers", "--config", config("opt-125m.json"), "--tokens", "1", "--repeat",
                       "1", "--sparsity", "0.6", "--copies-mib", "1"}),
            both);
}

TEST(Bench, Mlp) {
  const Outcome outcome =
      bench({"mlp",      "--device", "cpu",          "--shape", "160x96,130x70:plain",
             "--tokens", "1,2",      "--predicted",  "0.5",     "--zeros",
             "0.7",      "--votes",  "sign",         "--dtype", "bf16",
             "--repeat", "1",        "--copies-mib", "1",       "--threads",
             "1",        "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report.at("environment").at("dtype"), "bf16");
  const json rows = report.at("tables").at(0).at("rows");
  ASSERT_EQ(rows.size(), 2u * 5u * 2u);
  for (const json& row : rows) {
    EXPECT_EQ(row.at("votes"), "sign") << row;
    EXPECT_NEAR(row.at("zeros_percent").get<double>(), 70.0, 10.0) << row;
    EXPECT_EQ(row.at("kind"), row.at("neurons") == 160 ? "gated" : "plain");
  }
}

TEST(Bench, ThroughputWithSharesOfNeurons) {
  const auto neurons = [](std::vector<std::string> shares) {
    std::vector<std::string> args{"throughput", "--config", llama() + "/config.json",
                                  "--device",   "cpu",      "--batch",
                                  "2",          "--prompt", "4",
                                  "--output",   "8",        "--repeat",
                                  "1",          "--format", "json",
                                  "--no-layers"};
    args.insert(args.end(), shares.begin(), shares.end());
    const Outcome outcome = bench(args);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const json table = json::parse(outcome.out).at("tables").at(1);
    EXPECT_EQ(table.at("name"), "activation sparsity");
    return table.at("rows").at(0);
  };
  const json predicted =
      neurons({"--activation-sparsity", "predict", "--predicted", "0.7", "--zeros", "0.85"});
  EXPECT_NEAR(predicted.at("predicted_mean_percent").get<double>(), 70.0, 5.0);
  EXPECT_NEAR(predicted.at("zeros_mean_percent").get<double>(), 85.0, 5.0);
  const json exact = neurons({"--activation-sparsity", "exact", "--zeros", "0.85"});
  EXPECT_EQ(exact.at("predicted_mean_percent"), 0.0);
  EXPECT_NEAR(exact.at("zeros_mean_percent").get<double>(), 85.0, 5.0);
}

TEST(Bench, ChoicesOfFormats) {
  const auto rows_of = [](const char* sparsity) {
    const Outcome outcome =
        bench({"layers", "--config", config("opt-125m.json"), "--device", "cpu", "--sparsity",
               sparsity, "--weight-format", "auto", "--choices", "--format", "json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const json report = json::parse(outcome.out);
    EXPECT_EQ(report.at("tables").size(), 1u);
    EXPECT_EQ(report.at("tables").at(0).at("name"), "format choices");
    return report.at("tables").at(0).at("rows");
  };
  const json sparse = rows_of("0.7");
  ASSERT_EQ(sparse.size(), 4u);
  for (const json& row : sparse) {
    EXPECT_EQ(row.at("layers"), 12);
    EXPECT_EQ(row.at("format"), "tca_bme");
    EXPECT_EQ(row.at("taken"), "yes");
    EXPECT_EQ(row.at("by"), "rules");
    EXPECT_TRUE(row.at("time_us").is_null());
    EXPECT_NEAR(row.at("density_percent").get<double>(), 30.0, 0.01);
  }
  EXPECT_EQ(sparse.at(0).at("out"), 3 * 768);
  EXPECT_EQ(rows_of("0.2").at(0).at("format"), "dense");
  EXPECT_EQ(tables_of({"throughput", "-m", llama(), "--batch", "1", "--prompt", "4", "--output",
                       "2", "--weight-format", "auto", "--no-layers"}),
            (std::vector<std::string>{"throughput", "format choices"}));
}

TEST(Bench, LayersAfterARun) {
  const auto tables = [](std::vector<std::string> more) {
    std::vector<std::string> args{"throughput", "-m", llama(),    "--batch", "1",
                                  "--prompt",   "4",  "--output", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return tables_of(args);
  };
  const std::vector<std::string> with{"throughput", "layers", "layer totals"};
  const std::vector<std::string> without{"throughput"};
  EXPECT_EQ(tables({}), without);
  EXPECT_EQ(tables({"--layers"}), with);
  EXPECT_EQ(tables({"--weight-format", "tca_bme"}), with);
  EXPECT_EQ(tables({"--weight-format", "tca_bme", "--no-layers"}), without);
  EXPECT_EQ(tables({"--weight-format", "dense"}), without);
  EXPECT_EQ(tables({"--layers", "--arrivals", "poisson:200", "--requests", "2"}),
            (std::vector<std::string>{"serving", "latency", "layers", "layer totals"}));
}

TEST(BenchBadInput, OneClearLine) {
  struct Case {
    int exit_code;
    std::string message;
    std::vector<std::string> args;
  };
  const auto throughput = [](std::vector<std::string> more) {
    std::vector<std::string> args{"throughput", "-m", llama(), "--device", "cpu"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const testing::TempDir dir;
  int plans = 0;
  const auto with_plan = [&](std::string_view plan, const std::vector<std::string>& more = {}) {
    const std::string file = dir.write(fmt::format("{}.json", plans++), plan).string();
    std::vector<std::string> args{
        "throughput", "--device", "cpu", "--config", config("opt-125m.json"), "--plan", file};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const std::vector<Case> cases{
      {2, "a subcommand is missing", {}},
      {2, "--shape \"128\"; expected neurons x inputs", {"mlp", "--shape", "128"}},
      {2, "--shape \"8x8:relu\"; expected", {"mlp", "--shape", "8x8:relu"}},
      {2, "--predicted 0.9 is more than --zeros 0.5", {"mlp", "--zeros", "0.5"}},
      {2, "--zeros", {"mlp", "--zeros", "1.5"}},
      {2, "--votes", {"mlp", "--votes", "loud"}},
      {2, "--tokens", {"mlp", "--tokens", "0"}},
      {2, "--tokens", {"mlp", "--ablation", "--tokens", "1"}},
      {2, "--votes", {"mlp", "--ablation", "--votes", "sign"}},
      {1, "on CUDA alone, not on cpu", {"mlp", "--ablation", "--device", "cpu"}},
      {2, "frobnicate", {"frobnicate"}},
      {2, "--frobnicate", throughput({"--frobnicate"})},
      {2, "--config FILE or --model DIR", {"throughput"}},
      {2, "--config", throughput({"--config", config("opt-125m.json")})},
      {2, "--batch", throughput({"--batch", "0"})},
      {2, "--batch", throughput({"--batch", "1,x"})},
      {2, "--prompt \"0\"", throughput({"--prompt", "0"})},
      {2, "--step-tokens", throughput({"--step-tokens", "0"})},
      {2, "--step-tokens 3 is less than --batch 4",
       throughput({"--batch", "1,4", "--step-tokens", "3"})},
      {2, "--prompt 2:4 is a range", throughput({"--prompt", "2:4"})},
      {2, "random weights of --config", throughput({"--predicted", "0.5", "--zeros", "0.9"})},
      {2, "--predicted requires --zeros", throughput({"--predicted", "0.5"})},
      {2,
       "without --alpha",
       {"throughput", "--config", config("opt-125m.json"), "--predicted", "0.5", "--zeros", "0.9"}},
      {2,
       "--zeros alone is for exact",
       {"throughput", "--config", config("opt-125m.json"), "--activation-sparsity", "predict",
        "--zeros", "0.9"}},
      {2,
       "--predicted 0.9 is more than --zeros 0.5",
       {"throughput", "--config", config("opt-125m.json"), "--activation-sparsity", "predict",
        "--predicted", "0.9", "--zeros", "0.5"}},
      {2, "--output 2:4 is a range", throughput({"--output", "2:4"})},
      {2, "--output \"xml\"", throughput({"--output", "xml"})},
      {2, "--format \"xml\"", throughput({"--format", "xml"})},
      {2, "a second time", throughput({"--output", "8", "--output", "9"})},
      {2, "--repeat", throughput({"--repeat", "0"})},
      {2, "--sparsity 0.5 is for", throughput({"--sparsity", "0.5"})},
      {2, "--sparsity", throughput({"--sparsity", "1.5"})},
      {2, "--pattern \"foo\"; expected uniform, rows:S", throughput({"--pattern", "foo"})},
      {2, "--pattern rows:0.5 is for", throughput({"--pattern", "rows:0.5"})},
      {2,
       "--pattern outliers:0.9: a share of 0.9",
       {"throughput", "--config", config("opt-125m.json"), "--sparsity", "0.6", "--pattern",
        "outliers:0.9"}},
      {2,
       "--pattern \"dense-blocks:2\"",
       {"layers", "--config", config("opt-125m.json"), "--pattern", "dense-blocks:2"}},
      {2, "--pattern rows:1 is for", {"layers", "-m", llama(), "--pattern", "rows:1"}},
      {2, "--pattern uniform is for", {"layers", "-m", llama(), "--pattern", "uniform"}},
      {2, "--pattern", {"tune", "--shape", "64x64", "--pattern", "rows:1"}},
      {2, "--plan p.json is for", throughput({"--plan", "p.json"})},
      {2, "--records", {"tune", "--shape", "64x64", "--records", "size"}},
      {2, "--records is not for --weight-format stored", throughput({"--records", "size"})},
      {2, "--records is not for --weight-format tiled_csl",
       throughput({"--weight-format", "tiled_csl", "--records", "size"})},
      {2,
       "--records is not for --weight-format dense",
       {"layers", "--config", config("opt-125m.json"), "--plan", "p.json", "--weight-format",
        "dense", "--records", "size"}},
      {2, "--plan", {"tune", "--shape", "64x64", "--plan", "p.json"}},
      {2,
       "--sparsity excludes --plan",
       {"layers", "--config", config("opt-125m.json"), "--plan", "p.json", "--sparsity", "0.5"}},
      {1,
       "/no/such/plan",
       {"layers", "--config", config("opt-125m.json"), "--plan", "/no/such/plan"}},
      {1, "rule 1: the layers [12, 13] of a model with 12 layers", with_plan(R"({"rules": [
          {"tensors": "*", "layers": [12, 13], "prune": "none"}]})")},
      {1, "rule 1: the pattern \"*.up_proj\" matches none of the model's 72 linear layers",
       with_plan(R"({"rules": [{"tensors": "*.up_proj", "prune": "none"}]})")},
      {1, "layers.0.fc1: random weights have no pattern outliers:0.5",
       with_plan(R"({"rules": [{"tensors": "*.fc1", "prune": "2:8"}]})",
                 {"--pattern", "outliers:0.5"})},
      {2, "--pattern \"rows:-1\"", {"kernel", "--shape", "64x64", "--pattern", "rows:-1"}},
      {2, "--pattern \"rows:nan\"", {"kernel", "--shape", "64x64", "--pattern", "rows:nan"}},
      {2, "--pattern \"rows:\"", {"kernel", "--shape", "64x64", "--pattern", "uniform,rows:"}},
      {2, "--pattern \"\"", {"kernel", "--shape", "64x64", "--pattern", ""}},
      {2,
       "--pattern outliers:0.5: a share of 0.5",
       {"kernel", "--shape", "64x64", "--sparsity", "0.4,0.6", "--pattern", "outliers:0.5"}},
      {2, "--weight-format", throughput({"--weight-format", "csr"})},
      {2, "--kv-memory \"1X\"", throughput({"--kv-memory", "1X"})},
      {2, "--gpu-memory-utilization", throughput({"--gpu-memory-utilization", "2"})},
      {2, "--arrivals \"poisson\"", throughput({"--arrivals", "poisson"})},
      {2, "--requests", throughput({"--requests", "4"})},
      {2, "--repeat", throughput({"--arrivals", "poisson:1", "--repeat", "2"})},
      {2, "--concurrency requires --url", throughput({"--concurrency", "2"})},
      {2, "--vocabulary requires --url", throughput({"--vocabulary", "2"})},
      {2, "--url needs --arrivals or --concurrency", throughput({"--url", "http://a"})},
      {2,
       "--url \"a:8000\"; expected http://HOST:PORT",
       {"throughput", "--url", "a:8000", "--concurrency", "2"}},
      {2,
       "--arrivals excludes --concurrency",
       {"throughput", "--url", "http://a", "--concurrency", "2", "--arrivals", "poisson:1"}},
      {2,
       "--device is of an engine in this program",
       {"throughput", "--url", "http://a", "--concurrency", "2", "--device", "cpu"}},
      {2,
       "--layers is of an engine in this program",
       {"throughput", "--url", "http://a", "--concurrency", "2", "--no-layers"}},
      {1,
       "/no/such/config",
       {"throughput", "--url", "http://a", "--concurrency", "2", "--config", "/no/such/config"}},
      {1,
       "/no/such/keys",
       {"throughput", "--url", "http://a", "--concurrency", "2", "--api-key-file",
        "/no/such/keys"}},
      {1, "/no/such/model", {"throughput", "-m", "/no/such/model"}},
      {1, "/no/such/config", {"throughput", "--config", "/no/such/config"}},
      {1, "MixtralForCausalLM", {"throughput", "--config", config("mixtral-8x7b.json")}},
      {1, "unknown device 'tpu'", {"throughput", "-m", llama(), "--device", "tpu"}},
      {1, "positions of the model", throughput({"--batch", "1", "--output", "5000"})},
      {2, "--shape OUTxIN or --config FILE", {"kernel"}},
      {2, "--shape \"12\"", {"kernel", "--shape", "64x64,12"}},
      {2, "--config", {"kernel", "--shape", "64x64", "--config", config("opt-125m.json")}},
      {2, "--tokens", {"kernel", "--shape", "64x64", "--tokens", "0"}},
      {2, "--sparsity", {"kernel", "--shape", "64x64", "--sparsity", "2"}},
      {2, "--dtype", {"kernel", "--shape", "64x64", "--dtype", "f8"}},
      {2, "--copies-mib", {"kernel", "--shape", "64x64", "--copies-mib", "0"}},
      {2, "--seed", {"kernel", "--shape", "64x64", "--seed=-1"}},
      {1, "/no/such/config", {"kernel", "--config", "/no/such/config"}},
      {2, "--tensor-parallel", {"kernel", "--shape", "64x64", "--tensor-parallel", "2"}},
      {2,
       "--tensor-parallel",
       {"kernel", "--config", config("opt-125m.json"), "--tensor-parallel", "0"}},
      {1,
       "5 GPUs cannot share 12 attention heads",
       {"kernel", "--config", config("opt-125m.json"), "--tensor-parallel", "5"}},
      {1,
       "unknown format 'coo'",
       {"kernel", "--shape", "64x64", "--device", "cpu", "--formats", "coo"}},
      {1,
       "one of --formats tca_bme or tiled_csl apart, not of dense",
       {"kernel", "--shape", "64x64", "--formats", "dense", "--ablation"}},
      {1,
       "not of tca_bme,tiled_csl",
       {"kernel", "--shape", "64x64", "--formats", "tca_bme,tiled_csl", "--ablation"}},
      {1,
       "on CUDA alone",
       {"kernel", "--shape", "64x64", "--device", "cpu", "--formats", "tiled_csl", "--ablation"}},
      {2, "--profile", {"kernel", "--shape", "64x64", "--profile", "--ablation"}},
      {1, "on CUDA alone", {"kernel", "--shape", "64x64", "--device", "cpu", "--ablation"}},
      {2, "--requests", {"attention", "--requests", "0"}},
      {2, "--requests", {"attention", "--requests", "8,x"}},
      {2, "--context", {"attention", "--context", "-1"}},
      {2, "--context", {"attention", "--context", "99999999999999999999"}},
      {2, "--heads", {"attention", "--heads", "0"}},
      {2, "--kv-heads", {"attention", "--kv-heads", "nan"}},
      {2, "--head-dim", {"attention", "--head-dim", "512"}},
      {2, "--dtype", {"attention", "--dtype", "f32"}},
      {2, "--repeat", {"attention", "--repeat", "0"}},
      {2, "--format \"xml\"", {"attention", "--format", "xml"}},
      {1, "40 heads cannot share 7", {"attention", "--kv-heads", "7"}},
      {1, "100 is not a multiple of 8", {"attention", "--head-dim", "100"}},
      {2, "--ranks", {"comm", "--ranks", "1"}},
      {2, "--ranks", {"comm", "--ranks", "9"}},
      {2, "--bytes", {"comm", "--bytes", "8K,x"}},
      {2, "--ways", {"comm", "--ways", "three-shot"}},
      {2, "--dtype", {"comm", "--dtype", "i32"}},
      {2, "--calls", {"comm", "--calls", "0"}},
      {1, "7 bytes are no whole number of elements in f16", {"comm", "--bytes", "8K,7"}},
      {2, "--device has 3 names for 2 ranks", {"comm", "--device", "cuda:0,cuda:1,cuda:2"}},
      {1, "on CUDA alone, not on cpu", {"attention", "--device", "cpu"}},
      {1, "unknown device 'tpu'", {"attention", "--device", "tpu"}},
      {2, "--config FILE or --model DIR", {"layers"}},
      {2, "--tokens", {"layers", "-m", llama(), "--tokens", "0"}},
      {2, "--choices is for --weight-format auto", {"layers", "-m", llama(), "--choices"}},
      {1, "MixtralForCausalLM", {"layers", "--config", config("mixtral-8x7b.json")}},
      {2, "--config FILE or --model DIR", {"tune"}},
      {2, "--model", {"tune", "--shape", "64x64", "--model", llama()}},
  };
  for (const Case& c : cases) {
    const Outcome outcome = bench(c.args);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << c.message;
    EXPECT_NE(outcome.err.find(c.message), std::string::npos) << c.message << ": " << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("sparsellm-bench: ")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "") << c.message;
  }
}

}  // namespace
}  // namespace sparsellm
