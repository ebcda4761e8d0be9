#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparse/general_sparse/format/chunks.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::general_sparse {

// A matrix without zeros among its values, and how it is to be encoded.
struct EncoderInput {
  EncoderInput(const CompressedRows& matrix, const Layout& valid_layout)
      : m(matrix), layout(valid_layout), grid(layout, m.rows(), m.columns()) {}

  int64_t first_row(int64_t group) const { return group * layout.shared_rows; }
  int64_t rows_of(int64_t group) const;  // of which the last group may lack some

  const CompressedRows& m;
  Layout layout;
  ChunkGrid grid;
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
  void count_entries(const Chunk& first_chunk);
  void sort_groups(std::span<const uint32_t> lengths);

  const EncoderInput& input_;
  std::vector<uint32_t> lengths_;  // [panels][groups], entries
  std::vector<uint64_t> keys_;     // of one chunk
  std::vector<uint32_t> slice_units_;
  std::vector<uint16_t> order_;
};

}  // namespace sparsellm::general_sparse
