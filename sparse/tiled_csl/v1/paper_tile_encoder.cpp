#include "sparse/tiled_csl/v1/paper_tile_encoder.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "sparse/tiled_csl/format/location_set.h"

namespace sparsellm::tiled_csl {
namespace {

constexpr uint32_t kLowMagnitude = 0x7fffu;
constexpr uint32_t kHighMagnitude = 0x7fff0000u;

int64_t nonzero_halves(uint32_t values) {
  return ((values & kLowMagnitude) != 0 ? 1 : 0) + ((values & kHighMagnitude) != 0 ? 1 : 0);
}

}  // namespace

std::span<const uint32_t> PaperTileEncoder::encode(const TileSource& tile) {
  fill_buckets(tile);
  std::iota(banks_.begin(), banks_.end(), 0u);
  count_ = 0;
  while (take_wavefront()) {
  }
  fill_up();
  return {words_.data(), static_cast<size_t>(count_)};
}

// Without a branch that depends on a value, which could not be predicted at the usual densities:
// zeros are written too, and the next value overwrites them.
void PaperTileEncoder::fill_buckets(const TileSource& tile) {
  left_.fill(0);
  std::array<uint16_t, kTileColumns> padded{};
  for (int64_t row = 0; row < tile.rows; ++row) {
    const uint16_t* values = tile.values + row * tile.row_stride;
    if (tile.columns < kTileColumns) {
      std::copy_n(values, tile.columns, padded.begin());
      values = padded.data();
    }
    for (uint32_t column = 0; column < kTileColumns; column += 2) {
      Pair pair{.values = 0, .location = location_of(static_cast<uint32_t>(row), column)};
      std::memcpy(&pair.values, values + column, sizeof(pair.values));
      const uint32_t bank = bank_of(pair.location);
      buckets_[bank][left_[bank]] = pair;
      left_[bank] += (pair.values & (kLowMagnitude | kHighMagnitude)) != 0 ? 1 : 0;
    }
  }
}

// By insertion: the banks are almost sorted since the last call.
void PaperTileEncoder::sort_banks() {
  for (size_t i = 1; i < banks_.size(); ++i) {
    const uint32_t bank = banks_[i];
    size_t place = i;
    for (; place > 0 && left_[banks_[place - 1]] < left_[bank]; --place) {
      banks_[place] = banks_[place - 1];
    }
    banks_[place] = bank;
  }
}

// Returns whether there was anything left to take.
bool PaperTileEncoder::take_wavefront() {
  sort_banks();
  const int64_t group_end = (count_ / kWarp + 1) * kWarp;
  // If only whole pairs are left for the last place of a group, one of them lies across its end.
  return take_pairs(group_end) || take_pairs(group_end + 1);
}

// Takes at most one pair from each bucket as long as the words end at `end` or before. Returns
// whether it took any. A half that is zero is written and not counted; there is room for it, as
// there are fewer nonzeros than elements then.
bool PaperTileEncoder::take_pairs(int64_t end) {
  const int64_t before = count_;
  for (const uint32_t bank : banks_) {
    if (count_ == end || left_[bank] == 0) {
      break;
    }
    const Pair& pair = buckets_[bank][left_[bank] - 1];
    if (count_ + nonzero_halves(pair.values) > end) {
      continue;
    }
    --left_[bank];
    words_[count_] = make_word(pair.values & 0xffffu, pair.location);
    count_ += (pair.values & kLowMagnitude) != 0 ? 1 : 0;
    words_[count_] = make_word(pair.values >> 16, pair.location + 1);
    count_ += (pair.values & kHighMagnitude) != 0 ? 1 : 0;
  }
  return count_ > before;
}

void PaperTileEncoder::fill_up() {
  const int64_t end = aligned_words(count_);
  if (count_ == end) {
    return;
  }
  LocationSet locations;
  for (int64_t i = 0; i < count_; ++i) {
    locations.insert(location_of_word(words_[i]));
  }
  std::fill(words_.begin() + count_, words_.begin() + end,
            make_word(0, locations.lowest_missing()));
  count_ = end;
}

}  // namespace sparsellm::tiled_csl
