#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/dtype.h"

// The weight format general_sparse, version 1: what GeneralSparse (Wang et al., ATC 2025, its
// adjustment) does to compressed rows before its kernels, as a layout with parameters. A matrix
// [rows, columns] of f16, bf16 or f32 is cut into
//   row groups  shared_rows consecutive rows, which share their positions. An entry is a position
//               of a group and a value for each of its rows, 0 for those that have none there. The
//               last group may have fewer rows; those that it lacks have zeros.
//   windows     window_rows consecutive rows. The last one may have fewer.
//   panels      panel_columns consecutive columns, or all of them if that is 0. The last one may
//               have fewer; a matrix without columns has one panel of none.
//   chunks      what a window and a panel have in common. They are stored window after window, and
//               in a window panel after panel: rows between borders of windows are one run of each
//               array.
//   slices      `interleave` consecutive groups of a chunk, in the order of their rows or, if
//               sorted, with the most entries in this chunk first, ties in the order of their rows.
//               The last slice of a chunk may have fewer. The lane of a group is its place in the
//               slice. All lanes have as many entries as the group with the most, rounded up to a
//               multiple of `vector`: those that a group has not are fillers, entries without a
//               nonzero.
// Parts, little-endian:
//   layout     u8   the text of the Layout
//   starts     u32  for each slice where its entries begin, in units of interleave * vector of
//                   them, and where those of the last end
//   row_order  u16  if sorted: for each chunk, for each place in its order, the number of the group
//                   in its window
//   positions       u8, u16 or u32 for each entry, or u32 words of bits (PositionCode; i8 is
//                   stored as u8)
//   values          of the dtype of the matrix, shared_rows for each entry
// Entry e of lane l of the slice that begins at unit s is that of number
//   ((s + e / vector) * interleave + l) * vector + e % vector
// and the value of row r of the group that of number shared_rows times this, plus r.
//
// What a kernel may rely on once an encoding is validated:
//   - Starts do not descend, and all entries are inside of positions and values.
//   - The order of a chunk is a permutation.
//   - The position of every entry is inside of its panel, also where all of its values are 0. There
//     are panels without columns: they have no entries.
//   - No two nonzeros are the same element. Values of rows that do not exist are 0; no value is a
//     negative zero.
//   - Bits are set for columns of the panel alone, in lanes that have a group, and are at most as
//     many as the entries of the slice, of which those after the bits are fillers.
// That positions ascend is what the encoder makes of u32, and of u16 where groups are apart, and
// not to be relied on.
namespace sparsellm::general_sparse {

inline constexpr std::string_view kName = "general_sparse";
inline constexpr int32_t kVersion = 1;

enum class PositionCode : uint8_t {
  // The difference to the position of the entry before; that of the first entry is the position.
  // Where it is more than 255, entries without a nonzero whose differences are 255 come before.
  // Fillers: 0.
  u8,
  // Such a difference, from -128 to 127 in two's complement; the first of a group counts from 0.
  // Where groups are interleaved, entries are in an order in which lanes mostly read x from
  // different banks of shared memory, as far as differences reach (host/bank_order.h). Gaps of more
  // than 127 are bridged likewise. Fillers: 0.
  i8,
  // The column, counted from the first one of the panel. Fillers: the position of the entry before,
  // 0 in a group without nonzeros. Where groups are interleaved, the encoder puts the entries of a
  // lane into an order in which lanes mostly read x from different banks of shared memory
  // (host/bank_order.h).
  u16,
  u32,
  // A bit for each column of a panel, which is set where the group has an entry. A group of a panel
  // has ceil(columns of the panel / 32) words of u32. Word w of lane l of slice s of a chunk is
  // that of number (s * words of a group + w) * interleave + l, after those of the chunks before;
  // lanes without a group have zeros. Entries are in the order of the bits.
  bits,
};

constexpr DType dtype_of(PositionCode code) {
  switch (code) {
    case PositionCode::u8:
    case PositionCode::i8:
      return DType::u8;
    case PositionCode::u16:
      return DType::u16;
    default:
      return DType::u32;
  }
}

constexpr bool has_differences(PositionCode code) {
  return code == PositionCode::u8 || code == PositionCode::i8;
}
constexpr int64_t most_difference(PositionCode code) {
  return code == PositionCode::i8 ? 127 : 255;
}
// The number of entries without a nonzero that bridge a gap of this many columns.
constexpr int64_t bridges_of(int64_t gap, int64_t most_difference) {
  return gap > most_difference ? (gap - 1) / most_difference : 0;
}

struct Layout {
  PositionCode positions = PositionCode::u16;
  int shared_rows = 1;           // 1, 2, 4, 8
  int64_t panel_columns = 4096;  // 64, 128, ..., 65536; for u32 also 0
  // A power of 2: at least interleave * shared_rows, at most 65536 * shared_rows.
  int64_t window_rows = 256;
  bool sorted = false;
  int interleave = 1;  // 1, 32
  int vector = 1;      // 1, 2, 4, 8

  bool operator==(const Layout&) const = default;
};

inline constexpr int kMostSharedRows = 8;
inline constexpr int64_t kMostWindowGroups = 65536;  // row_order is of u16

// What of the layout is wrong; nothing if it is valid.
std::optional<std::string> why_invalid(const Layout& layout);

// "positions=u16 shared-rows=1 panel=4096 window=256 sorted=yes interleave=32 vector=2"
std::string to_text(const Layout& layout);
// Takes only what to_text() gives of valid layouts. The text may be hostile: whatever else it holds
// is an Error of one line.
Layout layout_from(std::string_view text);

}  // namespace sparsellm::general_sparse
