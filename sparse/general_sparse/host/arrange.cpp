#include "sparse/general_sparse/host/arrange.h"

#include <algorithm>

#include "sparse/general_sparse/host/shared_columns.h"

namespace sparsellm::general_sparse {

int64_t EncoderInput::rows_of(int64_t group) const {
  return std::min<int64_t>(layout.shared_rows, m.rows() - first_row(group));
}

void WindowArranger::arrange(int64_t window) {
  const Layout& layout = input_.layout;
  const Chunk first_chunk = input_.grid.chunk(window, 0);
  count_entries(first_chunk);
  slice_units_.clear();
  order_.clear();
  const auto groups = static_cast<size_t>(first_chunk.groups);
  for (size_t begin = 0; begin < lengths_.size(); begin += groups) {
    const auto of_chunk = std::span<const uint32_t>(lengths_).subspan(begin, groups);
    if (layout.sorted) {
      sort_groups(of_chunk);
    }
    const uint16_t* const order = order_.data() + (layout.sorted ? begin : 0);
    const auto lanes = static_cast<size_t>(layout.interleave);
    for (size_t place = 0; place < groups; place += lanes) {
      uint32_t longest = 0;
      for (size_t i = place; i < std::min(place + lanes, groups); ++i) {
        longest = std::max(longest, of_chunk[layout.sorted ? order[i] : i]);
      }
      slice_units_.push_back(static_cast<uint32_t>(ceil_div(longest, layout.vector)));
    }
  }
}

void WindowArranger::count_entries(const Chunk& first_chunk) {
  const ChunkGrid& grid = input_.grid;
  lengths_.assign(static_cast<size_t>(grid.panels() * first_chunk.groups), 0);
  const bool bridged = has_differences(input_.layout.positions);
  const int64_t most = most_difference(input_.layout.positions);
  for (int64_t g = 0; g < first_chunk.groups; ++g) {
    const int64_t group = first_chunk.first_group + g;
    int64_t panel = -1;
    int64_t before = 0;
    uint32_t* length = nullptr;
    for_each_shared_column(input_.m, input_.first_row(group), input_.rows_of(group),
                           [&](uint32_t column, const ColumnNonzeros&) {
                             if (const int64_t of = grid.panel_of(column); of != panel) {
                               panel = of;
                               before = of * input_.layout.panel_columns;
                               length = lengths_.data() + of * first_chunk.groups + g;
                             }
                             *length += 1;
                             if (bridged) {
                               *length += static_cast<uint32_t>(bridges_of(column - before, most));
                               before = column;
                             }
                           });
  }
}

void WindowArranger::sort_groups(std::span<const uint32_t> lengths) {
  keys_.clear();
  for (size_t g = 0; g < lengths.size(); ++g) {
    keys_.push_back(uint64_t{~lengths[g]} << 32 | g);  // ascending keys, descending lengths
  }
  std::sort(keys_.begin(), keys_.end());
  for (const uint64_t key : keys_) {
    order_.push_back(static_cast<uint16_t>(key));
  }
}

}  // namespace sparsellm::general_sparse
