#include "kernels/base/error.h"
#include "sparse/tca_bme/cuda/record_plan.h"

namespace sparsellm::tca_bme {
namespace {

constexpr std::string_view kDecode = "decode ";
constexpr std::string_view kWgmma = "wgmma ";

std::string_view values_text(const RecordKey& key) {
  switch (key.elements) {
    case RecordElements::halves:
      return key.pair ? "pairs" : "single values";
    case RecordElements::i8:
      return key.dense ? "dense i8" : "i8";
    case RecordElements::f8:
      return "f8";
    case RecordElements::i4:
      return key.dense ? "dense i4" : "i4";
  }
  return "?";
}

}  // namespace

std::string to_text(const RecordPlan& plan) {
  if (const auto* expansion = std::get_if<Expansion>(&plan)) {
    return sparsellm::to_text(*expansion);
  }
  if (const auto* config = std::get_if<RecordWgmmaConfig>(&plan)) {
    return fmt::format("{}{}", kWgmma, record_wgmma_name(*config));
  }
  return fmt::format("{}{}", kDecode, record_matmul_name(std::get<RecordMatmulConfig>(plan)));
}

std::optional<RecordPlan> plan_from(std::string_view text, const RecordMatrix& matrix,
                                    int64_t tokens) {
  if (text.starts_with(kDecode)) {
    return plan_named<RecordPlan>(record_matmul_candidates(matrix, tokens), record_matmul_name,
                                  text.substr(kDecode.size()));
  }
  if (text.starts_with(kWgmma)) {
    return plan_named<RecordPlan>(record_wgmma_candidates(matrix, tokens), record_wgmma_name,
                                  text.substr(kWgmma.size()));
  }
  return expansion_from(text, matrix.rows, matrix.columns, tokens);
}

std::string RecordKey::text() const {
  return fmt::format("{} x {}, {} chunks of {}, {} %{}, {} to {}, {} tokens{}", rows, columns,
                     chunks, values_text(*this), percent, uneven ? " uneven" : "", name_of(dtype),
                     name_of(y), tokens,
                     launches == Launches::ordinary ? ", ordinary launches" : "");
}

}  // namespace sparsellm::tca_bme
