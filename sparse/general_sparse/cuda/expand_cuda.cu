#include <algorithm>
#include <cstdint>

#include "kernels/base/launch.cuh"
#include "sparse/general_sparse/cuda/expand_cuda.h"
#include "sparse/general_sparse/format/chunks.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int kThreads = 256;

struct ExpandParameters {
  const uint32_t* starts;
  const uint16_t* row_order;  // null: in order
  const void* positions;
  const uint16_t* values;
  uint16_t* dense;
  int64_t first_row;  // of dense
  int64_t end_row;
  int64_t columns;
  int64_t groups;
  int64_t panel_columns;
  int64_t panels;
  int64_t window_groups;
  int64_t first_window;
  int64_t last_panel_words;  // of bits, of a group
  int shared_rows;
  int interleave;
  int vector;
};

// The entries of a group in a chunk, as EntryNumbers counts them (format/parts.h).
struct GroupEntries {
  int64_t first_unit;
  int64_t count;
  int64_t lane;
  int interleave;
  int vector;

  __device__ int64_t operator()(int64_t entry) const {
    return ((first_unit + entry / vector) * interleave + lane) * vector + entry % vector;
  }
};

// f(position, number of the entry) for those that the group has; fillers may be among them.
template <PositionCode kCode, class F>
__device__ void for_each_entry(const ExpandParameters& p, const GroupEntries& entries,
                               int64_t first_word, int64_t words, F&& f) {
  if constexpr (kCode == PositionCode::bits) {
    const auto* const bits = static_cast<const uint32_t*>(p.positions);
    int64_t entry = 0;
    for (int64_t w = 0; w < words; ++w) {
      for (uint32_t word = bits[first_word + w * p.interleave]; word != 0; word &= word - 1) {
        f(w * 32 + __ffs(static_cast<int>(word)) - 1, entries(entry++));
      }
    }
  } else {
    int64_t position = 0;
    for (int64_t entry = 0; entry < entries.count; ++entry) {
      const int64_t number = entries(entry);
      if constexpr (kCode == PositionCode::u8) {
        position += static_cast<const uint8_t*>(p.positions)[number];
      } else if constexpr (kCode == PositionCode::i8) {
        position += static_cast<const int8_t*>(p.positions)[number];
      } else if constexpr (kCode == PositionCode::u16) {
        position = static_cast<const uint16_t*>(p.positions)[number];
      } else {
        position = static_cast<const uint32_t*>(p.positions)[number];
      }
      f(position, number);
    }
  }
}

// A thread has a group of a chunk. Zeros are there already: fillers share the position of a
// nonzero.
template <PositionCode kCode>
__global__ void __launch_bounds__(kThreads) expand_kernel(const ExpandParameters p) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t chunk = at / p.window_groups;
  const int64_t place = at % p.window_groups;
  const int64_t window = p.first_window + chunk / p.panels;
  const int64_t panel = chunk % p.panels;
  const int64_t first_group = window * p.window_groups;
  const int64_t groups = min(p.window_groups, p.groups - first_group);
  if (place >= groups) {  // or there is no such window
    return;
  }
  const int64_t slices = (groups + p.interleave - 1) / p.interleave;
  const int64_t slice = place / p.interleave;
  const int64_t stored =
      window * (p.window_groups / p.interleave) * p.panels + panel * slices + slice;
  const int64_t begin = p.starts[stored];
  const GroupEntries entries{.first_unit = begin,
                             .count = (p.starts[stored + 1] - begin) * p.vector,
                             .lane = place % p.interleave,
                             .interleave = p.interleave,
                             .vector = p.vector};
  const int64_t full_words = p.panel_columns / 32;
  const int64_t words = panel + 1 < p.panels ? full_words : p.last_panel_words;
  const int64_t words_before = window * (p.window_groups / p.interleave) *
                                   ((p.panels - 1) * full_words + p.last_panel_words) +
                               panel * full_words * slices + slice * words;
  const int64_t group =
      first_group + (p.row_order != nullptr
                         ? p.row_order[first_group * p.panels + panel * groups + place]
                         : place);
  const int64_t first_column = panel * p.panel_columns;
  for_each_entry<kCode>(p, entries, words_before * p.interleave + entries.lane, words,
                        [&](int64_t position, int64_t number) {
                          for (int r = 0; r < p.shared_rows; ++r) {
                            const uint16_t value = p.values[number * p.shared_rows + r];
                            const int64_t row = group * p.shared_rows + r;
                            if (value != 0 && row >= p.first_row && row < p.end_row) {
                              p.dense[(row - p.first_row) * p.columns + first_column + position] =
                                  value;
                            }
                          }
                        });
}

}  // namespace

void expand_cuda(const DeviceEncoding& e, Range rows, void* dense, const ExecContext& ctx) {
  require(size_of(e.dtype) == sizeof(uint16_t), "general_sparse: {} is not expanded on CUDA",
          name_of(e.dtype));
  const int64_t bytes = rows.count * e.columns * size_of(e.dtype);
  if (bytes == 0) {
    return;
  }
  check_cuda(cudaMemsetAsync(dense, 0, static_cast<size_t>(bytes), cuda_queue(ctx).stream));
  const ChunkGrid grid(e.layout, e.rows, e.columns);
  const int64_t last_columns = e.columns - (grid.panels() - 1) * grid.panel_columns();
  const int64_t first_window = rows.begin / e.layout.window_rows;
  const int64_t windows = ceil_div(rows.begin + rows.count, e.layout.window_rows) - first_window;
  const ExpandParameters p{.starts = static_cast<const uint32_t*>(e.starts.data()),
                           .row_order = static_cast<const uint16_t*>(e.row_order.data()),
                           .positions = e.positions.data(),
                           .values = static_cast<const uint16_t*>(e.values.data()),
                           .dense = static_cast<uint16_t*>(dense),
                           .first_row = rows.begin,
                           .end_row = rows.begin + rows.count,
                           .columns = e.columns,
                           .groups = grid.groups(),
                           .panel_columns = grid.panel_columns(),
                           .panels = grid.panels(),
                           .window_groups = grid.window_groups(),
                           .first_window = first_window,
                           .last_panel_words = ceil_div(last_columns, ChunkGrid::kWordBits),
                           .shared_rows = e.layout.shared_rows,
                           .interleave = e.layout.interleave,
                           .vector = e.layout.vector};
  const auto kernel = [&] {
    switch (e.layout.positions) {
      case PositionCode::u8:
        return expand_kernel<PositionCode::u8>;
      case PositionCode::i8:
        return expand_kernel<PositionCode::i8>;
      case PositionCode::u16:
        return expand_kernel<PositionCode::u16>;
      case PositionCode::u32:
        return expand_kernel<PositionCode::u32>;
      case PositionCode::bits:
        break;
    }
    return expand_kernel<PositionCode::bits>;
  }();
  const int64_t threads = windows * grid.panels() * grid.window_groups();
  launch(ctx, kernel,
         {.blocks = static_cast<unsigned>(ceil_div(threads, kThreads)), .threads = kThreads}, p);
}

}  // namespace sparsellm::general_sparse
