#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "sparse/product_plan.h"
#include "sparse/tca_bme/cuda/record_matmul_cuda.h"
#include "sparse/tca_bme/cuda/record_wgmma_cuda.h"

namespace sparsellm::tca_bme {

// How a product is computed: by expansion, or by decoding records for 64 tokens at a time
// (record_matmul_cuda()) or for larger tiles of tokens by warpgroups (record_wgmma_cuda()).
using RecordPlan = std::variant<Expansion, RecordMatmulConfig, RecordWgmmaConfig>;

// The text of an expansion, "decode <configuration>" or "wgmma <configuration>", and back; nothing
// for other text, and for what cannot be chosen for such a product.
std::string to_text(const RecordPlan& plan);
std::optional<RecordPlan> plan_from(std::string_view text, const RecordMatrix& matrix,
                                    int64_t tokens);

// What the choice of a plan depends on.
struct RecordKey {
  int64_t rows = 0;
  int64_t columns = 0;
  int chunks = 0;
  bool pair = false;
  RecordElements elements = RecordElements::halves;
  bool dense = false;   // without bitmaps
  int64_t percent = 0;  // of nonzeros, rounded; 0 if dense, where they do not count
  bool uneven = false;  // some records are much larger than the others (RecordSizes)
  DType dtype = DType::f16;
  DType y = DType::f16;
  int64_t tokens = 0;  // their bucket
  Launches launches = Launches::overlapping;

  std::string text() const;  // for files
  auto operator<=>(const RecordKey&) const = default;
};

}  // namespace sparsellm::tca_bme
