#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/host/bank_order.h"
#include "sparse/general_sparse/host/panel_groups.h"

namespace sparsellm::general_sparse {

template <PositionCode code>
using PositionType =
    std::conditional_t<has_differences(code), uint8_t,
                       std::conditional_t<code == PositionCode::u16, uint16_t, uint32_t>>;

// Whether groups that are interleaved have another order than that of their columns.
constexpr bool has_bank_order(PositionCode code) {
  return code == PositionCode::i8 || code == PositionCode::u16;
}

// Writes the entries of groups into the arrays of an encoding, one group after the other.
template <class T, PositionCode code>
class GroupWriter {
 public:
  using Position = PositionType<code>;
  struct Arrays {
    std::span<const uint32_t> starts;  // complete
    std::span<Position> positions;     // to be written, not initialised
    std::span<T> values;               // likewise
  };

  GroupWriter(const Layout& layout, const Arrays& to)
      : numbers_(layout),
        shared_rows_(layout.shared_rows),
        vector_(layout.vector),
        interleave_(layout.interleave),
        to_(to) {}

  // What is written next is in this place of the chunk.
  void begin(const Chunk& chunk, int64_t place) {
    lane_ = numbers_.lane(chunk, place, to_.starts);
    entry_ = 0;
    before_ = 0;
    group_words_ = chunk.group_words;
    if constexpr (code == PositionCode::bits) {
      for (int64_t word = 0; word < group_words_; ++word) {
        to_.positions[numbers_.word(lane_, word)] = 0;
      }
    }
  }

  // Positions ascend from begin() to end(). value(row) is that of a row of the group.
  template <class F>
  void add(int64_t position, F&& value) {
    if constexpr (code == PositionCode::bits) {
      to_.positions[numbers_.word(lane_, position / ChunkGrid::kWordBits)] |=
          uint32_t{1} << (position % ChunkGrid::kWordBits);
    }
    write(position, value);
  }

  // All of a group, where groups are interleaved in the order of their banks.
  void add(const PanelGroup<T>& group) {
    if constexpr (kHasBankOrder) {
      if (interleave_ > 1) {
        return add(group, bank_order_);
      }
    }
    ColumnOrder<code> order;
    add(group, order);
  }

  // The fillers.
  void end() {
    while (entry_ < lane_.entries) {
      put(has_differences(code) ? 0 : before_, kNone);
    }
  }

 private:
  static constexpr auto kNone = [](int) { return T{}; };

  static constexpr bool kHasBankOrder = has_bank_order(code);
  using Order = std::conditional_t<code == PositionCode::i8, NearbyBankOrder, BankOrder>;

  // First the order, then the arrays, in which units of other lanes lie between those of this one.
  template <class InOrder>
  void add(const PanelGroup<T>& group, InOrder& order) {
    const auto entries = static_cast<size_t>(lane_.entries);
    columns_.assign(entries, kNoColumnOfPanel);
    codes_.assign(entries, 0);
    size_t count = 0;
    order.for_each(
        group.bits, static_cast<int>(lane_.number),
        [&count, columns = columns_.data(), codes = codes_.data()](int column, int stored) {
          columns[count] = column;
          codes[count++] = static_cast<Position>(stored);
        });
    assert(count <= entries);
    if (!has_differences(code) && count > 0) {
      std::fill_n(codes_.data() + count, entries - count, codes_[count - 1]);
    }
    if constexpr (code == PositionCode::bits) {
      for (int64_t word = 0; word < group_words_; ++word) {
        const uint64_t two = group.bits(static_cast<int>(word / 2));
        to_.positions[numbers_.word(lane_, word)] =
            static_cast<uint32_t>(two >> word % 2 * ChunkGrid::kWordBits);
      }
    }
    const auto side_by_side = interleave_ > 1 ? static_cast<size_t>(vector_) : entries;
    for (; entry_ < lane_.entries; entry_ += static_cast<int64_t>(side_by_side)) {
      const auto entry = static_cast<size_t>(entry_);
      const size_t number = numbers_(lane_, entry_);
      if constexpr (code != PositionCode::bits) {
        std::copy_n(codes_.data() + entry, side_by_side, to_.positions.data() + number);
      }
      T* const values = to_.values.data() + number * static_cast<size_t>(shared_rows_);
      for (int row = 0; row < shared_rows_; ++row) {
        group.copy(row, {columns_.data() + entry, side_by_side}, values + row, shared_rows_);
      }
    }
  }

  template <class F>
  void write(int64_t position, F&& value) {
    int64_t stored = position;
    if constexpr (has_differences(code)) {
      constexpr int64_t kMost = most_difference(code);
      for (stored -= before_; stored > kMost; stored -= kMost) {
        put(kMost, kNone);
      }
    }
    put(stored, value);
    before_ = position;
  }

  template <class F>
  void put(int64_t position, F&& value) {
    assert(entry_ < lane_.entries);
    const size_t number = numbers_(lane_, entry_++);
    if constexpr (code != PositionCode::bits) {
      to_.positions[number] = static_cast<Position>(position);
    }
    T* const values = to_.values.data() + number * static_cast<size_t>(shared_rows_);
    for (int row = 0; row < shared_rows_; ++row) {
      values[row] = value(row);
    }
  }

  Order bank_order_;
  std::vector<int32_t> columns_;  // of the entries of a lane
  std::vector<Position> codes_;   // likewise, as they are stored
  EntryNumbers numbers_;
  int shared_rows_;
  int vector_;
  int interleave_;
  Arrays to_;
  int64_t group_words_ = 0;
  Lane lane_;
  int64_t entry_ = 0;
  int64_t before_ = 0;  // the position that was added last
};

}  // namespace sparsellm::general_sparse
