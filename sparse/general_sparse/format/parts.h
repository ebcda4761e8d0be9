#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "sparse/encoded_weight.h"
#include "sparse/general_sparse/format/chunks.h"
#include "sparse/general_sparse/format/layout.h"

namespace sparsellm::general_sparse {

// Encodings (format/layout.h) on the host.
inline constexpr std::string_view kLayout = "layout";
inline constexpr std::string_view kStarts = "starts";
inline constexpr std::string_view kRowOrder = "row_order";
inline constexpr std::string_view kPositions = "positions";
inline constexpr std::string_view kValues = "values";

// The layout in the part of that name; throws Error if it is none.
Layout read_layout(const EncodedWeight& e);

// The entries of a group in a chunk, fillers included.
struct Lane {
  int64_t first_unit = 0;
  int64_t entries = 0;
  int64_t number = 0;      // in its slice
  int64_t first_word = 0;  // of bits
};

// The numbers of entries by lane.
class EntryNumbers {
 public:
  explicit EntryNumbers(const Layout& layout)
      : interleave_(layout.interleave),
        vector_shift_(std::countr_zero(static_cast<unsigned>(layout.vector))) {}

  Lane lane(const Chunk& chunk, int64_t place, std::span<const uint32_t> starts) const {
    const int64_t slice = place / interleave_;
    const uint32_t* const start = starts.data() + chunk.first_slice + slice;
    const int64_t number = place % interleave_;
    return {.first_unit = start[0],
            .entries = (int64_t{start[1]} - start[0]) << vector_shift_,
            .number = number,
            .first_word = chunk.first_word + slice * chunk.group_words * interleave_ + number};
  }

  size_t operator()(const Lane& lane, int64_t entry) const {
    const int64_t unit = lane.first_unit + (entry >> vector_shift_);
    const int64_t in_unit = entry & ((int64_t{1} << vector_shift_) - 1);
    return static_cast<size_t>(((unit * interleave_ + lane.number) << vector_shift_) + in_unit);
  }

  size_t word(const Lane& lane, int64_t word) const {
    return static_cast<size_t>(lane.first_word + word * interleave_);
  }

 private:
  int64_t interleave_;
  int vector_shift_;
};

// The parts of an encoding whose layout, sizes and starts are valid.
struct Parts {
  explicit Parts(const EncodedWeight& e)
      : layout(read_layout(e)),
        grid(layout, e.rows, e.columns),
        numbers(layout),
        starts(e.part(kStarts).values<uint32_t>()),
        positions(e.part(kPositions)),
        values(e.part(kValues)) {
    if (layout.sorted) {
      row_order = e.part(kRowOrder).values<uint16_t>();
    }
  }

  Lane lane(const Chunk& chunk, int64_t place) const { return numbers.lane(chunk, place, starts); }

  // f(position, number of the entry) for the entries of a lane; of bits, which are not more than
  // entries, for those that have one.
  template <class F>
  void for_each_entry(const Chunk& chunk, const Lane& lane, F&& f) const {
    switch (layout.positions) {
      case PositionCode::u8: {
        int64_t position = 0;
        for_each_code<uint8_t>(lane, [&](uint8_t difference, size_t number) {
          position += difference;
          f(position, number);
        });
        return;
      }
      case PositionCode::i8: {
        int64_t position = 0;
        for_each_code<uint8_t>(lane, [&](uint8_t difference, size_t number) {
          position += static_cast<int8_t>(difference);
          f(position, number);
        });
        return;
      }
      case PositionCode::u16:
        return for_each_code<uint16_t>(
            lane, [&](uint16_t position, size_t number) { f(int64_t{position}, number); });
      case PositionCode::u32:
        return for_each_code<uint32_t>(
            lane, [&](uint32_t position, size_t number) { f(int64_t{position}, number); });
      case PositionCode::bits: {
        const std::span<const uint32_t> words = positions.values<uint32_t>();
        int64_t entry = 0;
        for (int64_t w = 0; w < chunk.group_words; ++w) {
          for (uint32_t word = words[numbers.word(lane, w)]; word != 0; word &= word - 1) {
            f(w * ChunkGrid::kWordBits + std::countr_zero(word), numbers(lane, entry++));
          }
        }
        return;
      }
    }
  }

  Layout layout;
  ChunkGrid grid;
  EntryNumbers numbers;
  std::span<const uint32_t> starts;
  std::span<const uint16_t> row_order;  // empty if not sorted
  const EncodedPart& positions;
  const EncodedPart& values;

 private:
  template <class Code, class F>
  void for_each_code(const Lane& lane, F&& f) const {
    const std::span<const Code> codes = positions.values<Code>();
    for (int64_t entry = 0; entry < lane.entries; ++entry) {
      const size_t number = numbers(lane, entry);
      f(codes[number], number);
    }
  }
};

}  // namespace sparsellm::general_sparse
