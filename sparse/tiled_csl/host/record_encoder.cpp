#include "sparse/tiled_csl/host/record_encoder.h"

#include <algorithm>
#include <bitset>
#include <cassert>
#include <cstring>
#include <numeric>

namespace sparsellm::tiled_csl {
namespace {

// Where the columns of a row lie in it, by row mod 8.
using RowLocations = std::array<uint8_t, kTileColumns>;
constexpr std::array<RowLocations, kChunk> kRowLocations = [] {
  std::array<RowLocations, kChunk> locations{};
  for (uint32_t row = 0; row < kChunk; ++row) {
    for (uint32_t column = 0; column < kTileColumns; ++column) {
      locations[row][column] =
          static_cast<uint8_t>(swizzled(row, record_position(column)) % kTileColumns);
    }
  }
  return locations;
}();

// body(value, bank, location byte) for all elements, those of a bank in the order of their places.
template <class F>
void for_each_element(const TileSource& tile, F&& body) {
  for (int64_t row = 0; row < tile.rows; ++row) {
    const uint16_t* const values = tile.values + row * tile.row_stride;
    const RowLocations& locations = kRowLocations[static_cast<size_t>(row % kChunk)];
    const auto row_byte = static_cast<uint32_t>(row / 2 | row % 2 << 7);
    for (int64_t column = 0; column < tile.columns; ++column) {
      const uint32_t location = locations[static_cast<size_t>(column)];
      body(values[column], location / 2, static_cast<uint8_t>(row_byte | location % 2 << 6));
    }
  }
}

void put(std::byte*& at, const void* from, size_t bytes) {
  std::memcpy(at, from, bytes);
  at += bytes;
}

}  // namespace

BankCounts count_banks(const TileSource& tile) {
  BankCounts counts{};
  for_each_element(tile, [&](uint16_t value, uint32_t bank, uint8_t) {
    counts[bank] += is_nonzero(value) ? 1 : 0;
  });
  return counts;
}

// Without a branch that depends on a value, which could not be predicted at the usual densities:
// zeros are written too, and the next value overwrites them.
void RecordEncoder::gather(const TileSource& tile) {
  counts_.fill(0);
  for_each_element(tile, [&](uint16_t value, uint32_t bank, uint8_t location) {
    const bool nonzero = is_nonzero(value);
    // A full bank has no place for a zero, nor elements left.
    banks_[bank][static_cast<size_t>(counts_[bank])] = {.value = value, .location = location};
    counts_[bank] += nonzero ? 1 : 0;
  });
}

uint8_t RecordEncoder::free_location(int bank) const {
  std::bitset<kBankElements> used;
  for (int i = 0; i < counts_[bank]; ++i) {
    used.set(banks_[bank][static_cast<size_t>(i)].location);
  }
  size_t free = 0;
  while (used[free]) {
    ++free;
    assert(free < kBankElements);
  }
  return static_cast<uint8_t>(free);
}

void RecordEncoder::fill_slots(const RecordPlan& plan) {
  const int places = plan.groups * kSlots;
  for (int lane = 0; lane < kWarp; ++lane) {
    const int own = std::min(counts_[lane], places);
    placed_[lane] = own;
    if (own < places) {
      std::fill_n(slots_[lane].begin(), places,
                  Nonzero{.value = 0, .location = free_location(lane)});
    }
    for (int i = 0; i < own; ++i) {
      const int slot = (i + kSlots) % places;  // those of group 0 are the last
      slots_[lane][static_cast<size_t>(slot)] = banks_[lane][static_cast<size_t>(i)];
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int slot = kSlots - plan.hosted[lane]; slot < kSlots; ++slot) {
      const int donor = plan.donor[lane];
      slots_[lane][static_cast<size_t>(slot)] =
          banks_[donor][static_cast<size_t>(placed_[donor]++)];
    }
  }
}

void RecordEncoder::list_words(const RecordPlan& plan) {
  int words = 0;
  for (int i = plan.groups * kSlots; words < plan.words; ++i) {
    for (uint32_t bank = 0; bank < kBanks; ++bank) {
      if (i >= placed_[bank] && i < counts_[bank]) {
        const Nonzero& nonzero = banks_[bank][static_cast<size_t>(i)];
        words_[static_cast<size_t>(words++)] =
            nonzero.value | location_in(bank, nonzero.location) * 2 << 16;
      }
    }
  }
}

void RecordEncoder::write(const RecordPlan& plan, std::span<std::byte> record) const {
  std::ranges::fill(record, std::byte{0});
  int group = 0;
  int word = 0;
  for (std::byte* piece = record.data();; piece += kPieceBytes) {
    const bool hosts = piece == record.data() && plan.groups > 0;
    const PieceSizes sizes = next_piece(plan.groups - group, plan.words - word, hosts);
    const bool last = group + sizes.groups == plan.groups && word + sizes.words == plan.words;
    const auto groups = static_cast<uint8_t>(sizes.groups);
    const auto flags = static_cast<uint8_t>((last ? kLastPiece : 0) | (hosts ? kHasHosts : 0));
    const auto words = static_cast<uint16_t>(sizes.words);
    std::byte* at = piece;
    put(at, &groups, 1);
    put(at, &flags, 1);
    put(at, &words, 2);
    for (int lane = 0; hosts && lane < kWarp; ++lane) {
      const auto host = static_cast<uint8_t>(
          plan.donor[lane] * kSlots + (plan.hosted[lane] == 0 ? 0 : kSlots - plan.hosted[lane]));
      put(at, &host, 1);
    }
    put(at, words_.data() + word, static_cast<size_t>(sizes.words) * kWordBytes);
    std::byte* values = piece + head_bytes(hosts, sizes.words);
    std::byte* locations = values + sizes.groups * kGroupValueBytes;
    for (int g = group; g < group + sizes.groups; ++g) {
      for (const auto& lane : slots_) {
        for (int slot = 0; slot < kSlots; ++slot) {
          const Nonzero& nonzero = lane[static_cast<size_t>(g * kSlots + slot)];
          put(values, &nonzero.value, 2);
          put(locations, &nonzero.location, 1);
        }
      }
    }
    if (last) {
      return;
    }
    group += sizes.groups;
    word += sizes.words;
  }
}

int RecordEncoder::encode(const TileSource& tile, std::span<std::byte> record) {
  gather(tile);
  const RecordPlan plan = plan_record(counts_);
  assert(std::ssize(record) == plan.bytes());
  fill_slots(plan);
  list_words(plan);
  write(plan, record);
  return std::accumulate(counts_.begin(), counts_.end(), 0);
}

}  // namespace sparsellm::tiled_csl
