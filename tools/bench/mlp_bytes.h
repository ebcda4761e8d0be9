#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "tools/bench/mlp_contender.h"
#include "tools/bench/mlp_reference.h"

namespace sparsellm {

inline bool reads_signs(MlpPart part) { return part == MlpPart::predictor || is_whole(part); }
int64_t sign_bytes_of(const MlpShape& shape);
// Of 32-bit words, one for each word of each row and each token (SparseInfer, section V-A2).
int64_t sign_xors_of(const MlpShape& shape, int64_t tokens);

// Of weights and sign words: those that a part reads, rows that several tokens need once, and those
// that a copy of it has to have.
struct MlpBytes {
  int64_t read = 0;
  int64_t held = 0;
};
MlpBytes bytes_of(MlpSubject subject, const MlpShape& shape, const MlpShares& shares, DType dtype);

}  // namespace sparsellm
