// sparsellm-bench throughput on a GPU: random weights with shares of neurons that are zero.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/weights/random_weights.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paths.h"
#include "tests/tools/bench/report_tables.h"
#include "tools/bench/random_sparsity.h"
#include "tools/bench/throughput.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using nlohmann::json;

class BenchThroughput : public GpuTest {};
INSTANTIATE_TEST_SUITE_P(Gpu, BenchThroughput, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// As on the CPU, whose choices of alphas and thresholds these are. Eight rows are more than go by
// neurons without tuning.
TEST_P(BenchThroughput, ReachesTheSharesOfNeurons) {
  for (const char* name : {"fable-llama-relu-8m", "fable-opt-8m"}) {
    SCOPED_TRACE(name);
    const std::filesystem::path file = data("models") / name / "config.json";
    const RandomWeights weights{.dtype = GetParam(), .seed = 3};
    ThreadPool threads(2);
    const ActivationSparsity chosen =
        choose_random_sparsity(read_model_config_file(file), weights,
                               {.predicted = 0.8, .zeros = 0.9}, Votes::weighted, threads);
    EngineOptions engine;
    engine.device = kGpu;
    engine.max_requests = 8;
    engine.context_size = 64;
    engine.with_tokenizer = false;
    engine.traces = true;
    engine.activation_sparsity = {.mode = chosen.mode,
                                  .votes = chosen.votes,
                                  .alphas = chosen.alphas,
                                  .thresholds = chosen.thresholds};
    ThroughputOptions options;
    options.batches = {1, 8};
    options.prompt = 5;
    options.output = 20;
    options.repeats = 2;
    options.read_bandwidth = 1e10;
    options.breakdown = [](const Engine& of) { return of.decode_seconds(); };
    Report report;
    bench_throughput(
        options, [&](int64_t) { return Engine::load_random(file, weights, engine); },
        report.writer());
    for (const json& row : report.table("throughput")) {
      EXPECT_GT(row.at("decode_ms"), 0.0);
      EXPECT_TRUE(row.at("note").is_null());
    }
    const json neurons = report.table("activation sparsity");
    ASSERT_EQ(neurons.size(), 2u);
    const json& row = neurons.at(1);
    EXPECT_GT(row.at("rows"), 0);
    for (const char* of : {"min", "mean", "max"}) {
      const auto percent = [&](const char* share) {
        return row.at(fmt::format("{}_{}_percent", share, of)).get<double>();
      };
      EXPECT_NEAR(percent("predicted"), 80.0, 5.0) << of;
      EXPECT_NEAR(percent("zeros"), 90.0, 4.0) << of;
    }
    std::set<std::string> groups;
    for (const json& part : report.table("breakdown")) {
      groups.insert(part.at("group").get<std::string>());
    }
    EXPECT_TRUE(groups.contains("MLP predictor"));
    EXPECT_TRUE(groups.contains("MLP rows"));
  }
}

}  // namespace
}  // namespace sparsellm
