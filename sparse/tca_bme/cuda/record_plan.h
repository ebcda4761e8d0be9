#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "sparse/tca_bme/cuda/record_matmul_cuda.h"
#include "sparse/tca_bme/cuda/record_wgmma_cuda.h"

namespace sparsellm::tca_bme {

// Expanding this many rows at once (sparse/expand_matmul.h).
struct RecordExpansion {
  int64_t piece_rows = 0;
  bool overlapped = true;

  bool operator==(const RecordExpansion&) const = default;
};

// How a product is computed: by expansion, or by decoding records for 64 tokens at a time
// (record_matmul_cuda()) or for larger tiles of tokens by warpgroups (record_wgmma_cuda()).
using RecordPlan = std::variant<RecordExpansion, RecordMatmulConfig, RecordWgmmaConfig>;

// "expand <rows>", with ", one after the other" for pieces that are not overlapped, "decode
// <configuration>" or "wgmma <configuration>", and back; nothing for other text, and for what
// cannot be chosen for such a product.
std::string to_text(const RecordPlan& plan);
std::optional<RecordPlan> plan_from(std::string_view text, const RecordMatrix& matrix,
                                    int64_t tokens);

}  // namespace sparsellm::tca_bme
