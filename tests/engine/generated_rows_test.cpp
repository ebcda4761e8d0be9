// Which rows of a step count as generated, from the request down to the MLP.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/step_runner.h"
#include "models/builders.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::throws_error;

// By position, bit for bit.
using Logits = std::map<int64_t, std::vector<uint32_t>>;

std::vector<int32_t> random_ids(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random() % 90);
  }
  return ids;
}

// What a pass of the decoder was given.
struct Pass {
  std::vector<int32_t> positions;
  int64_t requests;
  int64_t generated;
};

// Gives generated rows half of what it gives others, and keeps what it is told.
class UnequalMlp : public Mlp {
 public:
  UnequalMlp(std::unique_ptr<Mlp> mlp, std::vector<Pass>* passes)
      : mlp_(std::move(mlp)), passes_(passes) {}

  void forward(const Tensor& x, const PagedBatch& batch, Tensor y,
               ExecContext& ctx) const override {
    mlp_->forward(x, batch, y, ctx);
    for (int64_t row = 0; row < batch.generated; ++row) {
      float* const values = y.row<float>(row);
      std::transform(values, values + y.size(1), values, [](float value) { return value / 2; });
    }
    if (passes_ != nullptr) {
      const auto* const positions = batch.positions.data<int32_t>();
      passes_->push_back({.positions = {positions, positions + batch.tokens()},
                          .requests = batch.requests(),
                          .generated = batch.generated});
    }
  }
  int64_t workspace_bytes(int64_t tokens, DType dtype, Sums sums) const override {
    return mlp_->workspace_bytes(tokens, dtype, sums);
  }
  std::vector<const Linear*> linears() const override { return mlp_->linears(); }

 private:
  std::unique_ptr<Mlp> mlp_;
  std::vector<Pass>* passes_;
};

// A small Llama with such MLPs, in an engine on the CPU.
class UnequalModel {
 public:
  explicit UnequalModel(EngineOptions options) : config_(read_model_config(directory())) {
    const Checkpoint checkpoint(directory());
    CheckpointLoader weights(checkpoint, {}, std::nullopt, {});
    const ArchitectureBuilder builder = llama_builder();
    Decoder::Parts parts;
    parts.embedding = builder.embedding(config_, weights);
    parts.rope_frequencies = load_rope_frequencies(config_, weights);
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      parts.layers.push_back(builder.layer(config_, i, weights));
      std::unique_ptr<Mlp>& mlp = parts.layers.back().mlp;
      mlp = std::make_unique<UnequalMlp>(std::move(mlp), i == 0 ? &passes_ : nullptr);
    }
    parts.final_norm = builder.final_norm(config_, weights);
    parts.head = load_head(config_, parts.embedding.tokens.view, weights);
    weights.finish();
    decoder_ = std::make_unique<Decoder>(std::move(parts), DType::f32);
    options.with_tokenizer = false;
    options.threads = 1;
    options.wrap_runner = [this, runner = runner_options(options, config_)](auto) {
      return make_cpu_runner(*decoder_, runner);
    };
    engine_ = std::make_unique<Engine>(Engine::load(directory(), options));
  }

  Engine& engine() { return *engine_; }
  const std::vector<Pass>& passes() const { return passes_; }

 private:
  static std::filesystem::path directory() { return testing::data("tiny/llama3"); }

  ModelConfig config_;
  std::vector<Pass> passes_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Engine> engine_;
};

struct Result {
  std::vector<int32_t> tokens;
  Logits logits;
  size_t prompt_log_probs = 0;
};

// Of requests that run together.
std::vector<Result> run(Engine& engine, std::vector<Request> requests) {
  std::vector<Result> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_logits = [&result = results[i]](int64_t position,
                                                   std::span<const float> logits) {
      std::vector<uint32_t>& bits = result.logits[position];
      EXPECT_TRUE(bits.empty()) << "position " << position << " again";
      std::transform(logits.begin(), logits.end(), std::back_inserter(bits),
                     [](float logit) { return std::bit_cast<uint32_t>(logit); });
    };
  }
  const std::vector<Completion> done = engine.generate(std::move(requests));
  for (size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].error, "");
    results[i].tokens = done[i].tokens;
    results[i].prompt_log_probs = done[i].prompt_log_probs.size();
  }
  EXPECT_EQ(engine.free_pages(), engine.total_pages());
  return results;
}

Request greedy(std::vector<int32_t> prompt, int64_t max_tokens) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 0.0f},
          .max_tokens = max_tokens,
          .ignore_eos = true};
}

Request scored(std::vector<int32_t> text, std::optional<int64_t> decode_from) {
  Request request = greedy(std::move(text), 0);
  request.score_prompt = true;
  request.decode_from = decode_from;
  return request;
}

constexpr int64_t kPrompt = 21;

std::vector<Request> crowd() {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) {
    requests.push_back(greedy(random_ids(kPrompt, i), 40));
  }
  return requests;
}

// Of passes for requests whose tokens from `first` on are generated.
void expect_generated_from(int64_t first, const std::vector<Pass>& passes) {
  for (const Pass& pass : passes) {
    for (int64_t row = 0; row < std::ssize(pass.positions); ++row) {
      ASSERT_EQ(pass.positions[static_cast<size_t>(row)] >= first, row < pass.generated);
    }
  }
}

// In a pass that only does this some request has several rows.
bool recomputes_generated(const std::vector<Pass>& passes) {
  return std::ranges::any_of(passes, [](const Pass& pass) {
    return pass.generated == std::ssize(pass.positions) && pass.generated > pass.requests;
  });
}

TEST(GeneratedRows, AreTheSameAfterPreemption) {
  UnequalModel roomy({});
  const std::vector<Result> expected = run(roomy.engine(), crowd());
  EXPECT_EQ(roomy.engine().stats().preemptions, 0);
  expect_generated_from(kPrompt, roomy.passes());
  EXPECT_FALSE(recomputes_generated(roomy.passes()));
  for (int steps_ahead : {0, 1}) {
    for (int64_t step_tokens : {7, 64}) {
      EngineOptions options;
      options.max_requests = 6;
      options.steps_ahead = steps_ahead;
      options.step_tokens = step_tokens;
      options.kv_tokens = 128;
      UnequalModel crowded(options);
      const std::vector<Result> got = run(crowded.engine(), crowd());
      EXPECT_GT(crowded.engine().stats().preemptions, 0);
      expect_generated_from(kPrompt, crowded.passes());
      EXPECT_TRUE(recomputes_generated(crowded.passes()));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].tokens, expected[i].tokens);
        EXPECT_TRUE(got[i].logits == expected[i].logits) << i;
      }
      // Without listeners, rows are planned whose tokens are not known yet.
      const int64_t before = crowded.engine().stats().preemptions;
      const std::vector<Completion> silent = crowded.engine().generate(crowd());
      EXPECT_GT(crowded.engine().stats().preemptions, before);
      expect_generated_from(kPrompt, crowded.passes());
      for (size_t i = 0; i < silent.size(); ++i) {
        EXPECT_EQ(silent[i].tokens, expected[i].tokens);
      }
    }
  }
}

// What was generated has the same logits when it is given as text: alone, and in a crowd that the
// KV cache has no room for.
TEST(GeneratedRows, AreThoseOfATextFromDecodeFromOn) {
  UnequalModel model({});
  const std::vector<Result> generated = run(model.engine(), crowd());
  std::vector<Request> texts = crowd();
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<int32_t> text = std::move(texts[i].prompt);
    text.insert(text.end(), generated[i].tokens.begin(), generated[i].tokens.end() - 1);
    texts[i] = scored(std::move(text), kPrompt);
  }
  const auto expect_same = [&](const std::vector<Result>& results) {
    for (size_t i = 0; i < results.size(); ++i) {
      Logits logits = results[i].logits;
      EXPECT_EQ(std::erase_if(logits, [](const auto& row) { return row.first + 1 < kPrompt; }),
                static_cast<size_t>(kPrompt - 1));
      EXPECT_TRUE(logits == generated[i].logits) << i;
    }
  };
  for (const Request& text : texts) {
    Request dense = text;
    dense.decode_from.reset();
    const Logits prompt = run(model.engine(), {dense}).front().logits;
    const Logits forced = run(model.engine(), {text}).front().logits;
    EXPECT_TRUE(prompt.at(kPrompt - 1) == forced.at(kPrompt - 1));
    EXPECT_FALSE(prompt.at(kPrompt) == forced.at(kPrompt));
  }
  expect_same(run(model.engine(), texts));
  for (int steps_ahead : {0, 1}) {
    EngineOptions options;
    options.max_requests = 5;
    options.steps_ahead = steps_ahead;
    options.step_tokens = 9;
    options.kv_tokens = 160;
    UnequalModel crowded(options);
    std::vector<Request> longer = texts;
    for (Request& text : longer) {
      text.max_tokens = 30;
    }
    const std::vector<Result> results = run(crowded.engine(), longer);
    EXPECT_GT(crowded.engine().stats().preemptions, 0);
    EXPECT_TRUE(recomputes_generated(crowded.passes()));
    expect_generated_from(kPrompt, crowded.passes());
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].tokens.front(), generated[i].tokens.back());
      for (const auto& [position, logits] : generated[i].logits) {
        EXPECT_TRUE(results[i].logits.at(position) == logits) << i << ", " << position;
      }
    }
  }
}

// The samples of a request decode for themselves, and share what comes before.
TEST(GeneratedRows, OfSamplesThatShareAPrompt) {
  UnequalModel model({});
  Request request = greedy(random_ids(70, 3), 5);
  request.decode_from = 40;
  const std::vector<int32_t> expected = model.engine().generate({request}).front().tokens;
  request.samples = 3;
  for (const Completion& done : model.engine().generate({request})) {
    EXPECT_EQ(done.tokens, expected);
  }
  EXPECT_EQ(model.engine().stats().shared_tokens, 2 * 32);
  expect_generated_from(40, model.passes());
}

// Where nothing treats generated rows in another way, they have the logits of a prompt.
TEST(DecodeFrom, HasTheLogitsOfAPromptInOneGo) {
  for (const std::filesystem::path& directory : testing::tiny_checkpoints()) {
    SCOPED_TRACE(directory);
    EngineOptions options;
    options.with_tokenizer = false;
    options.max_requests = 8;
    options.threads = 2;
    Engine engine = Engine::load(directory, options);
    const std::vector<int32_t> text = random_ids(45, 1);
    std::vector<Request> requests{scored(text, {})};
    for (int64_t decode_from : {1, 2, 16, 17, 44, 45}) {
      requests.push_back(scored(text, decode_from));
    }
    for (Request& request : requests) {
      request.max_tokens = 3;
      request.log_probs = 1;
      request.prompt_log_probs = true;
    }
    const std::vector<Result> results = run(engine, requests);
    EXPECT_EQ(results.front().logits.size(), 47u);
    for (const Result& result : results) {
      EXPECT_EQ(result.tokens, results.front().tokens);
      EXPECT_TRUE(result.logits == results.front().logits);
      EXPECT_EQ(result.prompt_log_probs, 44u);
    }
  }
}

// One row a step of every request, together.
TEST(DecodeFrom, IsOneRowAStep) {
  UnequalModel model({});
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 32; ++i) {
    requests.push_back(scored(random_ids(30, i), 4));
  }
  run(model.engine(), requests);
  ASSERT_EQ(model.passes().size(), 27u);
  EXPECT_EQ(model.passes().front().positions.size(), 32u * 4);
  EXPECT_EQ(model.passes().front().generated, 0);
  for (size_t i = 1; i < model.passes().size(); ++i) {
    EXPECT_EQ(model.passes()[i].positions, std::vector<int32_t>(32, static_cast<int32_t>(i) + 3));
    EXPECT_EQ(model.passes()[i].generated, 32);
  }
  EXPECT_EQ(model.engine().stats().prefill_tokens, 32 * 4);
  EXPECT_EQ(model.engine().stats().decode_tokens, 32 * 26);
}

TEST(DecodeFrom, IsInThePrompt) {
  EngineOptions options;
  options.with_tokenizer = false;
  options.context_size = 32;
  options.kv_tokens = 16;
  Engine engine = Engine::load(testing::data("tiny/llama3"), options);
  const auto forced = [](int64_t prompt, int64_t decode_from, int64_t max_tokens = 0) {
    Request request = greedy(random_ids(prompt, 1), max_tokens);
    request.decode_from = decode_from;
    return request;
  };
  for (int64_t good : {1, 8}) {
    EXPECT_NO_THROW(engine.submit(forced(8, good), {}));
  }
  for (int64_t bad : {int64_t{-1}, int64_t{0}, int64_t{33}, INT64_MIN, INT64_MAX}) {
    const Request request = forced(8, bad);
    const std::string message =
        fmt::format("decode_from {}; use 1 to the length of the prompt, which is at most 32", bad);
    EXPECT_TRUE(throws_error([&] { engine.submit(request, {}); }, message));
    EXPECT_TRUE(throws_error([&] { engine.check(request); }, message));
  }
  const Request behind = forced(8, 9);
  EXPECT_NO_THROW(engine.check(behind));
  EXPECT_TRUE(throws_error([&] { engine.submit(behind, {}); },
                           "decode_from 9; use 1 to the length of the prompt, which is 8"));
  // No prompt that is long enough fits.
  EXPECT_TRUE(throws_error([&] { engine.check(forced(0, 17)); }, "does not fit the KV cache"));
  EXPECT_TRUE(throws_error([&] { engine.check(forced(8, 32, 1)); }, "at most 31"));
}

}  // namespace
}  // namespace sparsellm
