#include <algorithm>
#include <charconv>
#include <memory>
#include <vector>

#include "sparse/expand_matmul.h"
#include "sparse/tca_bme/record_plans.cuh"

namespace sparsellm::tca_bme {
namespace {

constexpr std::string_view kExpand = "expand ";
constexpr std::string_view kDecode = "decode ";

}  // namespace

std::string to_text(const RecordPlan& plan) {
  return plan.expands() ? fmt::format("{}{}", kExpand, plan.piece_rows)
                        : fmt::format("{}{}", kDecode, record_matmul_name(plan.config));
}

std::optional<RecordPlan> plan_from(std::string_view text, const RecordMatrix& matrix,
                                    int64_t tokens) {
  if (text.starts_with(kExpand)) {
    const std::string_view number = text.substr(kExpand.size());
    RecordPlan plan;
    const char* const end = number.data() + number.size();
    const auto [stopped, error] = std::from_chars(number.data(), end, plan.piece_rows);
    const std::vector<int64_t> possible = expand_piece_choices(matrix.rows, matrix.columns, tokens);
    return error == std::errc() && stopped == end &&
                   std::find(possible.begin(), possible.end(), plan.piece_rows) != possible.end()
               ? std::optional(plan)
               : std::nullopt;
  }
  if (text.starts_with(kDecode)) {
    const std::string_view name = text.substr(kDecode.size());
    for (const RecordMatmulConfig& config : record_matmul_candidates(matrix, tokens)) {
      if (record_matmul_name(config) == name) {
        return RecordPlan{.piece_rows = 0, .config = config};
      }
    }
  }
  return std::nullopt;
}

std::string RecordKey::text() const {
  return fmt::format("{} x {}, {} chunks of {}, {} %, {} to {}, {} tokens", rows, columns, chunks,
                     pair ? "pairs" : "single values", percent, name_of(dtype), name_of(y), tokens);
}

RecordPlans& RecordPlans::of(CudaContext::State& cuda) {
  if (cuda.record_plans == nullptr) {
    cuda.record_plans = std::make_unique<RecordPlans>();
  }
  return static_cast<RecordPlans&>(*cuda.record_plans);
}

const RecordPlan* RecordPlans::find(const RecordKey& key) const {
  const auto found = plans_.find(key);
  return found == plans_.end() ? nullptr : &found->second;
}

}  // namespace sparsellm::tca_bme
