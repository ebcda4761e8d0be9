#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"
#include "sparse/general_sparse/bits/row_bits.h"
#include "sparse/general_sparse/format/chunks.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::general_sparse {

// How a matrix is to be encoded, and how long its groups are then.
struct EncoderInput {
  // A matrix without zeros among its values.
  EncoderInput(const CompressedRows& m, const Layout& valid_layout);
  EncoderInput(const RowBits& m, const Layout& valid_layout);

  Layout layout;
  ChunkGrid grid;
  // Adds the entries of the groups of a window, those that bridge gaps included, to zeros
  // [panels][groups].
  std::function<void(int64_t window, std::span<uint32_t> lengths)> add_entries;
};

// Says how long the slices of a window are and in which order its groups are, one window after the
// other with the same memory.
class WindowArranger {
 public:
  explicit WindowArranger(const EncoderInput& input) : input_(input) {}

  void arrange(int64_t window);

  // Of the window, panel after panel, as in the arrays of an encoding.
  std::span<const uint32_t> slice_units() const { return slice_units_; }
  std::span<const uint16_t> order() const { return order_; }  // empty if not sorted

 private:
  void sort_groups(std::span<const uint32_t> lengths);

  const EncoderInput& input_;
  std::vector<uint32_t> lengths_;  // [panels][groups], entries
  std::vector<uint64_t> keys_;     // of one chunk
  std::vector<uint32_t> slice_units_;
  std::vector<uint16_t> order_;
};

// The bytes of all parts of the encoding, also where starts do not reach all entries: takes a small
// part of the time of encode().
int64_t encoded_size(const EncoderInput& input, DType dtype, ThreadPool& threads);

}  // namespace sparsellm::general_sparse
