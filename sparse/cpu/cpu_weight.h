#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "sparse/cpu/compressed_rows_weight.h"
#include "sparse/cpu/panels/panel_weight.h"
#include "sparse/cpu/walk.h"
#include "sparse/encoded_weight.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm {

// What a sparse weight is on the CPU, whatever its format is in a file: panels, or compressed rows
// where there are so few nonzeros that these are multiplied faster by the best instruction set that
// this CPU has. Both have the same sums (compressed_rows_weight.h). Of `e` the fields count, it may
// have no parts.
int64_t least_elements_of_a_nonzero(CpuIsa isa);  // from there on rows
bool is_compressed_rows_on_cpu(const EncodedWeight& e);
int64_t cpu_weight_bytes(const EncodedWeight& e);
// Of the workspace that matmul() takes.
int64_t cpu_weight_workspace_bytes(const EncodedWeight& e, int64_t tokens);

// The nonzeros of a valid encoding of 16-bit values, by the Walker of its format, on all threads.
// What has the magnitude 0 is left out.
template <template <class> class Walker>
CompressedRows walked_rows(const EncodedWeight& e, ThreadPool& threads) {
  constexpr int64_t kBlockRows = Walker<Half>::kBlockRows;
  std::vector<int64_t> starts(static_cast<size_t>(e.rows) + 1);
  const auto for_each_block = [&](auto&& body) {
    visit_half(e.dtype, [&]<class T>(T) {
      const Walker<T> walker(e);
      threads.parallel_for((e.rows + kBlockRows - 1) / kBlockRows, 1,
                           [&](int64_t begin, int64_t end) {
                             for (int64_t block = begin; block < end; ++block) {
                               body(walker, block, T{});
                             }
                           });
    });
  };
  const auto is_zero = [](auto value) { return (value.bits & 0x7fff) == 0; };
  for_each_block([&](const auto& walker, int64_t block, auto) {
    int64_t* const counts = starts.data() + block * kBlockRows + 1;
    walker.walk(block,
                [&](int64_t row, int64_t, auto value) { counts[row] += is_zero(value) ? 0 : 1; });
  });
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  CompressedRows m(e.dtype, e.rows, e.columns, starts.back());
  std::ranges::copy(starts, m.starts().begin());
  for_each_block([&]<class T>(const auto& walker, int64_t block, T) {
    // A column and the bits of a value each, which walkers have in any order.
    constexpr int kValueBits = 16;
    const int64_t first_row = block * kBlockRows;
    const int64_t rows = std::min(e.rows - first_row, kBlockRows);
    const auto of_rows =
        std::span(starts).subspan(static_cast<size_t>(first_row), static_cast<size_t>(rows) + 1);
    std::vector<int64_t> next(of_rows.begin(), of_rows.end() - 1);
    std::vector<uint64_t> entries(static_cast<size_t>(of_rows.back() - of_rows.front()));
    walker.walk(block, [&](int64_t row, int64_t column, auto value) {
      if (!is_zero(value)) {
        entries[static_cast<size_t>(next[static_cast<size_t>(row)]++ - of_rows.front())] =
            static_cast<uint64_t>(column) << kValueBits | value.bits;
      }
    });
    uint32_t* const columns = m.column_indices().data() + of_rows.front();
    T* const values = m.values<T>().data() + of_rows.front();
    for (size_t row = 0; row + 1 < of_rows.size(); ++row) {
      const auto begin = static_cast<size_t>(of_rows[row] - of_rows.front());
      const auto end = static_cast<size_t>(of_rows[row + 1] - of_rows.front());
      const auto of_row = std::span(entries).subspan(begin, end - begin);
      if (!std::ranges::is_sorted(of_row)) {
        std::ranges::sort(of_row);
      }
      for (size_t i = begin; i < end; ++i) {
        columns[i] = static_cast<uint32_t>(entries[i] >> kValueBits);
        values[i].bits = static_cast<uint16_t>(entries[i]);
      }
    }
  });
  return m;
}

// The weight of a valid encoding of 16-bit values, whose memory is freed.
template <template <class> class Walker>
std::unique_ptr<WeightMatrix> make_cpu_weight(EncodedWeight e, ThreadPool& threads) {
  if (!is_compressed_rows_on_cpu(e)) {
    return make_panel_weight<Walker>(std::move(e), threads);
  }
  CompressedRows m = walked_rows<Walker>(e, threads);
  e.parts.clear();
  return std::make_unique<CompressedRowsWeight>(e.format, std::move(m));
}

}  // namespace sparsellm
