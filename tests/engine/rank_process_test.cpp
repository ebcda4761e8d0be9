// Engines whose ranks are connected as processes are; here each in a thread of the test.

#include "engine/rank_process.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/rank_options.h"
#include "engine/resolve_options.h"
#include "kernels/base/comm_tcp.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::throws_error;

EngineOptions small() {
  EngineOptions options;
  options.max_requests = 2;
  options.step_tokens = 32;
  options.kv_tokens = 256;
  options.with_tokenizer = false;
  options.threads = 2;
  return options;
}

std::vector<Request> requests() {
  std::vector<Request> all(2);
  for (Request& request : all) {
    request.prompt.assign(5 + static_cast<size_t>(&request - all.data()), 3);
    request.max_tokens = 12;
    request.ignore_eos = true;
  }
  return all;
}

// Rank 1, from when rank 0 tells of the engine.
class OtherRank {
 public:
  using Run = std::function<void(const std::string& rank_options, Communicator& comm)>;
  explicit OtherRank(Run run) : run_(std::move(run)) {}
  ~OtherRank() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }
  OtherRank(const OtherRank&) = delete;
  OtherRank& operator=(const OtherRank&) = delete;

  std::unique_ptr<Communicator> meet(const std::string& rank_options) {
    const std::string address = (folder_.path() / "meet").string();
    thread_ = std::thread([this, rank_options, address] {
      const auto comm =
          make_tcp_communicator({.address = address, .rank = 1, .size = 2, .model = "tiny"});
      run_(rank_options, *comm);
    });
    return make_tcp_communicator({.address = address, .rank = 0, .size = 2, .model = "tiny"});
  }
  void met_by(EngineOptions& options) {
    options.tensor_parallel = {.degree = 2,
                               .meet = [this](const std::string& text) { return meet(text); }};
  }

 private:
  testing::TempDir folder_;
  Run run_;
  std::thread thread_;
};

TEST(RankProcess, TheTokensOfThreads) {
  const auto directory = testing::data("tiny/llama3");
  EngineOptions options = small();
  options.tensor_parallel.degree = 2;
  const std::vector<Completion> expected = Engine::load(directory, options).generate(requests());
  OtherRank other([&](const std::string& text, Communicator& comm) {
    run_rank(OpenDirectory(directory), EngineOptions(), text, comm);
  });
  other.met_by(options);
  Engine engine = Engine::load(directory, options);
  const std::vector<Completion> got = engine.generate(requests());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].error, "");
    EXPECT_EQ(got[i].tokens, expected[i].tokens);
  }
}

// Whatever format it comes to: rank 0 says.
TEST(RankProcess, RandomWeights) {
  const auto config = testing::data("tiny/opt_gelu/config.json");
  EngineOptions options = small();
  options.weight_format = "auto";
  const RandomWeights weights{.sparsity = 0.7, .seed = 3, .format = "auto"};
  options.tensor_parallel.degree = 2;
  const std::vector<Completion> expected =
      Engine::load_random(config, weights, options).generate(requests());
  OtherRank other([&](const std::string& text, Communicator& comm) {
    const auto make = [&](const EngineOptions& of_rank_0) {
      EXPECT_EQ(of_rank_0.weight_format, "auto");
      return weights;
    };
    run_random_rank(config, make, EngineOptions(), text, comm);
  });
  other.met_by(options);
  const std::vector<Completion> got =
      Engine::load_random(config, weights, options).generate(requests());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].tokens, expected[i].tokens);
  }
}

TEST(RankProcess, WhatARankCannotDoEndsTheEngine) {
  const auto directory = testing::data("tiny/llama3");
  EngineOptions options = small();
  {
    OtherRank other([&](const std::string&, Communicator& comm) {
      run_rank(OpenDirectory(directory), EngineOptions(), "{\"degree\": 2}", comm);
    });
    other.met_by(options);
    EXPECT_TRUE(throws_error([&] { Engine::load(directory, options); },
                             "rank 1 (cpu): what rank 0 says of the engine: cuda is missing"));
  }
  {
    OtherRank other([&](const std::string& text, Communicator& comm) {
      EngineOptions own;
      own.device = {.kind = Device::Kind::cuda, .index = 1};
      run_rank(OpenDirectory(directory), own, text, comm);
    });
    other.met_by(options);
    EXPECT_TRUE(throws_error([&] { Engine::load(directory, options); },
                             "rank 1 (cpu): rank 0 runs on the CPU, this one on cuda:1"));
  }
  // What rank 0 can refuse, it refuses before it meets anybody.
  options.context_size = 1 << 30;
  EXPECT_TRUE(throws_error([&] { Engine::load(directory, options); }, "a context of 1073741824"));
}

TEST(RankOptions, AsTheyWere) {
  EngineOptions options;
  options.tensor_parallel = {.degree = 3, .timeout = std::chrono::milliseconds(1500)};
  options.context_size = 100;
  options.max_requests = 7;
  options.step_tokens = 64;
  options.kv_tokens = 640;
  options.kv_bytes = int64_t{1} << 40;
  options.gpu_memory_utilization = 0.5;
  options.deterministic = true;
  options.steps_ahead = 1;
  options.traces = true;
  options.warm_up = true;
  options.threads = 5;
  options.kv_dtype = DType::f16;
  options.dtype = DType::bf16;
  options.weight_format = "tca_bme";
  options.records = "size";
  options.activation_sparsity = {.mode = ActivationSparsity::Mode::predict,
                                 .votes = Votes::sign,
                                 .alpha = ActivationSparsityRequest::Alpha{1.03f, 20},
                                 .alphas = {1.01f, std::nullopt},
                                 .thresholds = {0.1f, 0.0f}};
  options.verify = true;
  options.tuning = Tuning::measured;
  const LayerFormats formats{{"model.layers.0.mlp.down_proj.weight", {"tca_bme", "size"}},
                             {"model.layers.0.mlp.up_proj.weight", {"dense"}}};
  const std::string text = rank_options_text(options, formats);
  EngineOptions own;
  own.tune_cache = "kernels.json";
  own.verify = true;
  const RankOptions read = read_rank_options(text, own);
  EXPECT_EQ(read.options.tune_cache, "kernels.json");
  EXPECT_EQ(read.formats, formats);
  EXPECT_EQ(rank_options_text(read.options, read.formats), text);
  EXPECT_EQ(read.options.activation_sparsity.alphas, options.activation_sparsity.alphas);
  EXPECT_EQ(read.options.kv_bytes, options.kv_bytes);
  EXPECT_EQ(read.options.records, "size");
  own.verify = false;  // another process of the host does it
  EXPECT_FALSE(read_rank_options(text, own).options.verify);
}

TEST(RankOptions, WhatIsNotRightIsRefused) {
  const std::string good = rank_options_text({}, {});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_NO_THROW(read_rank_options(good, {}));
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {"", "what rank 0 says of the engine"},
           {good.substr(0, good.size() - 1), "what rank 0 says of the engine"},
           {with("\"degree\":1", "\"degree\":0"), "degree is 0"},
           {with("\"degree\":1", "\"degree\":100000"), "degree is 100000"},
           {with("\"timeout_ms\":60000", "\"timeout_ms\":0"), "timeout_ms is 0"},
           {with("\"kv_bytes\":0", "\"kv_bytes\":-1"), "kv_bytes is -1"},
           {with("\"dtype\":null", "\"dtype\":\"f8\""), "dtype is \"f8\""},
           {with("\"mode\":null", "\"mode\":\"all\""), "activation_sparsity.mode is \"all\""},
           {with("\"formats\":{}", "\"formats\":{\"a\":1}"), "formats"},
           {with("\"layouts\":{}", "\"layouts\":{\"a\":\"size\"}"),
            "what rank 0 says of the engine: a layout of \"a\", which has no format"},
           {with("\"threads\":0", "\"thread\":0"), "thread"}}) {
    EXPECT_TRUE(throws_error([&text = text] { read_rank_options(text, {}); }, error)) << text;
  }
}

// Before the model is looked at; the devices need not be there.
TEST(RankOptions, DevicesOfThreads) {
  const ModelConfig config = read_model_config(testing::data("tiny/llama3"));
  const auto on = [&](std::vector<int> gpus, int degree) {
    EngineOptions options;
    options.device = {.kind = Device::Kind::cuda, .index = 2};
    options.tensor_parallel.degree = degree;
    for (const int index : gpus) {
      options.tensor_parallel.devices.push_back({.kind = Device::Kind::cuda, .index = index});
    }
    return [=] { config_to_run(config, options); };
  };
  EXPECT_TRUE(throws_error(on({2, 3, 4}, 2), "3 devices for 2 ranks"));
  EXPECT_TRUE(throws_error(on({2, 2}, 2), "two ranks on cuda:2"));
  EXPECT_TRUE(throws_error(on({3, 2}, 2), "a rank on cuda:3 beside one on cuda:2"));
  EXPECT_NO_THROW(on({2, 3}, 2)());
}

}  // namespace
}  // namespace sparsellm
