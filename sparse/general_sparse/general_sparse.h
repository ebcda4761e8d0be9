#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "sparse/encoded_weight.h"
#include "sparse/format.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm {

// general_sparse, version 1: the layouts that GeneralSparse (Wang et al., ATC 2025) searches, of
// which a rule chooses (layout_rule.h). For f16, bf16 and f32; NaN, infinities and subnormals are
// kept bit by bit, a negative zero becomes a zero. Slices and joins have the layout of what they
// are made of. formula_bytes() is that of the paper's compressed rows: the value and a column of 32
// bits for each nonzero, and 32-bit starts of rows.
const WeightFormat& general_sparse_format();

}  // namespace sparsellm

// Encodings of general_sparse (format/layout.h) on the host.
namespace sparsellm::general_sparse {

// Zeros among the values of m are left out. The same bytes whatever the number of threads. Throws
// Error for a layout that is not valid, and for more entries than starts of 32 bits reach.
EncodedWeight encode(const CompressedRows& m, const Layout& layout, ThreadPool& threads);

// The same of a dense matrix of f16, bf16 or f32 in host memory.
EncodedWeight encode(const Tensor& w, const Layout& layout, ThreadPool& threads);
// In the layout of choose_layout().
EncodedWeight encode(const Tensor& w, LayoutFor goal, ThreadPool& threads);

// Checks everything that a file may have wrong. Throws Error that names the part and the place in
// it. What follows takes it for granted.
void validate(const EncodedWeight& e, ThreadPool& threads);

OwnedTensor decode(const EncodedWeight& e, ThreadPool& threads);
CompressedRows to_compressed_rows(const EncodedWeight& e, ThreadPool& threads);

// Part of a matrix in the same layout, by copies: rows that begin and end at borders of windows,
// or at the end of all, columns at those of panels; nothing elsewhere. What encode() makes of what
// it decodes to, if encode() made e.
std::optional<EncodedWeight> slice_rows(const EncodedWeight& e, Range rows);
std::optional<EncodedWeight> slice_columns(const EncodedWeight& e, Range columns);
// Likewise of matrices one below the other, which have one layout: all but the last, and those
// without rows, whose layout may be any, have whole windows. Throws Error unless all have equally
// many columns and one dtype.
std::optional<EncodedWeight> concat_rows(std::span<const EncodedWeight* const> parts);

}  // namespace sparsellm::general_sparse
