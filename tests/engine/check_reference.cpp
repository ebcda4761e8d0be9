#include "tests/engine/check_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/testing/reference.h"

namespace sparsellm::testing {

LogitRows score(Engine& engine, std::vector<int32_t> text, std::optional<int64_t> decode_from) {
  LogitRows logits;
  Request request;
  request.prompt = std::move(text);
  request.max_tokens = 0;
  request.score_prompt = true;
  request.decode_from = decode_from;
  request.on_logits = [&logits](int64_t position, std::span<const float> values) {
    logits[position].assign(values.begin(), values.end());
  };
  EXPECT_EQ(engine.generate({request}).front().error, "");
  return logits;
}

void expect_near(const LogitRows& got, const LogitRows& expected, float tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [position, row] : expected) {
    ASSERT_EQ(got.at(position).size(), row.size());
    for (size_t id = 0; id < row.size(); ++id) {
      ASSERT_NEAR(got.at(position)[id], row[id], tolerance)
          << "position " << position << ", token " << id;
    }
  }
}

void expect_reference(Engine& engine, const std::filesystem::path& checkpoint, Rows rows,
                      const Tolerances& within) {
  for (const Reference::Greedy& reference : read_reference(checkpoint).greedy) {
    std::vector<int32_t> text = reference.ids;
    text.insert(text.end(), reference.output_ids.begin(), reference.output_ids.end());
    const LogitRows logits = score(
        engine, text, rows == Rows::decoded ? std::optional<int64_t>(1) : std::optional<int64_t>());
    ASSERT_EQ(logits.size(), text.size());
    const std::vector<float>& last = logits.at(std::ssize(reference.ids) - 1);
    for (size_t id = 0; id < reference.last_logits.size(); ++id) {
      ASSERT_NEAR(last[id], reference.last_logits[id], within.rows) << "token " << id;
    }
    for (size_t i = 0; i < reference.top5_ids.size(); ++i) {
      EXPECT_NEAR(last[static_cast<size_t>(reference.top5_ids[i])], reference.top5_logits[i],
                  within.logits);
    }
    for (size_t i = reference.ids.size(); i < text.size(); ++i) {
      const std::vector<float>& row = logits.at(static_cast<int64_t>(i) - 1);
      const float largest = *std::max_element(row.begin(), row.end());
      ASSERT_FALSE(std::isnan(largest));
      EXPECT_GE(row[static_cast<size_t>(text[i])], largest - within.logits) << "position " << i;
    }
  }
}

}  // namespace sparsellm::testing
