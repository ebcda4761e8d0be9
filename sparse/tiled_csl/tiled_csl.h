#pragma once

#include <cstdint>
#include <string_view>

#include "sparse/format.h"

namespace sparsellm {

// Tiled-CSL (Flash-LLM, Xia et al., VLDB 2024, section 4.3), for values in f16 and bf16: the
// nonzeros of tiles of 128 x 64 elements, each with the place in shared memory where a kernel puts
// it. encode() makes version 2 (format/tile_record.h), about 3 bytes a nonzero. Weights of version
// 1 (v1/paper_layout.h), the paper's layout of 4 bytes, are loaded as well.
//
// NaNs, infinities and subnormals keep their bits; a negative zero becomes a zero. The formula is
// the paper's, 4 (NT + 1) + 4 NNZ bytes with NT tiles.
const WeightFormat& tiled_csl_format();

namespace tiled_csl {

inline constexpr std::string_view kName = "tiled_csl";

// Without parts and nonzeros.
EncodedWeight header_of(int32_t version, DType dtype, int64_t rows, int64_t columns);

}  // namespace tiled_csl
}  // namespace sparsellm
