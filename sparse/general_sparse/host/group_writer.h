#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/host/bank_order.h"
#include "sparse/general_sparse/host/shared_columns.h"

namespace sparsellm::general_sparse {

template <PositionCode code>
using PositionType =
    std::conditional_t<has_differences(code), uint8_t,
                       std::conditional_t<code == PositionCode::u16, uint16_t, uint32_t>>;

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

  // Copies of nonzeros are values[ColumnNonzeros].
  GroupWriter(const Layout& layout, std::span<const T> nonzeros, const Arrays& to)
      : ordered_(kHasOrder && layout.interleave > 1),
        numbers_(layout),
        shared_rows_(static_cast<size_t>(layout.shared_rows)),
        nonzeros_(nonzeros),
        to_(to) {}

  // What is written next is in this place of the chunk.
  void begin(const Chunk& chunk, int64_t place) {
    lane_ = numbers_.lane(chunk, place, to_.starts);
    entry_ = 0;
    before_ = 0;
    if constexpr (code == PositionCode::bits) {
      for (int64_t word = 0; word < chunk.group_words; ++word) {
        to_.positions[numbers_.word(lane_, word)] = 0;
      }
    }
  }

  // Positions ascend from begin() to end().
  void add(int64_t position, const ColumnNonzeros& nonzeros) {
    if (ordered_) {
      added_positions_.push_back(static_cast<uint32_t>(position));
      added_nonzeros_.push_back(nonzeros);
      return;
    }
    if constexpr (code == PositionCode::bits) {
      to_.positions[numbers_.word(lane_, position / ChunkGrid::kWordBits)] |=
          uint32_t{1} << (position % ChunkGrid::kWordBits);
    }
    write(position, nonzeros);
  }

  // What is ordered, and the fillers.
  void end() {
    if constexpr (kHasOrder) {
      for (const uint32_t i : order_.order(added_positions_, static_cast<size_t>(lane_.number))) {
        write(added_positions_[i], added_nonzeros_[i]);
      }
    }
    added_positions_.clear();
    added_nonzeros_.clear();
    while (entry_ < lane_.entries) {
      put(has_differences(code) ? 0 : before_, kNone);
    }
  }

 private:
  static constexpr ColumnNonzeros kNone = [] {
    ColumnNonzeros none{};
    none.fill(kNoNonzero);
    return none;
  }();

  // What positions of the code have of groups that are interleaved.
  using Order = std::conditional_t<code == PositionCode::i8, NearbyBankOrder, BankOrder>;
  static constexpr bool kHasOrder = code == PositionCode::i8 || code == PositionCode::u16;

  void write(int64_t position, const ColumnNonzeros& nonzeros) {
    int64_t stored = position;
    if constexpr (has_differences(code)) {
      constexpr int64_t kMost = most_difference(code);
      for (stored -= before_; stored > kMost; stored -= kMost) {
        put(kMost, kNone);
      }
    }
    put(stored, nonzeros);
    before_ = position;
  }

  void put(int64_t position, const ColumnNonzeros& nonzeros) {
    assert(entry_ < lane_.entries);
    const size_t number = numbers_(lane_, entry_++);
    if constexpr (code != PositionCode::bits) {
      to_.positions[number] = static_cast<Position>(position);
    }
    T* const values = to_.values.data() + number * shared_rows_;
    for (size_t row = 0; row < shared_rows_; ++row) {
      values[row] =
          nonzeros[row] == kNoNonzero ? T{} : nonzeros_[static_cast<size_t>(nonzeros[row])];
    }
  }

  bool ordered_;
  Order order_;
  std::vector<uint32_t> added_positions_;  // of the group, where they are ordered
  std::vector<ColumnNonzeros> added_nonzeros_;
  EntryNumbers numbers_;
  size_t shared_rows_;
  std::span<const T> nonzeros_;
  Arrays to_;
  Lane lane_;
  int64_t entry_ = 0;
  int64_t before_ = 0;  // the position that was added last
};

}  // namespace sparsellm::general_sparse
