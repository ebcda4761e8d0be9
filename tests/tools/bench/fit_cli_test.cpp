// sparsellm-bench fit, which needs neither a GPU nor CUDA.

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

using testing::Outcome;

Outcome fit(const std::string& config, const std::vector<std::string>& more) {
  std::vector<std::string> args{"fit", "--config",
                                (testing::source_dir() / "configs" / (config + ".json")).string()};
  args.insert(args.end(), more.begin(), more.end());
  return testing::run_program("sparsellm-bench", args);
}

nlohmann::json fit_of(const std::string& config, std::vector<std::string> more) {
  more.emplace_back("--json");
  const Outcome outcome = fit(config, more);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

double gib(const nlohmann::json& bytes) { return bytes.get<double>() / (int64_t{1} << 30); }

// SpInfer's figures 13 and 14 (Fan et al., EuroSys 2025): what runs on GPUs of 24 GB.
TEST(BenchFit, HoldsWhatAPaperSaysOfSmallGpus) {
  struct Case {
    const char* config;
    const char* gpus;
    const char* batch;
    const char* output;
  };
  for (const Case& c : {Case{"opt-13b", "1", "8", "1024"}, Case{"opt-30b", "2", "16", "512"},
                        Case{"opt-30b", "2", "8", "1024"}}) {
    SCOPED_TRACE(std::string(c.config) + ", " + c.batch + " x " + c.output);
    const std::vector<std::string> flags{"--sparsity",        "0.6",   "--gpu-memory",   "24G",
                                         "--batch",           c.batch, "--output",       c.output,
                                         "--tensor-parallel", c.gpus,  "--weight-format"};
    const auto in_format = [&](const char* format) {
      std::vector<std::string> all = flags;
      all.emplace_back(format);
      return fit_of(c.config, all);
    };
    EXPECT_EQ(in_format("tca_bme").at("fits"), true);
    EXPECT_EQ(in_format("dense").at("fits"), false);
  }
}

TEST(BenchFit, IsWhatFormulasSay) {
  const std::vector<std::string> size{"--batch", "16", "--output", "256", "--gpu-memory", "141G"};
  const auto of = [&](double sparsity, const char* format) {
    std::vector<std::string> flags = size;
    for (const std::string& flag : {std::string("--sparsity"), std::to_string(sparsity),
                                    std::string("--weight-format"), std::string(format)}) {
      flags.push_back(flag);
    }
    return fit_of("opt-13b", flags);
  };
  const nlohmann::json dense = of(0.0, "dense");
  EXPECT_NEAR(gib(dense.at("weight_bytes")), 23.9, 0.1);
  EXPECT_EQ(dense.at("kv_bytes"), int64_t{16} * (64 + 256) * 40 * 2 * 5120 * 2);
  for (const char* format : {"tca_bme", "tiled_csl", "general_sparse"}) {
    SCOPED_TRACE(format);
    const nlohmann::json sparse = of(0.7, format);
    EXPECT_LT(sparse.at("weight_bytes"), dense.at("weight_bytes"));
    EXPECT_GT(sparse.at("step_bytes"), int64_t{1} << 20);
    EXPECT_LT(of(0.9, format).at("weight_bytes"), sparse.at("weight_bytes"));
    EXPECT_EQ(sparse.at("device"), "a planned GPU");
  }
  EXPECT_EQ(of(0.7, "auto").at("format_choices")[0].at("by"), "rules");
}

TEST(BenchFit, SaysWhatIsMissing) {
  EXPECT_NE(fit("opt-13b", {}).err.find("Give --gpu-memory, e.g. 24G"), std::string::npos);
  const Outcome small = fit("opt-13b", {"--gpu-memory", "24G"});
  EXPECT_EQ(small.exit_code, 0) << small.err;
  EXPECT_NE(small.out.find("This does not fit: "), std::string::npos) << small.out;
  // Pairs take 148.5 GB, single values 103.7.
  const std::vector<std::string> large{"--sparsity",   "0.8",  "--weight-format", "tca_bme",
                                       "--gpu-memory", "141G", "--batch",         "8"};
  EXPECT_NE(fit("opt-175b", large).out.find("This does not fit, but does with --records size.\n"),
            std::string::npos);
  std::vector<std::string> small_records = large;
  small_records.insert(small_records.end(), {"--records", "size"});
  const nlohmann::json fits = fit_of("opt-175b", small_records);
  EXPECT_EQ(fits.at("fits"), true);
  EXPECT_NEAR(fits.at("weight_bytes").get<double>() * 1e-9, 103.7, 1.0);
  const Outcome model = testing::run_program(
      "sparsellm-bench", {"fit", "-m", testing::data("models/fable-llama-relu-8m").string(),
                          "--weight-format", "tca_bme", "--gpu-memory", "1G", "--quiet"});
  EXPECT_EQ(model.exit_code, 0) << model.err;
  EXPECT_NE(model.out.find("tca_bme"), std::string::npos) << model.out;
  const Outcome run = testing::run_program(
      "sparsellm-run",
      {"-m", testing::data("models/fable-llama-relu-8m").string(), "--fit", "--gpu-memory", "24G"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("a planned GPU: 24576.0 MiB"), std::string::npos) << run.out;
}

}  // namespace
}  // namespace sparsellm
