#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace sparsellm::testing {

// Those of golden_test.cpp: of logits that are listed, and of whole rows.
inline constexpr float kLogitTolerance = 0.01f;
inline constexpr float kRowTolerance = 3e-4f;

using LogitRows = std::map<int64_t, std::vector<float>>;  // by position

// Logits of all positions of a text, of which those from `decode_from` on are computed as if they
// were generated.
LogitRows score(Engine& engine, std::vector<int32_t> text,
                std::optional<int64_t> decode_from = std::nullopt);

void expect_near(const LogitRows& got, const LogitRows& expected, float tolerance);

// Expects the values of the checkpoint's reference.json, whose continuations are greedy; with
// `decoded` all rows but the first are computed as if they were generated.
enum class Rows : uint8_t { prompt, decoded };
struct Tolerances {
  float logits = kLogitTolerance;
  float rows = kRowTolerance;
};
void expect_reference(Engine& engine, const std::filesystem::path& checkpoint,
                      Rows rows = Rows::prompt, const Tolerances& within = {});

}  // namespace sparsellm::testing
