#include "sparse/tiled_csl/ablation/word_records.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/counter_random.h"
#include "sparse/tiled_csl/format/tile_record.h"
#include "sparse/tiled_csl/format/tile_source.h"
#include "sparse/tiled_csl/host/tile_records.h"
#include "sparse/tiled_csl/tiled_csl.h"

namespace sparsellm::tiled_csl {
namespace {

using Words = std::vector<uint32_t>;

Words words_round_banks(const TileSource& tile) {
  std::array<Words, kBanks> banks;
  size_t most = 0;
  for (uint32_t row = 0; row < tile.rows; ++row) {
    for (uint32_t column = 0; column < tile.columns; ++column) {
      const uint32_t value = tile.values[row * tile.row_stride + column];
      if (is_nonzero(value)) {
        const uint32_t location = swizzled(row, record_position(column));
        Words& bank = banks[bank_of(location)];
        bank.push_back(value | location * 2 << 16);
        most = std::max(most, bank.size());
      }
    }
  }
  Words words;
  for (size_t i = 0; i < most; ++i) {
    for (const Words& bank : banks) {
      if (i < bank.size()) {
        words.push_back(bank[i]);
      }
    }
  }
  return words;
}

// Fisher and Yates; the remainder's bias is below 2^-40.
void shuffle(Words& words, int64_t tile) {
  for (size_t i = words.size(); i > 1; --i) {
    const uint64_t random = uniform_bits(static_cast<uint64_t>(tile), static_cast<int64_t>(i));
    std::swap(words[i - 1], words[random % i]);
  }
}

void write_record(std::span<const uint32_t> words, std::span<std::byte> record) {
  std::ranges::fill(record, std::byte{0});
  for (std::byte* piece = record.data();; piece += kPieceBytes) {
    const int count = next_piece(0, static_cast<int>(words.size()), false).words;
    const std::span<const uint32_t> here = words.first(static_cast<size_t>(count));
    words = words.subspan(here.size());
    const uint32_t header = (words.empty() ? kLastPiece : 0) << 8 | static_cast<uint32_t>(count)
                                                                        << 16;
    std::memcpy(piece, &header, kPieceHeader);
    std::ranges::copy(std::as_bytes(here), piece + kPieceHeader);
    if (words.empty()) {
      return;
    }
  }
}

}  // namespace

EncodedWeight encode_as_words(const Tensor& w, WordOrder order, ThreadPool& threads) {
  constexpr int64_t kTilesOfARange = 8;
  EncodedWeight e = header_of(kRecordVersion, w.dtype(), w.size(0), w.size(1));
  const int64_t tiles = tile_grid(e.rows, e.columns).count();
  auto starts = new_part<uint32_t>(kStarts, DType::u32, tiles + 1);
  std::vector<int64_t> nonzeros(static_cast<size_t>(tiles));
  threads.parallel_for(tiles, kTilesOfARange, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      nonzeros[static_cast<size_t>(tile)] = count_nonzeros(tile_of(w, tile));
    }
  });
  int64_t units = 0;
  for (size_t tile = 0; tile < nonzeros.size(); ++tile) {
    starts.values[tile] = static_cast<uint32_t>(units);
    units += record_bytes(0, static_cast<int>(nonzeros[tile])) / kRecordAlignment;
    e.nonzeros += nonzeros[tile];
  }
  starts.values[nonzeros.size()] = static_cast<uint32_t>(units);
  const std::string too_large = why_too_large(units * kRecordAlignment);
  require(too_large.empty(), "a weight cannot be encoded as words: {}", too_large);

  auto records = new_part<std::byte>(kRecords, DType::u8, units * kRecordAlignment);
  threads.parallel_for(tiles, kTilesOfARange, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      Words words = words_round_banks(tile_of(w, tile));
      if (order == WordOrder::random) {
        shuffle(words, tile);
      }
      const size_t first = size_t{starts.values[static_cast<size_t>(tile)]} * kRecordAlignment;
      const size_t last = size_t{starts.values[static_cast<size_t>(tile + 1)]} * kRecordAlignment;
      write_record(words, records.values.subspan(first, last - first));
    }
  });
  e.parts.push_back(std::move(starts.part));
  e.parts.push_back(std::move(records.part));
  return e;
}

}  // namespace sparsellm::tiled_csl
