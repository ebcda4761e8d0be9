// A model of six heads, three of keys and values, that three and six ranks share unevenly, in all
// forms that its weights may have.

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/conversion/convert.h"
#include "engine/engine.h"
#include "engine/neuron_statistics.h"
#include "kernels/base/error.h"
#include "kernels/base/neuron_observer.h"
#include "tests/engine/check_reference.h"
#include "tests/engine/request_bits.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::RequestBits;
using testing::run_bits;
using testing::sampled_crowd;
using testing::throws_error;
using Mode = ActivationSparsity::Mode;

constexpr int kDegrees[] = {1, 3, 6};
constexpr const char* kFormats[] = {"dense", "tiled_csl", "tca_bme"};

fs::path six_heads() { return testing::data("tiny/llama_six_heads"); }

EngineOptions options_for(int degree, const std::string& format = {}) {
  EngineOptions options;
  options.tensor_parallel.degree = degree;
  options.weight_format = format;
  options.max_requests = 6;
  options.step_tokens = 64;
  options.kv_tokens = 1024;
  options.with_tokenizer = false;
  return options;
}

ActivationSparsityRequest predict(float alpha) {
  return {.mode = Mode::predict, .alpha = ActivationSparsityRequest::Alpha{.value = alpha}};
}

// Pruned in the same way whatever the format: not at all, or by magnitude.
void convert(const fs::path& output, const std::string& format, double sparsity = 0.0) {
  const PruneSettings settings{.method = parse_prune_method(sparsity > 0.0 ? "magnitude" : "none"),
                               .sparsity = sparsity};
  convert_model(
      {.input = six_heads(), .output = output, .plan = SparsityPlan::uniform(settings, format)});
}

TEST(UnevenShares, HaveTheValuesOfTheWholeModel) {
  const testing::TempDir folder;
  for (const std::string format : kFormats) {
    const fs::path converted = folder.path() / format;
    convert(converted, format);
    for (const int degree : kDegrees) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", format, degree));
      Engine plain = Engine::load(six_heads(), options_for(degree, format));
      testing::expect_reference(plain, six_heads());
      Engine as_stored = Engine::load(converted, options_for(degree));
      testing::expect_reference(as_stored, six_heads());
      const std::vector<int32_t> text = sampled_crowd()[3].prompt;
      EXPECT_EQ(testing::score(as_stored, text), testing::score(plain, text));
    }
  }
}

// Around the densities at which records change their layout.
TEST(UnevenShares, OfPrunedWeights) {
  const testing::TempDir folder;
  const std::vector<int32_t> text = sampled_crowd()[5].prompt;
  for (const double sparsity : {0.65, 0.79}) {
    const fs::path dense = folder.path() / fmt::format("dense{}", sparsity);
    convert(dense, "dense", sparsity);
    Engine one = Engine::load(dense, options_for(1));
    const testing::LogitRows expected = testing::score(one, text);
    for (const std::string format : {"tiled_csl", "tca_bme"}) {
      const fs::path converted = folder.path() / fmt::format("{}{}", format, sparsity);
      convert(converted, format, sparsity);
      for (const int degree : kDegrees) {
        SCOPED_TRACE(fmt::format("{} at {}, {} ranks", format, sparsity, degree));
        Engine engine = Engine::load(converted, options_for(degree));
        testing::expect_near(testing::score(engine, text), expected, testing::kRowTolerance);
      }
    }
  }
}

TEST(UnevenShares, ExactNeuronsHaveTheValuesOfTheWholeModel) {
  for (const ActivationSparsityRequest& request :
       {ActivationSparsityRequest{.mode = Mode::exact}, predict(1e30f)}) {
    std::optional<NeuronCounts> counts;  // of one rank
    for (const int degree : kDegrees) {
      SCOPED_TRACE(degree);
      EngineOptions options = options_for(degree);
      options.activation_sparsity = request;
      Engine engine = Engine::load(six_heads(), options);
      testing::expect_reference(engine, six_heads(), testing::Rows::decoded);
      const NeuronCounts found = engine.stats().neurons;
      counts = counts.value_or(found);
      EXPECT_GT(found.active, 0);
      EXPECT_EQ(found.active, counts->active);
      EXPECT_EQ(found.skipped, counts->skipped);
      EXPECT_EQ(found.neurons, counts->neurons);
    }
  }
}

TEST(UnevenShares, PredictedNeuronsAreThoseOfOneRank) {
  const std::vector<int32_t> text = sampled_crowd()[5].prompt;
  EngineOptions options = options_for(1);
  options.activation_sparsity = predict(1.05f);
  Engine one = Engine::load(six_heads(), options);
  const testing::LogitRows expected = testing::score(one, text, 1);
  const NeuronCounts counts = one.stats().neurons;
  EXPECT_GT(counts.skipped_share(), 0.1);
  EXPECT_LT(counts.skipped_share(), 0.9);
  for (const int degree : {3, 6}) {
    SCOPED_TRACE(degree);
    options.tensor_parallel.degree = degree;
    for (const std::string format : {"", "tca_bme"}) {  // MLPs are dense all the same
      options.weight_format = format;
      Engine engine = Engine::load(six_heads(), options);
      testing::expect_near(testing::score(engine, text, 1), expected, testing::kRowTolerance);
      EXPECT_EQ(engine.stats().neurons.skipped, counts.skipped);
      EXPECT_EQ(engine.stats().neurons.active, counts.active);
      EXPECT_EQ(engine.stats().neurons.neurons, counts.neurons);
    }
  }
}

TEST(UnevenShares, ResultsDependOnTheRequestAlone) {
  struct Case {
    int degree;
    const char* format;
    ActivationSparsityRequest sparsity = {};
  };
  for (const Case& c : {Case{3, "tca_bme"}, Case{6, "tiled_csl"}, Case{6, "dense", predict(1.05f)},
                        Case{3, "dense", {.mode = Mode::exact}}}) {
    SCOPED_TRACE(fmt::format("{}, {} ranks", c.format, c.degree));
    EngineOptions options = options_for(c.degree, c.format);
    options.activation_sparsity = c.sparsity;
    Engine engine = Engine::load(six_heads(), options);
    const std::vector<RequestBits> expected = run_bits(engine, sampled_crowd());
    EXPECT_TRUE(run_bits(engine, sampled_crowd()) == expected);
    EXPECT_EQ(engine.stats().preemptions, 0);
    for (const size_t i : {0, 5}) {
      EXPECT_TRUE(run_bits(engine, {sampled_crowd()[i]}).front() == expected[i]) << i;
    }
    options.kv_tokens = 128;
    options.threads = 1;
    options.steps_ahead = 1;
    Engine crowded = Engine::load(six_heads(), options);
    EXPECT_TRUE(run_bits(crowded, sampled_crowd()) == expected);
    EXPECT_GT(crowded.stats().preemptions, 0);
  }
}

TEST(UnevenShares, DegreesThatAreRefused) {
  const auto refused = [&](int degree, const std::string& line) {
    EXPECT_TRUE(throws_error([&] { Engine::load(six_heads(), options_for(degree)); }, line));
  };
  refused(2, "2 GPUs cannot share 3 heads of keys and values");
  for (const int degree : {4, 5, 12}) {
    refused(degree, fmt::format("{} GPUs cannot share 6 attention heads", degree));
  }
}

// What an observer counts of several ranks is what it counts of one.
TEST(UnevenShares, NeuronsAreObservedOnAllRanks) {
  const auto observe = [](NeuronStatistics& statistics, int degree) {
    EngineOptions options = options_for(degree);
    options.activation_sparsity = {.mode = Mode::exact};
    options.neuron_observer = &statistics;
    Engine engine = Engine::load(six_heads(), options);
    engine.generate(sampled_crowd());
  };
  for (const Votes votes : {Votes::sign, Votes::weighted}) {
    NeuronStatistics one(2, votes);
    observe(one, 1);
    for (const int degree : {3, 6}) {
      SCOPED_TRACE(degree);
      NeuronStatistics all(2, votes);
      observe(all, degree);
      for (size_t i = 0; i < 2; ++i) {
        const NeuronStatistics::Layer& got = all.layers()[i];
        const NeuronStatistics::Layer& expected = one.layers()[i];
        EXPECT_GT(got.votes.zeros(), 0);
        EXPECT_EQ(got.votes.zeros(), expected.votes.zeros());
        EXPECT_EQ(got.votes.active(), expected.votes.active());
        for (const double share : {0.01, 0.05, 0.2}) {
          EXPECT_EQ(got.votes.alpha_for_missed_share(share),
                    expected.votes.alpha_for_missed_share(share));
        }
        for (size_t group = 0; group < got.unions.groups.size(); ++group) {
          EXPECT_EQ(got.unions.groups[group].neurons, expected.unions.groups[group].neurons);
          EXPECT_EQ(got.unions.groups[group].active, expected.unions.groups[group].active);
        }
      }
    }
  }
}

TEST(UnevenShares, ObserversOfOneRankAreRefused) {
  class OfOneRank : public NeuronObserver {
    void observe(const Neurons&, ExecContext&) override {}
  };
  OfOneRank observer;
  EngineOptions options = options_for(3);
  options.activation_sparsity = {.mode = Mode::exact};
  options.neuron_observer = &observer;
  EXPECT_TRUE(throws_error([&] { Engine::load(six_heads(), options); },
                           "these neurons are observed on one rank, not on 3"));
}

}  // namespace
}  // namespace sparsellm
