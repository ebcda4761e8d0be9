#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sparse/count_nonzeros.h"
#include "sparse/general_sparse/format/parts.h"

namespace sparsellm::general_sparse {

// The nonzeros of a block of 64 rows, for sparse/cpu/walk.h: group after group, each from its first
// panel to its last, in the order in which they are stored; so the columns of a row ascend, where
// positions do. T may be float, too.
template <class T>
class Walker {
 public:
  static constexpr int64_t kBlockRows = 64;

  explicit Walker(const EncodedWeight& e) : parts_(e), values_(parts_.values.values<T>()) {
    if (!parts_.layout.sorted) {
      return;
    }
    places_.resize(parts_.row_order.size());
    for (int64_t number = 0; number < parts_.grid.chunks(); ++number) {
      const Chunk chunk = parts_.grid.chunk(number);
      for (int64_t place = 0; place < chunk.groups; ++place) {
        const uint16_t group = parts_.row_order[static_cast<size_t>(chunk.first_place + place)];
        places_[static_cast<size_t>(chunk.first_place + group)] = static_cast<uint16_t>(place);
      }
    }
  }

  template <class F>
  void walk(int64_t block, F&& f) const {
    const int64_t block_groups = kBlockRows / parts_.layout.shared_rows;
    const int64_t first_group = block * block_groups;
    const int64_t end_group = std::min(first_group + block_groups, parts_.grid.groups());
    for (int64_t group = first_group; group < end_group; ++group) {
      const int64_t first_row = (group - first_group) * parts_.layout.shared_rows;
      for (int64_t panel = 0; panel < parts_.grid.panels(); ++panel) {
        walk_group(group, panel, first_row, f);
      }
    }
  }

 private:
  template <class F>
  void walk_group(int64_t group, int64_t panel, int64_t first_row, F& f) const {
    const Chunk chunk = parts_.grid.chunk(group / parts_.grid.window_groups(), panel);
    const int64_t in_window = group - chunk.first_group;
    const int64_t place =
        places_.empty() ? in_window : places_[static_cast<size_t>(chunk.first_place + in_window)];
    const auto shared_rows = static_cast<size_t>(parts_.layout.shared_rows);
    parts_.for_each_entry(chunk, parts_.lane(chunk, place), [&](int64_t position, size_t number) {
      const T* const values = values_.data() + number * shared_rows;
      for (size_t row = 0; row < shared_rows; ++row) {
        if (!is_zero(values[row])) {
          f(first_row + static_cast<int64_t>(row), chunk.first_column + position, values[row]);
        }
      }
    });
  }

  Parts parts_;
  std::span<const T> values_;
  std::vector<uint16_t> places_;  // of groups, by the number in the window; empty if not sorted
};

}  // namespace sparsellm::general_sparse
