#include "sparse/general_sparse/host/arrange.h"

#include <algorithm>
#include <atomic>

#include "sparse/general_sparse/bits/row_counts.h"
#include "sparse/general_sparse/format/encoded_size.h"
#include "sparse/general_sparse/host/shared_columns.h"
#include "sparse/general_sparse/host/word_bits.h"

namespace sparsellm::general_sparse {

namespace {

void add_entries_of_rows(const CompressedRows& m, const Layout& layout, const ChunkGrid& grid,
                         int64_t window, std::span<uint32_t> lengths) {
  const Chunk first_chunk = grid.chunk(window, 0);
  const bool bridged = has_differences(layout.positions);
  const int64_t most = most_difference(layout.positions);
  for (int64_t g = 0; g < first_chunk.groups; ++g) {
    int64_t panel = -1;
    int64_t before = 0;
    uint32_t* length = nullptr;
    for_each_shared_column(m, layout.shared_rows, first_chunk.first_group + g,
                           [&](uint32_t column, const ColumnNonzeros&) {
                             if (const int64_t of = grid.panel_of(column); of != panel) {
                               panel = of;
                               before = of * layout.panel_columns;
                               length = lengths.data() + of * first_chunk.groups + g;
                             }
                             *length += 1;
                             if (bridged) {
                               *length += static_cast<uint32_t>(bridges_of(column - before, most));
                               before = column;
                             }
                           });
  }
}

void add_entries_of_bits(const RowBits& m, const Layout& layout, const ChunkGrid& grid,
                         int64_t window, std::span<uint32_t> lengths) {
  const int most =
      has_differences(layout.positions) ? static_cast<int>(most_difference(layout.positions)) : 0;
  auto length = lengths.begin();
  for (int64_t panel = 0; panel < grid.panels(); ++panel) {
    const Chunk chunk = grid.chunk(window, panel);
    for (int64_t g = 0; g < chunk.groups; ++g) {
      *length++ += count_entries<HostWordBits>(
          group_bits(m, layout.shared_rows, chunk, chunk.first_group + g), most);
    }
  }
}

}  // namespace

EncoderInput::EncoderInput(const CompressedRows& m, const Layout& valid_layout)
    : layout(valid_layout),
      grid(layout, m.rows(), m.columns()),
      add_entries([&m, of = layout, chunks = grid](int64_t window, std::span<uint32_t> lengths) {
        add_entries_of_rows(m, of, chunks, window, lengths);
      }) {}

EncoderInput::EncoderInput(const RowBits& m, const Layout& valid_layout)
    : layout(valid_layout),
      grid(layout, m.rows, m.columns),
      add_entries([&m, of = layout, chunks = grid](int64_t window, std::span<uint32_t> lengths) {
        add_entries_of_bits(m, of, chunks, window, lengths);
      }) {}

void WindowArranger::arrange(int64_t window) {
  const Layout& layout = input_.layout;
  const Chunk first_chunk = input_.grid.chunk(window, 0);
  lengths_.assign(static_cast<size_t>(input_.grid.panels() * first_chunk.groups), 0);
  input_.add_entries(window, lengths_);
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

int64_t encoded_size(const EncoderInput& input, DType dtype, ThreadPool& threads) {
  std::atomic<int64_t> units = 0;
  threads.parallel_for(input.grid.windows(), 1, [&](int64_t begin, int64_t end) {
    WindowArranger arranger(input);
    int64_t of_range = 0;
    for (int64_t window = begin; window < end; ++window) {
      arranger.arrange(window);
      for (const uint32_t of_slice : arranger.slice_units()) {
        of_range += of_slice;
      }
    }
    units += of_range;
  });
  return encoded_bytes(input.layout, input.grid, units, dtype);
}

}  // namespace sparsellm::general_sparse
