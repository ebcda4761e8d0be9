#include "sparse/general_sparse/layout_rule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "kernels/base/error.h"
#include "sparse/general_sparse/format/chunks.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int64_t kUsualPanel = 8192;  // columns
// Of a matrix that has one panel: x of 8 tokens, and sums of 16 warps, fit into the 227 KiB that a
// block has on compute capability 9.0.
constexpr int64_t kMostStagedColumns = 11264;
constexpr int64_t kWidestPanel = 65536;
constexpr int64_t kUsualWindow = 256;  // groups
constexpr int64_t kLongWindow = 4096;  // that GPUs sort, too
constexpr int kInterleavedGroups = 32;
constexpr int64_t kLoadBytes = 16;
constexpr std::array kSharedRowCounts{1, 2, 4, 8};

// What layouts are chosen by.
struct MatrixFacts {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t value_bytes = 0;
  const RowStatistics& statistics;

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

// Positions, panels and shared rows of interleaved groups.
Layout choose_positions(const MatrixFacts& m) {
  constexpr double kFewEntries = 16.0;  // in a chunk: its start and its end begin to count
  // On average: the bytes of more nonzeros take longer than conflicts in shared memory.
  constexpr double kShortGap = 6.7;
  constexpr int64_t kBridgeShare = 32;
  const RowStatistics& s = m.statistics;
  Layout layout =
      with_shared_rows({.positions = PositionCode::u16, .panel_columns = kUsualPanel}, 1);
  if (m.columns > kUsualPanel && m.mean_entries(layout) < kFewEntries) {
    layout.panel_columns = m.columns <= kWidestPanel ? kWidestPanel : 0;
  } else if (m.columns > kUsualPanel && m.columns <= kMostStagedColumns) {
    layout.panel_columns = 2 * kUsualPanel;
  }
  if (layout.panel_columns == 0) {
    layout.positions = PositionCode::u32;
  } else if (s.mean_gap < kShortGap && s.bridges + s.first_bridges <= s.nonzeros / kBridgeShare) {
    layout.positions = PositionCode::i8;
  }
  Layout best = layout;
  for (const int shared_rows : kSharedRowCounts) {
    const Layout shared = with_shared_rows(layout, shared_rows);
    best = least_bytes(m, shared) < least_bytes(m, best) ? shared : best;
  }
  return best;
}

// Groups apart, as cuda/row_product.cuh reads them.
Layout apart_layout(const MatrixFacts& m, bool sorted) {
  constexpr double kLongRows = 64.0;  // whose last units have few fillers
  constexpr double kFull = 0.75;      // of the values of shared rows: nonzeros
  Layout layout{.positions = PositionCode::u16,
                .panel_columns = kWidestPanel,
                .window_rows = kUsualWindow,
                .sorted = sorted};
  if (m.columns > kWidestPanel) {
    layout.positions = PositionCode::u32;
    layout.panel_columns = 0;
  }
  const auto nonzeros = static_cast<double>(m.statistics.nonzeros);
  for (const int shared_rows : kSharedRowCounts) {
    if (nonzeros >= kFull * static_cast<double>(m.entries(shared_rows) * shared_rows)) {
      layout = with_shared_rows(layout, shared_rows);
    }
  }
  const bool has_long_rows =
      nonzeros >= kLongRows * static_cast<double>(std::max<int64_t>(m.rows, 1));
  layout.vector = layout.shared_rows == 1 && has_long_rows ? 4 : 1;
  return layout;
}

// As many groups as a warp has threads, side by side, with whole loads of values.
Layout interleaved(Layout layout, int64_t value_bytes) {
  layout.sorted = true;
  layout.interleave = kInterleavedGroups;
  layout.vector = std::max(1, static_cast<int>(kLoadBytes / value_bytes / layout.shared_rows));
  return layout;
}

// Of interleaved groups, before anything is counted: the slices of few nonzeros take longer to
// begin and to end than to be multiplied, and so do copies of many columns of x, or sums of panels.
bool has_enough_for_slices(const MatrixFacts& m, const Layout& layout) {
  constexpr int64_t kFewNonzeros = int64_t{1} << 18;
  constexpr int64_t kFewInWideRows = int64_t{1} << 20;
  return layout.positions != PositionCode::u32 &&
         m.statistics.nonzeros > (m.columns > kUsualPanel ? kFewInWideRows : kFewNonzeros);
}
// By the bytes of that encoding and of one with groups apart.
bool pays_to_interleave(double interleaved_bytes, double bytes) {
  constexpr double kMostBytes = 1.5;
  return interleaved_bytes <= kMostBytes * bytes;
}

struct CountedLayout {
  Layout layout;
  int64_t bytes = 0;
};

// Of slices: the fewer, the more rows they are chosen from.
bool has_many_fillers(const MatrixFacts& m, const CountedLayout& counted) {
  constexpr double kMany = 1.05;  // times the bytes without
  return m.rows > counted.layout.window_rows &&
         static_cast<double>(counted.bytes) >
             kMany * static_cast<double>(least_bytes(m, counted.layout));
}
Layout with_long_windows(Layout layout) {
  layout.window_rows = kLongWindow * layout.shared_rows;
  return layout;
}
// Row slices of an encoding are copied at borders of windows alone, so a little is not enough.
bool saves_fillers(const CountedLayout& longer, const CountedLayout& usual) {
  constexpr double kSaved = 0.97;
  return static_cast<double>(longer.bytes) <= kSaved * static_cast<double>(usual.bytes);
}

// Of `elements` that are nonzeros with the probability `density` each: that none is one, as a
// logarithm.
double log_none(double density, double elements) { return elements * std::log1p(-density); }

// Zeros that bridge the gap before a nonzero: one for each whole `most` of zeros in it.
double expected_bridges(double density, int64_t most) {
  const double none = log_none(density, static_cast<double>(most));
  return none < 0.0 ? std::exp(none) / -std::expm1(none) : 0.0;
}

// The share of the positions of a group in which it has an entry.
double shared_density(double density, int shared_rows) {
  return -std::expm1(log_none(density, shared_rows));
}

RowStatistics expected_statistics(const UniformMatrix& matrix, double density) {
  RowStatistics s{.nonzeros = matrix.nonzeros};
  const auto nonzeros = static_cast<double>(matrix.nonzeros);
  s.mean_gap = matrix.nonzeros == 0 ? 0.0 : 1.0 / density;
  s.bridges = static_cast<int64_t>(nonzeros * expected_bridges(density, RowStatistics::kLongGap));
  for (RowStatistics::SharedPositions& shared : s.shared) {
    const int64_t blocks = ceil_div(matrix.rows, shared.rows) * matrix.columns;
    shared.blocks = static_cast<int64_t>(static_cast<double>(blocks) *
                                         shared_density(density, static_cast<int>(shared.rows)));
  }
  return s;
}

// By how many standard deviations the largest of `count` normally distributed numbers can be
// expected to be above the mean (the limit of extreme value theory; 2 % more at 256).
double expected_largest(double count) {
  if (count < 2.0) {
    return 0.0;
  }
  const double root = std::sqrt(2.0 * std::log(count));
  return std::max(0.0, root + (std::numbers::egamma -
                               0.5 * std::log(4.0 * std::numbers::pi * std::log(count))) /
                                  root);
}

// The expected entries, fillers included, of a window with this number of groups.
double expected_entries(const MatrixFacts& m, const Layout& layout, double density,
                        int64_t groups) {
  const ChunkGrid grid(layout, m.rows, m.columns);
  const auto panels = static_cast<double>(grid.panels());
  const double columns = static_cast<double>(m.columns) / panels;
  const double shared = shared_density(density, layout.shared_rows);
  double length = columns * shared;
  if (has_differences(layout.positions)) {
    length += length * expected_bridges(shared, most_difference(layout.positions));
  }
  const double rounding = 0.5 * (layout.vector - 1);
  if (layout.interleave == 1) {
    return panels * static_cast<double>(groups) * (length + (length > 0.0 ? rounding : 0.0));
  }
  // Each slice is as long as its first group. Those of the slices after the first are as far above
  // the mean as others below it, so the fillers are about the excess of the first.
  const auto slices = static_cast<double>(ceil_div(groups, layout.interleave));
  const double excess =
      expected_largest(static_cast<double>(groups)) * std::sqrt(columns * shared * (1.0 - shared));
  return panels * layout.interleave *
         (slices * length + excess + (length > 0.0 ? slices * rounding : 0.0));
}

double expected_bytes_in(const MatrixFacts& m, const Layout& layout, double density) {
  const ChunkGrid grid(layout, m.rows, m.columns);
  const int64_t full_windows = grid.groups() / grid.window_groups();
  const int64_t last_groups = grid.groups() % grid.window_groups();
  const double entries =
      static_cast<double>(full_windows) *
          expected_entries(m, layout, density, grid.window_groups()) +
      (last_groups == 0 ? 0.0 : expected_entries(m, layout, density, last_groups));
  const double positions =
      layout.positions == PositionCode::bits ? static_cast<double>(grid.words()) : entries;
  return static_cast<double>(std::ssize(to_text(layout)) +
                             (grid.slices() + 1) * size_of(DType::u32) +
                             (layout.sorted ? grid.places() * size_of(DType::u16) : 0)) +
         positions * static_cast<double>(size_of(dtype_of(layout.positions))) +
         entries * static_cast<double>(layout.shared_rows * m.value_bytes);
}

}  // namespace

int64_t expected_uniform_bytes(const UniformMatrix& matrix, DType dtype) {
  const double elements = static_cast<double>(matrix.rows) * static_cast<double>(matrix.columns);
  const double density = elements > 0.0 ? static_cast<double>(matrix.nonzeros) / elements : 0.0;
  const RowStatistics statistics = expected_statistics(matrix, density);
  const MatrixFacts facts{.rows = matrix.rows,
                          .columns = matrix.columns,
                          .value_bytes = size_of(dtype),
                          .statistics = statistics};
  const Layout interleaved_groups = interleaved(choose_positions(facts), facts.value_bytes);
  const double one = expected_bytes_in(facts, apart_layout(facts, true), density);
  const double many = expected_bytes_in(facts, interleaved_groups, density);
  return std::llround(
      has_enough_for_slices(facts, interleaved_groups) && pays_to_interleave(many, one) ? many
                                                                                        : one);
}

Layout choose_row_layout(const CompressedRows& m, const RowStatistics& statistics) {
  constexpr double kUneven = 0.25;  // deviation of lengths, of their mean
  return apart_layout({.rows = m.rows(),
                       .columns = m.columns(),
                       .value_bytes = size_of(m.dtype()),
                       .statistics = statistics},
                      statistics.length_deviation > kUneven * statistics.mean_length);
}

std::optional<std::string> why_no_row_kernels(const Layout& layout, int64_t columns) {
  if (layout.positions != PositionCode::u16 && layout.positions != PositionCode::u32) {
    return "positions other than u16 and u32";
  }
  if (layout.interleave != 1) {
    return fmt::format("interleave={}", layout.interleave);
  }
  if (layout.panel_columns != 0 && columns > layout.panel_columns) {
    return fmt::format("several panels: panel={}, {} columns", layout.panel_columns, columns);
  }
  if (layout.vector != 1 && (layout.vector != 4 || layout.shared_rows != 1)) {
    return fmt::format("vector={} with shared-rows={}", layout.vector, layout.shared_rows);
  }
  return {};
}

Layout usual_layout() { return {.panel_columns = kUsualPanel}; }

Layout choose_layout(const MatrixShape& m, const RowStatistics& statistics, LayoutFor goal,
                     const std::function<int64_t(const Layout&)>& bytes_in) {
  const MatrixFacts facts{.rows = m.rows,
                          .columns = m.columns,
                          .value_bytes = size_of(m.dtype),
                          .statistics = statistics};
  const auto counted = [&](const Layout& layout) {
    return CountedLayout{.layout = layout, .bytes = bytes_in(layout)};
  };
  const Layout apart = apart_layout(facts, true);
  const Layout interleaved_groups = interleaved(choose_positions(facts), facts.value_bytes);
  const bool may_interleave = has_enough_for_slices(facts, interleaved_groups);
  if (goal == LayoutFor::speed && !may_interleave) {
    return apart;
  }
  const CountedLayout one = counted(apart);
  const CountedLayout many = counted(interleaved_groups);
  CountedLayout best = may_interleave && pays_to_interleave(static_cast<double>(many.bytes),
                                                            static_cast<double>(one.bytes))
                           ? many
                           : one;
  if (best.layout.interleave > 1 && has_many_fillers(facts, many)) {
    const CountedLayout longer = counted(with_long_windows(interleaved_groups));
    best = saves_fillers(longer, many) ? longer : best;
  }
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
