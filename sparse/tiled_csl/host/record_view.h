#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "sparse/encoded_weight.h"
#include "sparse/tiled_csl/format/tile_record.h"

namespace sparsellm::tiled_csl {

inline constexpr std::string_view kStarts = "starts";
inline constexpr std::string_view kRecords = "records";

// Bytes from a file are aligned to nothing.
template <class T>
T load_from(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// A piece of a record, whose bytes have what its header says.
class Piece {
 public:
  explicit Piece(const std::byte* bytes) : bytes_(bytes) {}

  int groups() const { return load_from<uint8_t>(bytes_); }
  bool last() const { return (flags() & kLastPiece) != 0; }
  bool has_hosts() const { return (flags() & kHasHosts) != 0; }
  uint32_t flags() const { return load_from<uint8_t>(bytes_ + 1); }
  int words() const { return load_from<uint16_t>(bytes_ + 2); }
  int bytes() const { return piece_bytes(groups(), has_hosts(), words()); }

  uint32_t host(int lane) const { return load_from<uint8_t>(bytes_ + kPieceHeader + lane); }
  uint32_t word(int i) const {
    return load_from<uint32_t>(bytes_ + kPieceHeader + (has_hosts() ? kWarp : 0) + i * kWordBytes);
  }
  // f(value bits, place in bytes) for all that a kernel stores, zeros too: first of the words.
  template <class F>
  void for_each(F&& f) const {
    for (int i = 0; i < words(); ++i) {
      f(word(i) & 0xffff, word(i) >> 16);
    }
    const std::byte* const values = bytes_ + head_bytes(has_hosts(), words());
    const std::byte* const locations = values + groups() * kGroupValueBytes;
    for (int group = 0; group < groups(); ++group) {
      for (int lane = 0; lane < kWarp; ++lane) {
        const uint32_t host =
            group == 0 && has_hosts() ? this->host(lane) : static_cast<uint32_t>(lane) * kSlots;
        for (int slot = 0; slot < kSlots; ++slot) {
          const int i = (group * kWarp + lane) * kSlots + slot;
          const uint32_t bank = static_cast<uint32_t>(slot) >= host % kSlots
                                    ? host / kSlots
                                    : static_cast<uint32_t>(lane);
          f(load_from<uint16_t>(values + i * 2),
            location_in(bank, load_from<uint8_t>(locations + i)) * 2);
        }
      }
    }
  }

 private:
  const std::byte* bytes_;
};

// f(piece) for the pieces of a valid record.
template <class F>
void for_each_piece(const std::byte* record, F&& f) {
  for (bool last = false; !last; record += kPieceBytes) {
    const Piece piece(record);
    f(piece);
    last = piece.last();
  }
}

}  // namespace sparsellm::tiled_csl
