#include "sparse/general_sparse/layout_rule.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "sparse/general_sparse/format/chunks.h"
#include "sparse/general_sparse/general_sparse.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int64_t kUsualPanel = 4096;  // columns
constexpr int64_t kWidestPanel = 65536;
constexpr int64_t kUsualWindow = 256;  // groups
constexpr int kInterleavedGroups = 32;
constexpr std::array kSharedRowCounts{1, 2, 4, 8};

// What layouts are chosen by.
struct MatrixFacts {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t value_bytes = 0;
  const RowStatistics& statistics;

  bool has_at_least(double density) const {
    return static_cast<double>(statistics.nonzeros) >=
           density * static_cast<double>(rows) * static_cast<double>(columns);
  }
  // Without bridges and fillers.
  int64_t entries(int shared_rows) const {
    for (const RowStatistics::SharedPositions& shared : statistics.shared) {
      if (shared.rows == shared_rows) {
        return shared.blocks;
      }
    }
    return statistics.nonzeros;
  }
  // Of a group in a chunk.
  double mean_entries(const Layout& layout) const {
    const ChunkGrid grid(layout, rows, columns);
    return static_cast<double>(entries(layout.shared_rows)) /
           static_cast<double>(std::max<int64_t>(grid.places(), 1));
  }
};

// What no encoding of the layout is smaller than.
int64_t least_bytes(const MatrixFacts& m, const Layout& layout) {
  const ChunkGrid grid(layout, m.rows, m.columns);
  const int64_t entries = m.entries(layout.shared_rows);
  const int64_t positions = layout.positions == PositionCode::bits ? grid.words() : entries;
  return grid.slices() * size_of(DType::u32) +
         (layout.sorted ? grid.places() * size_of(DType::u16) : 0) +
         positions * size_of(dtype_of(layout.positions)) +
         entries * layout.shared_rows * m.value_bytes;
}

Layout with_shared_rows(Layout layout, int shared_rows) {
  layout.shared_rows = shared_rows;
  layout.window_rows = kUsualWindow * shared_rows;
  return layout;
}

// Positions, panels and shared rows.
Layout choose_positions(const MatrixFacts& m) {
  constexpr double kBitsDensity = 0.25;
  constexpr double kFewEntries = 16.0;  // in a chunk: its start and its end begin to count
  constexpr double kShortGap = 60.0;    // on average; less than 2 % of random ones are above 255
  constexpr int64_t kBridgeShare = 32;
  const RowStatistics& s = m.statistics;
  Layout layout =
      with_shared_rows({.positions = PositionCode::u16, .panel_columns = kUsualPanel}, 1);
  if (m.has_at_least(kBitsDensity)) {
    layout.positions = PositionCode::bits;
  } else {
    if (m.columns > kUsualPanel && m.mean_entries(layout) < kFewEntries) {
      layout.panel_columns = m.columns <= kWidestPanel ? kWidestPanel : 0;
    }
    if (layout.panel_columns == 0) {
      layout.positions = PositionCode::u32;
    } else if (s.mean_gap < kShortGap && s.bridges + s.first_bridges <= s.nonzeros / kBridgeShare) {
      layout.positions = PositionCode::u8;
    }
  }
  Layout best = layout;
  for (const int shared_rows : kSharedRowCounts) {
    const Layout shared = with_shared_rows(layout, shared_rows);
    best = least_bytes(m, shared) < least_bytes(m, best) ? shared : best;
  }
  return best;
}

// As many entries as a lane can load at once without many fillers.
int choose_vector(const MatrixFacts& m, const Layout& layout) {
  constexpr int64_t kMostLoadBytes = 16;
  constexpr double kEntriesForEach = 16.0;
  int vector = 1;
  while (vector < 8 && 2 * vector * layout.shared_rows * m.value_bytes <= kMostLoadBytes &&
         2 * vector * kEntriesForEach <= m.mean_entries(layout)) {
    vector *= 2;
  }
  return vector;
}

struct CountedLayout {
  Layout layout;
  int64_t bytes = 0;
};

}  // namespace

Layout choose_layout(const CompressedRows& m, const RowStatistics& statistics, LayoutFor goal,
                     ThreadPool& threads) {
  constexpr int64_t kMostBytesPercent = 115;  // of interleaved groups
  const MatrixFacts facts{.rows = m.rows(),
                          .columns = m.columns(),
                          .value_bytes = size_of(m.dtype()),
                          .statistics = statistics};
  const auto counted = [&](const Layout& layout) {
    return CountedLayout{.layout = layout, .bytes = encoded_size(m, layout, threads)};
  };
  Layout apart = choose_positions(facts);
  apart.vector = choose_vector(facts, apart);
  Layout interleaved = apart;
  interleaved.sorted = true;
  interleaved.interleave = kInterleavedGroups;
  const CountedLayout one = counted(apart);
  const CountedLayout many = counted(interleaved);
  CountedLayout best = 100 * many.bytes <= kMostBytesPercent * one.bytes ? many : one;
  if (goal == LayoutFor::speed) {
    return best.layout;
  }
  const auto try_layout = [&](const Layout& layout) {
    if (least_bytes(facts, layout) < best.bytes) {
      const CountedLayout another = counted(layout);
      best = another.bytes < best.bytes ? another : best;
    }
  };
  for (const PositionCode code :
       {PositionCode::bits, PositionCode::u8, PositionCode::u16, PositionCode::u32}) {
    for (const int shared_rows : kSharedRowCounts) {
      Layout layout = with_shared_rows(
          {.positions = code, .panel_columns = code == PositionCode::u32 ? 0 : kWidestPanel},
          shared_rows);
      try_layout(layout);
      layout.interleave = kInterleavedGroups;
      try_layout(layout);
      layout.sorted = true;
      try_layout(layout);
    }
  }
  return best.layout;
}

}  // namespace sparsellm::general_sparse
