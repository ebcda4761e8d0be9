#include "sparse/general_sparse/search/matrix_sample.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/layout_rule.h"
#include "sparse/matrices/row_statistics.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int64_t kWindowRows = 512;
constexpr int64_t kMostRows = 16 * kWindowRows;
constexpr int64_t kMostEntries = int64_t{1} << 17;  // where that leaves one window
constexpr int64_t kMostWindows = 64;                // of entries, to see which columns they have
constexpr int64_t kWindowEntries = 1024;
constexpr int64_t kSectorBytes = 32;

// The i-th of `count` numbers from 0 to `all` - 1, evenly far apart.
int64_t evenly(int64_t i, int64_t count, int64_t all) {
  return count > 1 ? i * (all - 1) / (count - 1) : 0;
}

// What the longest rows have more than, by far more than most.
uint32_t long_row_units(std::span<const uint32_t> starts) {
  constexpr size_t kMostLongRows = 256;
  constexpr uint32_t kTimesMean = 4;
  const size_t rows = starts.size() - 1;
  if (rows == 0) {
    return 0;
  }
  std::vector<uint32_t> units(rows);
  for (size_t row = 0; row < rows; ++row) {
    units[row] = starts[row + 1] - starts[row];
  }
  const auto mean = static_cast<uint32_t>(starts.back() / rows);
  if (rows <= kMostLongRows) {
    return std::max(kTimesMean * (mean + 1), 1u);
  }
  std::nth_element(units.begin(), units.begin() + kMostLongRows, units.end(), std::greater<>());
  return std::max(kTimesMean * (mean + 1), units[kMostLongRows]);
}

int64_t count_distinct(std::vector<int64_t>& numbers) {
  std::sort(numbers.begin(), numbers.end());
  return std::unique(numbers.begin(), numbers.end()) - numbers.begin();
}

template <class Position>
void look_at_columns(std::span<const std::byte> positions, MatrixSample& sample) {
  const auto entries = static_cast<int64_t>(positions.size() / sizeof(Position));
  const int64_t windows = std::min(entries / kWindowEntries, kMostWindows);
  if (windows == 0) {
    return;
  }
  int64_t columns = 0;
  int64_t sectors = 0;
  std::vector<Position> read(static_cast<size_t>(kWindowEntries));
  std::vector<int64_t> numbers(read.size());
  for (int64_t i = 0; i < windows; ++i) {
    const int64_t first = evenly(i, windows, entries - kWindowEntries + 1);
    std::memcpy(read.data(), positions.data() + first * int64_t{sizeof(Position)},
                read.size() * sizeof(Position));
    std::copy(read.begin(), read.end(), numbers.begin());
    columns += count_distinct(numbers);
    std::transform(read.begin(), read.end(), numbers.begin(), [&](Position column) {
      return int64_t{column} * size_of(sample.dtype) / kSectorBytes;
    });
    sectors += count_distinct(numbers);
  }
  const auto all = static_cast<double>(windows * kWindowEntries);
  sample.distinct_columns = static_cast<double>(columns) / all;
  sample.distinct_sectors = static_cast<double>(sectors) / all;
}

}  // namespace

EncodedRows MatrixSample::view(const RowSample& of) const {
  const auto count = std::ssize(of.starts) - 1;
  return {layout, ChunkGrid(layout, count * layout.shared_rows, columns), of.starts, {}};
}

MatrixSample sample_of(const EncodedRows& encoding, DType dtype, int64_t columns,
                       std::span<const std::byte> positions) {
  MatrixSample sample{.dtype = dtype,
                      .layout = encoding.layout,
                      .rows = std::ssize(encoding.starts) - 1,
                      .columns = columns,
                      .entries = int64_t{encoding.starts.back()} * encoding.layout.vector};
  sample.layout.sorted = false;  // lengths are in the order of the encoding
  const auto units = [&](int64_t row) {
    const auto i = static_cast<size_t>(row);
    return encoding.starts[i + 1] - encoding.starts[i];
  };
  const uint32_t long_row = long_row_units(encoding.starts);
  const auto append = [](RowSample& rows, uint32_t count) {
    rows.starts.push_back(rows.starts.back() + count);
  };
  sample.usual.starts.push_back(0);
  sample.longest.starts.push_back(0);
  int64_t usual_units = 0;
  for (int64_t row = 0; row < sample.rows; ++row) {
    sample.empty_rows += units(row) == 0 ? 1 : 0;
    if (units(row) > long_row) {
      append(sample.longest, units(row));
    } else {
      usual_units += units(row);
    }
  }
  const int64_t mean = sample.entries / std::max<int64_t>(sample.rows, 1);
  const int64_t most_rows =
      std::clamp(kMostEntries / std::max<int64_t>(mean, 1), kWindowRows, kMostRows);
  const int64_t windows = sample.rows <= most_rows ? 1 : most_rows / kWindowRows;
  const int64_t window_rows = sample.rows <= most_rows ? sample.rows : kWindowRows;
  for (int64_t window = 0; window < windows; ++window) {
    const int64_t first = evenly(window, windows, sample.rows - window_rows + 1);
    for (int64_t row = first; row < first + window_rows; ++row) {
      if (units(row) <= long_row) {
        append(sample.usual, units(row));
      }
    }
  }
  if (sample.usual.starts.back() > 0) {
    sample.usual.scale = static_cast<double>(usual_units) / sample.usual.starts.back();
  }
  if (encoding.layout.positions == PositionCode::u16) {
    look_at_columns<uint16_t>(positions, sample);
  } else {
    look_at_columns<uint32_t>(positions, sample);
  }
  return sample;
}

MatrixSample sample_of(const CompressedRows& m, ThreadPool& threads) {
  const EncodedWeight e = encode(m, choose_row_layout(m, row_statistics(m, threads)), threads);
  return sample_of(Parts(e), e.dtype, e.columns, e.part(kPositions).bytes);
}

}  // namespace sparsellm::general_sparse
