#include <algorithm>
#include <charconv>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/expand_matmul.h"
#include "sparse/tca_bme/cuda/record_plan.h"

namespace sparsellm::tca_bme {
namespace {

constexpr std::string_view kExpand = "expand ";
constexpr std::string_view kOneByOne = ", one after the other";
constexpr std::string_view kDecode = "decode ";
constexpr std::string_view kWgmma = "wgmma ";

// The one of these configurations that has the name.
template <class Config>
std::optional<RecordPlan> named(const std::vector<Config>& configs,
                                std::string (*text_of)(const Config&), std::string_view name) {
  const auto found = std::find_if(configs.begin(), configs.end(),
                                  [&](const Config& config) { return text_of(config) == name; });
  return found == configs.end() ? std::nullopt : std::optional<RecordPlan>(*found);
}

std::optional<RecordPlan> expansion_of(std::string_view number, const RecordMatrix& matrix,
                                       int64_t tokens) {
  RecordExpansion expansion;
  if (number.ends_with(kOneByOne)) {
    expansion.overlapped = false;
    number.remove_suffix(kOneByOne.size());
  }
  const char* const end = number.data() + number.size();
  const auto [stopped, error] = std::from_chars(number.data(), end, expansion.piece_rows);
  const std::vector<int64_t> possible =
      expansion.overlapped ? expand_piece_choices(matrix.rows, matrix.columns, tokens)
                           : std::vector{expand_single_piece_rows(matrix.rows, matrix.columns)};
  return error == std::errc() && stopped == end &&
                 std::find(possible.begin(), possible.end(), expansion.piece_rows) != possible.end()
             ? std::optional<RecordPlan>(expansion)
             : std::nullopt;
}

}  // namespace

std::string to_text(const RecordPlan& plan) {
  if (const auto* expansion = std::get_if<RecordExpansion>(&plan)) {
    return fmt::format("{}{}{}", kExpand, expansion->piece_rows,
                       expansion->overlapped ? std::string_view() : kOneByOne);
  }
  if (const auto* config = std::get_if<RecordWgmmaConfig>(&plan)) {
    return fmt::format("{}{}", kWgmma, record_wgmma_name(*config));
  }
  return fmt::format("{}{}", kDecode, record_matmul_name(std::get<RecordMatmulConfig>(plan)));
}

std::optional<RecordPlan> plan_from(std::string_view text, const RecordMatrix& matrix,
                                    int64_t tokens) {
  if (text.starts_with(kExpand)) {
    return expansion_of(text.substr(kExpand.size()), matrix, tokens);
  }
  if (text.starts_with(kDecode)) {
    return named(record_matmul_candidates(matrix, tokens), record_matmul_name,
                 text.substr(kDecode.size()));
  }
  if (text.starts_with(kWgmma)) {
    return named(record_wgmma_candidates(matrix, tokens), record_wgmma_name,
                 text.substr(kWgmma.size()));
  }
  return std::nullopt;
}

}  // namespace sparsellm::tca_bme
