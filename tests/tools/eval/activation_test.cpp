// What sparsellm-eval activation measures, against a forward pass in numpy.

#include "tools/eval/activation.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/mapped_file.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tools/eval/perplexity.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::TempDir;
using testing::throws_error;
using Mode = ActivationSparsity::Mode;

constexpr int64_t kContext = 40;

// tiny/opt_gelu, with ReLU.
fs::path relu_model(const TempDir& folder) {
  fs::copy(testing::data("tiny/opt_gelu"), folder.path() / "opt_relu");
  std::string config = read_text_file(testing::data("tiny/opt_gelu/config.json"), 1 << 20);
  const std::string from = R"("activation_function": "gelu")";
  config.replace(config.find(from), from.size(), R"("activation_function": "relu")");
  folder.write("opt_relu/config.json", config);
  return folder.path() / "opt_relu";
}

EngineOptions options_of(NeuronStatistics& statistics, int threads = 2) {
  EngineOptions options;
  options.context_size = kContext;
  options.threads = threads;
  options.activation_sparsity.mode = Mode::exact;
  options.neuron_observer = &statistics;
  return options;
}

json measure(const fs::path& model, NeuronStatistics& statistics, int threads) {
  Engine engine = Engine::load(model, options_of(statistics, threads));
  const std::string text = read_text_file(testing::data("text/peter_pan.txt"), 1 << 20);
  const Perplexity scored = measure_perplexity(
      engine, text.substr(0, 1500), kContext, PerplexityProtocol::windows, [](int64_t, int64_t) {},
      ScoredRows::decode);
  EXPECT_EQ(scored.tokens, 897);
  JsonWriter writer;
  writer.object();
  add_neurons(statistics, writer);
  writer.end();
  return json::parse(std::move(writer).text());
}

// The figures are those of
//   cd tests/tools/eval; MODEL=../../data/tiny/opt_gelu
//   head -c 1500 ../../data/text/peter_pan.txt > TEXT
//   python3 sign_votes_reference.py --model $MODEL --relu --text TEXT --context 40 --votes VOTES
// with --alpha ALPHA --json.
// Sums in another order may turn the sign of a neuron, which is one of 64,584 in a layer.
TEST(NeuronStatistics, AreThoseOfNumpy) {
  struct Figures {
    double skipped, precision, recall;
  };
  struct Case {
    Votes votes;
    size_t alpha;  // index
    Figures layers[2];
  };
  const std::vector<Case> cases{
      {Votes::sign,
       0,
       {{0.6238542053759445, 0.6672706063388846, 0.825883943108162},
        {0.5935835501052892, 0.6476679883138564, 0.8051952263588014}}},
      {Votes::sign,
       1,
       {{0.48524402328750155, 0.7247199974472702, 0.6976929929653181},
        {0.44704570791527315, 0.7088875034635633, 0.6637371902970554}}},
      {Votes::weighted,
       0,
       {{0.6185742598786077, 0.7265832290362954, 0.8916843301692624},
        {0.5748637433420042, 0.7124734021062838, 0.8578285121286807}}},
      {Votes::weighted,
       1,
       {{0.5240462033940295, 0.7815925542916236, 0.8126132768101251},
        {0.4757370246500681, 0.7713588283157038, 0.7685821766766118}}},
  };
  const double kZeros[] = {0.504041248606466, 0.4774557165861514};
  const TempDir folder;
  const fs::path model = relu_model(folder);
  for (const Case& c : cases) {
    NeuronStatistics statistics(2, c.votes, {0.95f, 1.0f});
    const json report = measure(model, statistics, 2);
    for (size_t layer = 0; layer < 2; ++layer) {
      const json& found = report.at("layers").at(layer);
      const json& at_alpha = found.at("alphas").at(c.alpha);
      const Figures& expected = c.layers[layer];
      EXPECT_NEAR(found.at("zeros").get<double>(), kZeros[layer], 5e-5);
      EXPECT_NEAR(at_alpha.at("skipped").get<double>(), expected.skipped, 5e-5);
      EXPECT_NEAR(at_alpha.at("precision").get<double>(), expected.precision, 1e-4);
      EXPECT_NEAR(at_alpha.at("recall").get<double>(), expected.recall, 1e-4);
    }
  }
}

TEST(NeuronStatistics, DoNotDependOnThreads) {
  const TempDir folder;
  const fs::path model = relu_model(folder);
  NeuronStatistics one(2, Votes::weighted);
  NeuronStatistics three(2, Votes::weighted);
  const json report = measure(model, one, 1);
  EXPECT_EQ(report, measure(model, three, 3));
  // 23 windows: no step has the rows of 32.
  const json& unions = report.at("all").at("unions");
  ASSERT_EQ(unions.size(), 5u);
  EXPECT_NEAR(unions[0].at("active").get<double>(),
              1.0 - report.at("all").at("zeros").get<double>(), 1e-12);
  for (size_t i = 1; i < unions.size(); ++i) {
    EXPECT_GT(unions[i].at("active"), unions[i - 1].at("active"));
  }
  const std::string tables = neuron_tables(one);
  EXPECT_NE(tables.find("\nalpha 1\nlayer   zeros  skipped  precision  recall\n    0  0.5040   "),
            std::string::npos)
      << tables;
  EXPECT_NE(tables.find("\n  all  0.5093  0.6761  0.8067  0.8919  0.9480       -\n"),
            std::string::npos)
      << tables;
}

TEST(NeuronStatistics, NeedExactNeuronsOnTheCpu) {
  const TempDir folder;
  const fs::path model = relu_model(folder);
  NeuronStatistics statistics(2, Votes::sign);
  EngineOptions options = options_of(statistics);
  options.activation_sparsity = {.mode = Mode::predict,
                                 .alpha = ActivationSparsityRequest::Alpha{}};
  EXPECT_TRUE(throws_error([&] { Engine::load(model, options); },
                           "exact on the CPU, not with predict on cpu"));
  options.activation_sparsity = {};
  EXPECT_TRUE(throws_error([&] { Engine::load(model, options); }, "not with off on cpu"));
}

}  // namespace
}  // namespace sparsellm
