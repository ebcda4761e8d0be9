#include "tools/bench/mlp_bytes.h"

namespace sparsellm {
namespace {

bool reads_up(MlpPart part) { return part == MlpPart::rows || is_whole(part); }
bool reads_down(MlpPart part) { return part == MlpPart::down || is_whole(part); }

}  // namespace

int64_t sign_bytes_of(const MlpShape& shape) {
  return shape.neurons * sign_word_count(shape.hidden) * size_of(DType::u32);
}

int64_t sign_xors_of(const MlpShape& shape, int64_t tokens) {
  return tokens * shape.neurons * sign_word_count(shape.hidden);
}

MlpBytes bytes_of(MlpSubject subject, const MlpShape& shape, const MlpShares& shares, DType dtype) {
  const MlpPart part = subject.part;
  const int64_t row = shape.hidden * size_of(dtype);
  const int64_t all = (shape.up_rows() + shape.neurons) * row;
  if (part == MlpPart::dense) {
    return {.read = all, .held = all};
  }
  // Of the projections after the first.
  const bool skips_zeros = part != MlpPart::ablated || skips_actual_zeros(subject.variant);
  const int64_t later = skips_zeros ? shares.active_union : shares.first_union;
  MlpBytes bytes;
  const auto add = [&](bool reads, int64_t read, int64_t held) {
    bytes.read += reads ? read : 0;
    bytes.held += reads ? held : 0;
  };
  add(reads_signs(part), sign_bytes_of(shape), sign_bytes_of(shape));
  add(reads_up(part), (shares.first_union + (shape.gated ? later : 0)) * row,
      shape.up_rows() * row);
  add(reads_down(part), later * row, shape.neurons * row);
  return bytes;
}

}  // namespace sparsellm
