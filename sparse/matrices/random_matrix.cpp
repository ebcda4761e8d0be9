#include "sparse/matrices/random_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/counter_random.h"
#include "kernels/fill_random.h"
#include "kernels/random_order.h"
#include "sparse/matrices/distinct_columns.h"
#include "sparse/matrices/random_lengths.h"

namespace sparsellm {
namespace {

constexpr double kMaxLengthDeviation = 8.0;

// What is known of a matrix before its columns are drawn.
struct MatrixPlan {
  std::vector<int64_t> lengths;  // of the rows
  // The columns of a row, as many as it is long, ascending; of several rows at a time.
  std::function<void(int64_t row, std::span<uint32_t> columns, DistinctColumns& scratch)> fill;
};

// The seed of a row's stream.
uint64_t row_seed(uint64_t key, int64_t row) { return uniform_bits(key, row); }

MatrixPlan plan_banded(const RandomMatrix& what, uint64_t key) {
  const int64_t longest = (what.nonzeros + what.rows - 1) / what.rows;
  const auto width =
      static_cast<int64_t>(std::min(std::ceil(static_cast<double>(longest) / what.band_density),
                                    static_cast<double>(what.columns)));
  const int64_t last_begin = what.columns - width;
  return {.lengths = even_lengths(what.rows, what.nonzeros),
          .fill = [=](int64_t row, std::span<uint32_t> columns, DistinctColumns& scratch) {
            const int64_t diagonal = row * what.columns / what.rows;
            const auto begin =
                static_cast<uint32_t>(std::clamp<int64_t>(diagonal - width / 2, 0, last_begin));
            scratch.draw_any(width, columns, row_seed(key, row));
            for (uint32_t& column : columns) {
              column += begin;
            }
          }};
}

struct StencilShape {
  int64_t points;
  int dimensions;
  int most_steps;  // to a neighbour, each along one axis
};
constexpr std::array kStencils{StencilShape{5, 2, 1}, StencilShape{7, 3, 1}, StencilShape{9, 2, 2},
                               StencilShape{27, 3, 3}};

// f(column) for each, ascending.
template <class F>
void for_each_neighbour(const StencilShape& stencil, int64_t side, int64_t rows, int64_t row,
                        F&& f) {
  const int depth = stencil.dimensions == 3 ? 1 : 0;
  const int64_t x = row % side;
  // Of a square grid y is not limited but by the rows.
  const int64_t y = stencil.dimensions == 3 ? row / side % side : row / side;
  const int64_t y_end = stencil.dimensions == 3 ? side : y + 2;
  for (int dz = -depth; dz <= depth; ++dz) {
    for (int dy = -1; dy <= 1; ++dy) {
      for (int dx = -1; dx <= 1; ++dx) {
        const bool near = std::abs(dx) + std::abs(dy) + std::abs(dz) <= stencil.most_steps;
        const int64_t column = row + dx + side * (dy + side * dz);
        if (near && x + dx >= 0 && x + dx < side && y + dy >= 0 && y + dy < y_end && column >= 0 &&
            column < rows) {
          f(column);
        }
      }
    }
  }
}

MatrixPlan plan_stencil(const RandomMatrix& what) {
  const double of_row = static_cast<double>(what.nonzeros) / static_cast<double>(what.rows);
  const StencilShape stencil =
      *std::ranges::min_element(kStencils, {}, [&](const StencilShape& candidate) {
        return std::abs(static_cast<double>(candidate.points) - of_row);
      });
  int64_t side = 1;
  while ((stencil.dimensions == 3 ? side * side * side : side * side) < what.rows) {
    ++side;
  }
  MatrixPlan plan{
      .lengths = std::vector<int64_t>(static_cast<size_t>(what.rows)),
      .fill = [=](int64_t row, std::span<uint32_t> columns, DistinctColumns& /*scratch*/) {
        size_t i = 0;
        for_each_neighbour(stencil, side, what.rows, row,
                           [&](int64_t column) { columns[i++] = static_cast<uint32_t>(column); });
      }};
  for (int64_t row = 0; row < what.rows; ++row) {
    for_each_neighbour(stencil, side, what.rows, row,
                       [&](int64_t) { ++plan.lengths[static_cast<size_t>(row)]; });
  }
  return plan;
}

MatrixPlan plan_power_law(const RandomMatrix& what, uint64_t key) {
  const uint64_t row_key = random_key(key, "rows");
  const uint64_t column_key = random_key(key, "columns");
  const RandomOrder row_order = random_order(what.rows);
  std::vector<double> weights(static_cast<size_t>(what.rows));
  for (size_t row = 0; row < weights.size(); ++row) {
    weights[row] = 1.0 / static_cast<double>(place_in(row_order, row_key, row) + 1);
  }
  const RandomOrder column_order = random_order(what.columns);
  const auto octaves = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(what.columns)));
  return {.lengths = weighted_lengths(weights, what.nonzeros, what.columns, key),
          .fill = [=](int64_t row, std::span<uint32_t> columns, DistinctColumns& scratch) {
            constexpr int64_t kPopularDraws = 4;  // for each column
            const uint64_t seed = row_seed(key, row);
            scratch.draw(what.columns, columns, [&](int64_t i) {
              const uint64_t bits = uniform_bits(seed, i);
              const int64_t octave = scale_to(bits >> 21, octaves);
              const int64_t size = int64_t{1} << octave;
              const int64_t popularity = size - 1 + scale_to(mix_bits(bits) >> 32, size);
              if (i >= kPopularDraws * std::ssize(columns) || popularity >= what.columns) {
                return any_column(~seed, i, what.columns);
              }
              return static_cast<int64_t>(
                  place_in(column_order, column_key, static_cast<uint64_t>(popularity)));
            });
          }};
}

MatrixPlan plan_blocks(const RandomMatrix& what, uint64_t key) {
  const int64_t across = what.columns / what.block_columns;
  const int64_t down = (what.rows + what.block_rows - 1) / what.block_rows;
  const int64_t size = what.block_rows * what.block_columns;
  const int64_t blocks = std::max<int64_t>(1, (what.nonzeros + size / 2) / size);
  const std::vector<int64_t> of_blocks =
      drawn_lengths(down, std::min(blocks, across * down), across, key);
  std::vector<int64_t> lengths(static_cast<size_t>(what.rows));
  for (int64_t row = 0; row < what.rows; ++row) {
    lengths[static_cast<size_t>(row)] =
        of_blocks[static_cast<size_t>(row / what.block_rows)] * what.block_columns;
  }
  return {.lengths = std::move(lengths),
          .fill = [=](int64_t row, std::span<uint32_t> columns, DistinctColumns& scratch) {
            const int64_t count = std::ssize(columns) / what.block_columns;
            std::vector<uint32_t> drawn(static_cast<size_t>(count));
            scratch.draw_any(across, drawn, row_seed(key, row / what.block_rows));
            auto next = columns.begin();
            for (const uint32_t block : drawn) {
              const auto end = next + what.block_columns;
              std::iota(next, end, block * static_cast<uint32_t>(what.block_columns));
              next = end;
            }
          }};
}

// Any columns.
MatrixPlan plan_of_lengths(std::vector<int64_t> lengths, int64_t column_count, uint64_t key) {
  return {.lengths = std::move(lengths),
          .fill = [=](int64_t row, std::span<uint32_t> columns, DistinctColumns& scratch) {
            scratch.draw_any(column_count, columns, row_seed(key, row));
          }};
}

MatrixPlan plan_skewed(const RandomMatrix& what, uint64_t key) {
  const std::vector<double> weights =
      log_normal_weights(what.rows, what.length_deviation, random_key(key, "lengths"));
  return plan_of_lengths(weighted_lengths(weights, what.nonzeros, what.columns, key), what.columns,
                         key);
}

MatrixPlan plan_empty_rows(const RandomMatrix& what, uint64_t key) {
  const double share = (1.0 - what.empty_rows) * static_cast<double>(what.rows);
  const int64_t least = (what.nonzeros + what.columns - 1) / what.columns;
  const int64_t filled = std::clamp(std::llround(share), static_cast<long long>(least),
                                    static_cast<long long>(what.rows));
  const std::vector<int64_t> drawn = drawn_lengths(filled, what.nonzeros, what.columns, key);
  const RandomOrder order = random_order(what.rows);
  std::vector<int64_t> lengths(static_cast<size_t>(what.rows));
  for (size_t row = 0; row < lengths.size(); ++row) {
    const uint64_t place = place_in(order, ~key, row);
    lengths[row] = place < drawn.size() ? drawn[place] : 0;
  }
  return plan_of_lengths(std::move(lengths), what.columns, key);
}

MatrixPlan plan_arrow(const RandomMatrix& what) {
  const int64_t diagonal = std::min(what.rows, what.columns);
  const auto nonzeros_of = [&](int64_t width) {
    return width * (what.rows + what.columns - width) + diagonal - width;
  };
  int64_t width = 1;
  for (int64_t end = diagonal; width < end;) {  // the last with not too many
    const int64_t middle = (width + end + 1) / 2;
    if (nonzeros_of(middle) <= what.nonzeros) {
      width = middle;
    } else {
      end = middle - 1;
    }
  }
  if (width < diagonal &&
      nonzeros_of(width + 1) - what.nonzeros < what.nonzeros - nonzeros_of(width)) {
    ++width;
  }
  std::vector<int64_t> lengths(static_cast<size_t>(what.rows));
  for (int64_t row = 0; row < what.rows; ++row) {
    const bool on_diagonal = row < what.columns;
    lengths[static_cast<size_t>(row)] = row < width ? what.columns : width + (on_diagonal ? 1 : 0);
  }
  return {.lengths = std::move(lengths),
          .fill = [=](int64_t row, std::span<uint32_t> columns, DistinctColumns& /*scratch*/) {
            std::iota(columns.begin(), columns.end(), 0u);
            if (row >= width && row < what.columns) {
              columns.back() = static_cast<uint32_t>(row);
            }
          }};
}

MatrixPlan plan_of_class(const RandomMatrix& what) {
  const uint64_t key = random_key(what.seed, name_of(what.matrix_class));
  switch (what.matrix_class) {
    case MatrixClass::banded:
      return plan_banded(what, key);
    case MatrixClass::stencil:
      return plan_stencil(what);
    case MatrixClass::power_law:
      return plan_power_law(what, key);
    case MatrixClass::blocks:
      return plan_blocks(what, key);
    case MatrixClass::uniform:
      return plan_of_lengths(drawn_lengths(what.rows, what.nonzeros, what.columns, ~key),
                             what.columns, key);
    case MatrixClass::skewed:
      return plan_skewed(what, key);
    case MatrixClass::arrow:
      return plan_arrow(what);
    case MatrixClass::empty_rows:
      return plan_empty_rows(what, key);
  }
  fail("a matrix of no class");
}

// Throws OutOfMemory for a matrix that will not fit: the lengths of its rows may take hours to be
// drawn, nonzero by nonzero. One block, however large, is the least of its class.
void require_room(const RandomMatrix& what) {
  int64_t nonzeros = what.nonzeros;
  if (what.matrix_class == MatrixClass::stencil) {
    nonzeros = std::min(nonzeros, kStencils.back().points * what.rows);
  } else if (what.matrix_class == MatrixClass::blocks) {
    nonzeros = std::max(nonzeros, what.block_rows * what.block_columns);
  }
  const CompressedRows room(DType::f32, what.rows, what.columns, nonzeros);
}

}  // namespace

void check_random_matrix(const RandomMatrix& what) {
  constexpr int64_t kMax = CompressedRows::kMaxSize;
  require(what.rows >= 0 && what.rows <= kMax && what.columns >= 0 && what.columns <= kMax,
          "a random matrix {} x {}; at most {} are possible", what.rows, what.columns, kMax);
  require(what.nonzeros >= 0 && what.nonzeros <= what.rows * what.columns,
          "a random matrix {} x {} with {} nonzeros", what.rows, what.columns, what.nonzeros);
  require(what.band_density > 0.0 && what.band_density <= 1.0,
          "the density {} of a band is not in (0, 1]", what.band_density);
  require(what.length_deviation >= 0.0 && what.length_deviation <= kMaxLengthDeviation,
          "the deviation {} of the lengths of rows is not in [0, {}]", what.length_deviation,
          kMaxLengthDeviation);
  require(what.empty_rows >= 0.0 && what.empty_rows < 1.0,
          "the share {} of empty rows is not in [0, 1)", what.empty_rows);
  require(what.matrix_class != MatrixClass::stencil || what.rows == what.columns,
          "a stencil is a square matrix, not {} x {}", what.rows, what.columns);
  require(what.block_rows >= 1 && what.block_columns >= 1 &&
              (what.matrix_class != MatrixClass::blocks ||
               (what.block_rows <= what.rows && what.block_columns <= what.columns)),
          "blocks of {} x {} in a matrix {} x {}", what.block_rows, what.block_columns, what.rows,
          what.columns);
}

CompressedRows random_matrix(const RandomMatrix& what, ThreadPool& threads) {
  check_random_matrix(what);
  require_room(what);
  const MatrixPlan plan =
      what.nonzeros == 0
          ? plan_of_lengths(std::vector<int64_t>(static_cast<size_t>(what.rows)), what.columns, 0)
          : plan_of_class(what);
  CompressedRows m(DType::f32, what.rows, what.columns,
                   std::accumulate(plan.lengths.begin(), plan.lengths.end(), int64_t{0}));
  m.starts()[0] = 0;
  std::partial_sum(plan.lengths.begin(), plan.lengths.end(), m.starts().begin() + 1);

  constexpr int64_t kRowsAtATime = 16;
  const uint64_t value_key = random_key(what.seed, "values");
  threads.parallel_for(what.rows, kRowsAtATime, [&](int64_t begin, int64_t end) {
    DistinctColumns scratch;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = m.starts()[static_cast<size_t>(row)];
      const auto length = static_cast<size_t>(plan.lengths[static_cast<size_t>(row)]);
      if (length == 0) {
        continue;
      }
      plan.fill(row, m.column_indices().subspan(static_cast<size_t>(first), length), scratch);
      float* const values = m.values<float>().data();
      for (int64_t i = first; i < m.starts()[static_cast<size_t>(row) + 1]; ++i) {
        const uint64_t bits = uniform_bits(value_key, i) & 0xffff;
        values[i] = static_cast<float>(2 * static_cast<int64_t>(bits) - 65535) * 0x1p-16f;
      }
    }
  });
  return m;
}

}  // namespace sparsellm
