#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/cpu_isa.h"
#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"
#include "sparse/cpu/panels/panel_kernels.h"
#include "sparse/cpu/walk.h"
#include "sparse/encoded_weight.h"

namespace sparsellm::panels {

// What products of sparse weights read on the CPU, whatever the format of the file: one stream of
// panels of 64 rows (panel_kernels.h), after the bitmaps of SpInfer (Fan et al., EuroSys 2025,
// section 4) with tiles of a column, whose values a CPU expands into the lanes of a register.

// Which the CPU has.
const Kernels& kernels_for(CpuIsa isa);

inline int64_t panel_count(int64_t rows) { return (rows + kRows - 1) / kRows; }

// Of all panels of a matrix: the masks, the values and the padding.
int64_t panels_bytes(int64_t rows, int64_t columns, int64_t nonzeros);

class Panels {
 public:
  // Without values; `nonzeros` of each panel.
  Panels(int64_t columns, DType dtype, std::span<const int64_t> nonzeros);
  Panels copy() const;

  int64_t columns() const { return columns_; }
  DType dtype() const { return dtype_; }
  int64_t count() const { return std::ssize(starts_) - 1; }
  int64_t bytes() const { return memory_.bytes(); }
  const uint8_t* panel(int64_t index) const { return data() + starts_[static_cast<size_t>(index)]; }

  // Fills a panel from its values in rows of columns [columns][64]; what has the magnitude 0 is no
  // value. Throws Error unless there are as many as the panel has room for.
  void pack(int64_t index, const uint16_t* values);
  // The other way.
  void unpack(int64_t index, uint16_t* values) const;

 private:
  uint8_t* data() const { return static_cast<uint8_t*>(memory_.data()); }

  int64_t columns_;
  DType dtype_;
  std::vector<int64_t> starts_;  // in bytes, and the end of the last
  Buffer memory_;
};

// From a valid encoding, by the Walker of its format (sparse/cpu/walk.h), on all threads.
template <template <class> class Walker>
Panels make_panels(const EncodedWeight& e, ThreadPool& threads) {
  constexpr int64_t kBlockRows = Walker<Half>::kBlockRows;
  static_assert(kBlockRows % kRows == 0);
  constexpr int64_t kPanelsPerBlock = kBlockRows / kRows;
  const int64_t count = panel_count(e.rows);
  const int64_t blocks = (e.rows + kBlockRows - 1) / kBlockRows;
  std::vector<int64_t> nonzeros(static_cast<size_t>(blocks * kPanelsPerBlock));
  const auto for_each_block = [&](auto&& body) {
    visit_half(e.dtype, [&]<class T>(T) {
      const Walker<T> walker(e);
      threads.parallel_for(blocks, 1,
                           [&](int64_t begin, int64_t end) { body(walker, begin, end); });
    });
  };
  for_each_block([&](const auto& walker, int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      int64_t* const counts = nonzeros.data() + block * kPanelsPerBlock;
      walker.walk(block, [&](int64_t row, int64_t, auto value) {
        counts[row / kRows] += (value.bits & 0x7fff) != 0 ? 1 : 0;
      });
    }
  });
  Panels panels(e.columns, e.dtype, std::span(nonzeros).first(static_cast<size_t>(count)));
  for_each_block([&](const auto& walker, int64_t begin, int64_t end) {
    const int64_t panel_values = e.columns * kRows;
    std::vector<uint16_t> values(static_cast<size_t>(kPanelsPerBlock * panel_values));
    for (int64_t block = begin; block < end; ++block) {
      std::ranges::fill(values, uint16_t{0});
      walker.walk(block, [&](int64_t row, int64_t column, auto value) {
        values[static_cast<size_t>(row / kRows * panel_values + column * kRows + row % kRows)] =
            value.bits;
      });
      const int64_t first = block * kPanelsPerBlock;
      for (int64_t i = first; i < std::min(first + kPanelsPerBlock, count); ++i) {
        panels.pack(i, values.data() + (i - first) * panel_values);
      }
    }
  });
  return panels;
}

}  // namespace sparsellm::panels
