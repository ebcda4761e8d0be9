#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "sparse/general_sparse/format/layout.h"

namespace sparsellm::general_sparse {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// What a window and a panel have in common, and where in the arrays it is.
struct Chunk {
  int64_t first_group = 0;  // in the matrix
  int64_t groups = 0;
  int64_t slices = 0;
  int64_t first_column = 0;
  int64_t columns = 0;
  int64_t group_words = 0;  // of bits, of a group

  int64_t first_slice = 0;  // in starts
  int64_t first_place = 0;  // in row_order
  int64_t first_word = 0;   // in positions, of bits
};

// Where a slice is.
struct SlicePlace {
  Chunk chunk;
  int64_t in_chunk = 0;  // slices before it
};

// The chunks of a matrix of valid sizes (at most CompressedRows::kMaxSize) in a valid layout:
// nothing here overflows.
class ChunkGrid {
 public:
  ChunkGrid(const Layout& layout, int64_t rows, int64_t columns)
      : interleave_(layout.interleave),
        columns_(columns),
        window_groups_(layout.window_rows / layout.shared_rows),
        panel_columns_(layout.panel_columns == 0 ? std::max<int64_t>(columns, 1)
                                                 : layout.panel_columns),
        panel_shift_(layout.panel_columns == 0
                         ? 63
                         : std::countr_zero(static_cast<uint64_t>(layout.panel_columns))),
        row_words_(layout.positions == PositionCode::bits ? ceil_div(columns, kWordBits) : 0),
        groups_(ceil_div(rows, layout.shared_rows)),
        windows_(ceil_div(groups_, window_groups_)),
        panels_(std::max<int64_t>(ceil_div(columns, panel_columns_), 1)) {}

  static constexpr int64_t kWordBits = 32;

  constexpr int64_t groups() const { return groups_; }
  constexpr int64_t window_groups() const { return window_groups_; }
  constexpr int64_t windows() const { return windows_; }
  constexpr int64_t panels() const { return panels_; }
  constexpr int64_t chunks() const { return windows_ * panels_; }

  // How many slices, places and words of bits the chunks have.
  constexpr int64_t slices() const { return slices_before(windows_, 0); }
  constexpr int64_t places() const { return groups_ * panels_; }
  constexpr int64_t words() const { return slices_in_panels() * interleave_ * row_words_; }

  // Of all panels but the last; of a single one of all columns theirs.
  constexpr int64_t panel_columns() const { return panel_columns_; }
  constexpr int64_t panel_of(int64_t column) const { return column >> panel_shift_; }

  constexpr Chunk chunk(int64_t window, int64_t panel) const {
    Chunk chunk;
    chunk.first_group = window * window_groups_;
    chunk.groups = std::min(window_groups_, groups_ - chunk.first_group);
    chunk.slices = ceil_div(chunk.groups, interleave_);
    chunk.first_column = panel * panel_columns_;
    chunk.columns = std::min(panel_columns_, columns_ - chunk.first_column);
    chunk.first_slice = slices_before(window, panel * chunk.slices);
    chunk.first_place = chunk.first_group * panels_ + panel * chunk.groups;
    if (row_words_ > 0) {  // all panels but the last have whole words
      const int64_t words_before = panel * (panel_columns_ / kWordBits);
      chunk.group_words = ceil_div(chunk.columns, kWordBits);
      chunk.first_word =
          (window * window_slices() * row_words_ + words_before * chunk.slices) * interleave_;
    }
    return chunk;
  }
  // The number of a chunk says where it is stored: after those of lower numbers.
  constexpr Chunk chunk(int64_t number) const { return chunk(number / panels_, number % panels_); }

  // The numbers of slices are those of their starts.
  constexpr SlicePlace slice(int64_t number) const {
    const int64_t of_window = window_slices() * panels_;  // but of the last one
    const int64_t in_window = number % of_window;
    const int64_t slices = chunk(number / of_window, 0).slices;
    return {.chunk = chunk(number / of_window, in_window / slices), .in_chunk = in_window % slices};
  }

 private:
  constexpr int64_t window_slices() const { return window_groups_ / interleave_; }  // of a panel
  constexpr int64_t slices_in_panels() const { return ceil_div(groups_, interleave_); }
  // All windows but the last have equally many.
  constexpr int64_t slices_before(int64_t window, int64_t in_window) const {
    return std::min(window * window_slices(), slices_in_panels()) * panels_ + in_window;
  }

  int64_t interleave_;
  int64_t columns_;
  int64_t window_groups_;
  int64_t panel_columns_;
  int panel_shift_;
  int64_t row_words_;  // of bits
  int64_t groups_;
  int64_t windows_;
  int64_t panels_;
};

}  // namespace sparsellm::general_sparse
