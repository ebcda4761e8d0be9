// sparsellm-bench suite, with models so small that a CPU runs them in no time.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/random.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Outcome;

constexpr const char* kConfig = R"({"architectures": ["OPTForCausalLM"], "model_type": "opt",
  "activation_function": "relu", "do_layer_norm_before": true, "hidden_size": 64,
  "word_embed_proj_dim": 64, "ffn_dim": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
  "vocab_size": 100, "max_position_embeddings": 64, "bos_token_id": 2, "eos_token_id": 2,
  "pad_token_id": 1, "torch_dtype": "float16"})";
constexpr const char* kSuite = R"({"title": "Small", "source": "none", "gpu": "none",
  "framework": "none", "metric": "tokens_per_gpu_second", "cells": [
  {"models": ["small"], "formats": ["dense", "tca_bme"], "sparsities": [0.7], "gpus": [1, 2],
   "batches": [1, 2], "prompt": 4, "outputs": [2, 6]},
  {"models": ["small"], "formats": ["tca_bme"], "sparsities": [0.9], "records": ["speed", "size"],
   "batches": [3], "prompt": 4, "outputs": [2]},
  {"models": ["small"], "formats": ["tca_bme"], "plans": ["half"], "batches": [1], "prompt": 4,
   "outputs": [2]},
  {"models": ["small"], "formats": ["dense"], "activation_sparsity": [{"mode": "exact", "zeros": 0.8}],
   "batches": [1], "prompt": 4, "outputs": [2]},
  {"kind": "kernel", "shapes": ["96x64"], "formats": ["dense", "tca_bme"], "sparsities": [0.7],
   "tokens": [1, 3]}]})";
constexpr const char* kPlan = R"({"rules": [{"tensors": ["*.fc1"], "prune": "none",
  "format": "dense"}], "default": {"prune": "magnitude", "sparsity": 0.5}})";
constexpr size_t kCells = 8 + 8 + 2 + 1 + 1 + 4;

class SuiteCli : public ::testing::Test {
 protected:
  SuiteCli() {
    fs::create_directories(configs_ / "benchmarks");
    fs::create_directories(configs_ / "plans");
    std::ofstream(configs_ / "small.json") << kConfig;
    std::ofstream(configs_ / "plans" / "half.json") << kPlan;
    std::ofstream(suite_) << kSuite;
  }

  std::vector<std::string> with(std::vector<std::string> more) const {
    std::vector<std::string> args{"suite", suite_.string(), "--device", "cpu"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  Outcome suite(const std::vector<std::string>& more) const {
    return testing::run_program("sparsellm-bench", with(more));
  }
  Outcome suite_to_results(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--results", results_.string()});
    return suite(more);
  }

  // The lines of the file, each of which is a result; a last one without its end does not count.
  std::vector<json> results() const {
    std::ifstream file(results_ / "results.jsonl");
    std::stringstream text;
    text << file.rdbuf();
    std::string rest = text.str();
    std::vector<json> all;
    for (size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
      all.push_back(json::parse(rest.substr(0, end)));
      rest.erase(0, end + 1);
    }
    return all;
  }

  testing::TempDir directory_;
  fs::path configs_ = directory_.path() / "configs";
  fs::path suite_ = configs_ / "benchmarks" / "small.json";
  fs::path results_ = directory_.path() / "results";
};

TEST_F(SuiteCli, MeasuresEachCellOnce) {
  const Outcome first = suite_to_results();
  ASSERT_EQ(first.exit_code, 0) << first.err;
  std::set<std::string> cells;
  for (const json& result : results()) {
    SCOPED_TRACE(result.dump());
    EXPECT_TRUE(cells.insert(result.at("cell")).second);
    EXPECT_EQ(result.at("suite"), "small");
    EXPECT_EQ(result.at("gpu"), "cpu");
    ASSERT_TRUE(result.contains("row"));
    const json& row = result.at("row");
    if (row.contains("batch")) {
      EXPECT_GT(row.at("tokens_per_gpu_second"), 0.0);
    } else {
      EXPECT_GT(row.at("time_us"), 0.0);
    }
  }
  EXPECT_EQ(cells.size(), kCells);
  EXPECT_TRUE(cells.contains("small/tca_bme/s0.7/2gpu/b2/p4/o6"));
  EXPECT_TRUE(cells.contains("96x64/tca_bme/s0.7/n3"));

  EXPECT_EQ(suite_to_results({"--resume"}).exit_code, 0);
  EXPECT_EQ(results().size(), kCells);
  const Outcome again = suite_to_results({"--only", "small/96x64/*,*/exact*/b1/*"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(results().size(), kCells + 5);
  const Outcome list = suite_to_results({"--list", "--resume"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_NE(list.out.find("small/96x64/dense/n1: done\n"), std::string::npos) << list.out;
  EXPECT_NE(list.out.find("\n0 of " + std::to_string(kCells) + " cells run"), std::string::npos)
      << list.out;
}

// Killed at any time and begun again: no result is lost, doubled or torn.
TEST_F(SuiteCli, GoesOnAfterItWasKilled) {
  testing::Random random(61);
  constexpr int kKills = 8;
  size_t before = 0;
  for (int i = 0; i < kKills; ++i) {
    const auto microseconds = static_cast<useconds_t>(100'000 + random.below(600'000));
    testing::RunOptions options;
    options.meanwhile = [&](pid_t child, const fs::path&) {
      ::usleep(microseconds);
      ::kill(child, SIGKILL);
    };
    testing::run_program("sparsellm-bench", with({"--resume", "--results", results_.string()}),
                         options);
    const size_t now = fs::exists(results_ / "results.jsonl") ? results().size() : 0;
    EXPECT_GE(now, before);
    before = now;
  }
  ASSERT_EQ(suite_to_results({"--resume"}).exit_code, 0);
  std::map<std::string, int> cells;
  for (const json& result : results()) {
    ++cells[result.at("cell")];
  }
  EXPECT_EQ(cells.size(), kCells);
  for (const auto& [cell, count] : cells) {
    EXPECT_EQ(count, 1) << cell;
  }
}

TEST_F(SuiteCli, BeginsNothingThatWouldTakeTooLong) {
  const Outcome outcome = suite_to_results({"--budget", "0.5s"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(" 0 failed, "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(" not begun for want of time\n"), std::string::npos) << outcome.out;
  EXPECT_LT(results().size(), kCells);
}

TEST_F(SuiteCli, ListsWhatFitsGpusThatAreNotThere) {
  const auto list = [&](const char* memory, const char* gpus) {
    const Outcome outcome = testing::run_program(
        "sparsellm-bench",
        {"suite", suite_.string(), "--list", "--gpu-memory", memory, "--gpus", gpus});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_NE(list("1G", "1").find("small/small/dense/2gpu/b1/p4/o2: needs 2 GPUs\n"),
            std::string::npos);
  EXPECT_NE(list("1G", "2").find("small/small/dense/2gpu/b1/p4/o2: runs, "), std::string::npos);
  EXPECT_NE(list("1M", "2").find("small/small/dense/2gpu/b1/p4/o2: does not fit: "),
            std::string::npos);
}

// OPT-175B at 80 % zeros: 148.5 GB in pairs, 103.7 without, and 2.72 of keys and values for each
// request.
TEST(ShippedSuite, FitsWhatTheFormulasSay) {
  struct Case {
    const char* memory;
    const char* gpus;
    std::set<std::string> cells;  // of "size" and of speed, that run
  };
  const std::string suite =
      (testing::source_dir() / "configs/benchmarks/flash_llm_fig16.json").string();
  for (const Case& c :
       {Case{"24G", "1", {}}, Case{"141G", "1", {"size/1gpu/b8", "size/1gpu/b16"}},
        Case{"80G", "2", {"size/2gpu/b8", "size/2gpu/b16"}},
        Case{"141G",
             "2",
             {"size/1gpu/b8", "size/1gpu/b16", "2gpu/b8", "2gpu/b16", "2gpu/b32", "size/2gpu/b8",
              "size/2gpu/b16", "size/2gpu/b32", "size/2gpu/b64"}},
        Case{"48G",
             "8",
             {"4gpu/b8", "4gpu/b16", "size/4gpu/b8", "size/4gpu/b16", "size/4gpu/b32"}}}) {
    SCOPED_TRACE(std::string(c.gpus) + " GPUs of " + c.memory);
    const Outcome list =
        testing::run_program("sparsellm-bench", {"suite", suite, "--list", "--gpu-memory", c.memory,
                                                 "--gpus", c.gpus, "--only", "*/tca_bme/*"});
    EXPECT_EQ(list.exit_code, 0) << list.err;
    std::set<std::string> cells;
    std::istringstream lines(list.out);
    for (std::string line; std::getline(lines, line);) {
      const std::string begin = "flash_llm_fig16/opt-175b/tca_bme/s0.8/";
      if (line.starts_with(begin) && line.find(": runs, ") != std::string::npos) {
        cells.insert(line.substr(begin.size(), line.find("/o512") - begin.size()));
      }
    }
    EXPECT_EQ(cells, c.cells) << list.out;
  }
}

TEST_F(SuiteCli, RefusesWhatItCannotDo) {
  const auto error_of = [&](const std::vector<std::string>& more) {
    const Outcome outcome = suite(more);
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    return outcome.err;
  };
  EXPECT_NE(error_of({}).find("Give --results DIR"), std::string::npos);
  EXPECT_NE(error_of({"--results", results_.string(), "--budget", "9x"})
                .find("--budget \"9x\"; expected a time"),
            std::string::npos);
  EXPECT_NE(error_of({"--results", results_.string(), "--only", "none"})
                .find("no cell is called \"none\""),
            std::string::npos);
  EXPECT_NE(error_of({"--results", results_.string(), "--gpu-memory", "8G"})
                .find("--gpu-memory is for GPUs"),
            std::string::npos);
  fs::create_directories(results_);
  std::ofstream(results_ / "results.jsonl") << "garbage\n";
  EXPECT_NE(error_of({"--results", results_.string()}).find("results.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace sparsellm
