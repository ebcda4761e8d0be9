#include "sparse/general_sparse/cuda/slice_plan.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "sparse/general_sparse/cuda/slice_matrix.h"

namespace sparsellm::general_sparse {

int share_cut_count(int multiprocessors) {
  constexpr int kShares = 16;  // of a multiprocessor
  return kShares * multiprocessors;
}

std::vector<uint32_t> share_cuts(const ChunkGrid& grid, std::span<const uint32_t> starts,
                                 int count) {
  constexpr int64_t kSliceUnits = 2;  // what it takes to begin and to end a slice
  // Work until each slice, panel after panel.
  std::vector<int64_t> before{0};
  before.reserve(static_cast<size_t>(grid.slices()) + 1);
  for (int64_t panel = 0; panel < grid.panels(); ++panel) {
    for (int64_t window = 0; window < grid.windows(); ++window) {
      const Chunk chunk = grid.chunk(window, panel);
      for (int64_t slice = 0; slice < chunk.slices; ++slice) {
        const uint32_t* const start = starts.data() + chunk.first_slice + slice;
        before.push_back(before.back() + (int64_t{start[1]} - start[0]) + kSliceUnits);
      }
    }
  }
  std::vector<uint32_t> cuts;
  cuts.reserve(static_cast<size_t>(count) + 1 + before.size());
  auto next = before.begin();
  for (int64_t i = 0; i <= count; ++i) {
    const int64_t whole = before.back() / count * i + before.back() % count * i / count;
    next = std::lower_bound(next, before.end(), whole);
    cuts.push_back(static_cast<uint32_t>(next - before.begin()));
  }
  cuts.resize(cuts.size() + before.size());
  std::iota(cuts.end() - std::ssize(before), cuts.end(), 0u);
  return cuts;
}

std::vector<uint16_t> border_positions(const Parts& parts, ThreadPool& threads) {
  const ChunkGrid& grid = parts.grid;
  const std::span<const uint8_t> differences = parts.positions.values<uint8_t>();
  const int64_t lanes = parts.layout.interleave;
  const int64_t vector = parts.layout.vector;
  constexpr int borders = kMostParts - 1;
  std::vector<uint16_t> positions(static_cast<size_t>(grid.slices() * borders * lanes));
  threads.parallel_for(grid.slices(), 64, [&](int64_t first, int64_t last) {
    std::vector<uint32_t> at(static_cast<size_t>(lanes));
    for (int64_t slice = first; slice < last; ++slice) {
      const uint32_t begin = parts.starts[static_cast<size_t>(slice)];
      const uint32_t units = parts.starts[static_cast<size_t>(slice) + 1] - begin;
      std::fill(at.begin(), at.end(), 0);
      uint32_t unit = 0;
      for (int border = 0; border < borders; ++border) {
        for (; unit < part_border(units, static_cast<uint32_t>(border) + 1); ++unit) {
          const uint8_t* next = differences.data() + (int64_t{begin} + unit) * lanes * vector;
          for (uint32_t& position : at) {
            for (int64_t i = 0; i < vector; ++i) {
              position += static_cast<uint32_t>(static_cast<int8_t>(*next++));
            }
          }
        }
        std::copy(at.begin(), at.end(), positions.begin() + (slice * borders + border) * lanes);
      }
    }
  });
  return positions;
}

}  // namespace sparsellm::general_sparse
