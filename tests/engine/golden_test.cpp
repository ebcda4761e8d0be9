// The engine against the values in the checkpoints' reference.json, which were computed
// independently.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/mapped_file.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/sanitized.h"
#include "tools/eval/perplexity.h"

namespace sparsellm {
namespace {

constexpr float kTolerance = 0.01f;
// For whole rows of logits: exact GELU and its tanh form differ by a few times this.
constexpr float kTightTolerance = 3e-4f;

// In sanitizer builds the perplexity is that of the beginning of the text, which has no reference
// value.
constexpr size_t kTextBytes = testing::kSanitized ? 4'000 : std::string::npos;
constexpr double kPerplexityTolerance = testing::kSanitized ? 0.7 : 0.0002;

Engine load(const std::filesystem::path& directory) {
  EngineOptions options;
  options.max_requests = 8;
  options.with_tokenizer = false;
  return Engine::load(directory, options);
}

// Logits by position; of the whole prompt.
std::map<int64_t, std::vector<float>> prompt_logits(Engine& engine, std::vector<int32_t> prompt) {
  std::map<int64_t, std::vector<float>> logits;
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = 0;
  request.score_prompt = true;
  request.on_logits = [&logits](int64_t position, std::span<const float> values) {
    logits[position].assign(values.begin(), values.end());
  };
  const std::vector<Completion> done = engine.generate({request});
  EXPECT_EQ(done.front().error, "");
  return logits;
}

std::vector<int32_t> largest_ids(const std::vector<float>& logits, size_t count) {
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i);
  }
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
                    [&](int32_t a, int32_t b) {
                      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
                    });
  ids.resize(count);
  return ids;
}

std::string test_name(const ::testing::TestParamInfo<std::filesystem::path>& info) {
  std::string name = info.param.filename().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

class Golden : public ::testing::TestWithParam<std::filesystem::path> {};
INSTANTIATE_TEST_SUITE_P(Checkpoints, Golden, ::testing::ValuesIn(testing::all_checkpoints()),
                         test_name);

TEST_P(Golden, LogitsAfterThePrompt) {
  Engine engine = load(GetParam());
  for (const auto& reference : testing::read_reference(GetParam()).greedy) {
    const auto last = static_cast<int64_t>(reference.ids.size()) - 1;
    const std::vector<float> logits = prompt_logits(engine, reference.ids).at(last);
    const std::vector<int32_t> top = largest_ids(logits, reference.top5_ids.size());
    for (size_t i = 0; i < reference.top5_ids.size(); ++i) {
      const auto id = static_cast<size_t>(reference.top5_ids[i]);
      EXPECT_NEAR(logits[id], reference.top5_logits[i], kTolerance);
      const bool clear_before =
          i == 0 || reference.top5_logits[i - 1] - reference.top5_logits[i] > kTolerance;
      const bool clear_after = i + 1 == reference.top5_logits.size() ||
                               reference.top5_logits[i] - reference.top5_logits[i + 1] > kTolerance;
      if (clear_before && clear_after) {
        EXPECT_EQ(top[i], reference.top5_ids[i]) << "rank " << i;
      }
    }
    for (size_t id = 0; id < reference.last_logits.size(); ++id) {
      ASSERT_NEAR(logits[id], reference.last_logits[id], kTightTolerance) << "token " << id;
    }
  }
}

TEST_P(Golden, ReferenceContinuationIsGreedy) {
  Engine engine = load(GetParam());
  for (const auto& reference : testing::read_reference(GetParam()).greedy) {
    std::vector<int32_t> tokens = reference.ids;
    tokens.insert(tokens.end(), reference.output_ids.begin(), reference.output_ids.end());
    const auto logits = prompt_logits(engine, tokens);
    for (size_t i = reference.ids.size(); i < tokens.size(); ++i) {
      const std::vector<float>& row = logits.at(static_cast<int64_t>(i) - 1);
      const float largest = *std::max_element(row.begin(), row.end());
      ASSERT_FALSE(std::isnan(largest));
      EXPECT_GE(row[static_cast<size_t>(tokens[i])], largest - kTolerance) << "position " << i;
    }
  }
}

// Free-running, until a step whose two largest logits are too close to tell.
TEST_P(Golden, GreedyContinuation) {
  Engine engine = load(GetParam());
  int64_t compared = 0;
  for (const auto& reference : testing::read_reference(GetParam()).greedy) {
    Request request;
    request.prompt = reference.ids;
    request.max_tokens = static_cast<int64_t>(reference.output_ids.size());
    request.ignore_eos = true;
    std::vector<float> gaps;
    request.on_logits = [&gaps](int64_t, std::span<const float> values) {
      std::vector<float> sorted(values.begin(), values.end());
      std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
      gaps.push_back(sorted[0] - sorted[1]);
    };
    const std::vector<Completion> done = engine.generate({request});
    ASSERT_EQ(done.front().tokens.size(), reference.output_ids.size());
    for (size_t i = 0; i < gaps.size() && gaps[i] > kTolerance; ++i) {
      ASSERT_EQ(done.front().tokens[i], reference.output_ids[i]) << "token " << i;
      ++compared;
    }
  }
  EXPECT_GE(compared, 60);
}

class TrainedGolden : public ::testing::TestWithParam<std::filesystem::path> {};
INSTANTIATE_TEST_SUITE_P(Checkpoints, TrainedGolden,
                         ::testing::ValuesIn(testing::trained_checkpoints()), test_name);

TEST_P(TrainedGolden, Perplexity) {
  EngineOptions options;
  options.context_size = 512;
  options.max_requests = 8;
  Engine engine = Engine::load(GetParam(), options);
  const std::string text =
      read_text_file(testing::data("text/peter_pan.txt"), int64_t{1} << 30).substr(0, kTextBytes);
  const Perplexity result =
      measure_perplexity(engine, text, 512, PerplexityProtocol::windows, [](int64_t, int64_t) {});
  const double expected = testing::read_reference(GetParam()).perplexity.value();
  EXPECT_NEAR(result.perplexity, expected, kPerplexityTolerance * expected);
  EXPECT_EQ(result.tokens, result.windows * 511);
}

TEST_P(TrainedGolden, TextOfTheContinuation) {
  Engine engine = Engine::load(GetParam(), {});
  for (const auto& reference : testing::read_reference(GetParam()).greedy) {
    ASSERT_EQ(engine.tokenizer().encode(*reference.prompt, {}), reference.ids);
    Request request;
    request.prompt = reference.ids;
    request.max_tokens = static_cast<int64_t>(reference.output_ids.size());
    const std::vector<Completion> done = engine.generate({request});
    EXPECT_EQ(*reference.prompt + done.front().text, *reference.text);
  }
}

}  // namespace
}  // namespace sparsellm
