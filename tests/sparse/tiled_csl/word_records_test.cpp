// Encodings of words alone, which the ablation multiplies by.

#include "sparse/tiled_csl/ablation/word_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sparse/tiled_csl/format/tile_record.h"
#include "sparse/tiled_csl/host/tile_records.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/compare.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using namespace tiled_csl;

constexpr WordOrder kOrders[] = {WordOrder::round_banks, WordOrder::random};

std::vector<uint32_t> words_of(const EncodedWeight& e, int64_t tile) {
  std::vector<uint32_t> words;
  for_each_piece(TileRecords(e).record(tile), [&](const Piece& piece) {
    EXPECT_EQ(piece.groups(), 0);
    for (int i = 0; i < piece.words(); ++i) {
      words.push_back(piece.word(i));
    }
  });
  return words;
}

// Edges within a tile, tiles without nonzeros and full ones, records of one and of several pieces.
TEST(TiledCslWords, AreValidRecordsOfTheSameNonzeros) {
  ThreadPool threads(2);
  for (const double density : {0.0, 0.1, 0.5, 1.0}) {
    for (const WordOrder order : kOrders) {
      SCOPED_TRACE(density);
      const OwnedTensor w =
          make_weight({.dtype = DType::f16, .rows = 203, .columns = 130, .density = density}, 7);
      clear_negative_zeros(w.view);
      const EncodedWeight e = encode_as_words(w.view, order, threads);
      EXPECT_EQ(e.nonzeros, nonzeros_of(w.view));
      validate_records(e, threads);
      EXPECT_TRUE(same_bits(tiled_csl_format().decode(e, threads).view, w.view));
    }
  }
}

TEST(TiledCslWords, GoRoundTheBanksOrAreShuffled) {
  ThreadPool threads(1);
  const OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = 128, .columns = 128, .density = 0.5}, 3);
  const EncodedWeight ordered = encode_as_words(w.view, WordOrder::round_banks, threads);
  const EncodedWeight random = encode_as_words(w.view, WordOrder::random, threads);
  const EncodedWeight again = encode_as_words(w.view, WordOrder::random, threads);
  for (const int64_t tile : {0, 1}) {
    std::vector<uint32_t> words = words_of(ordered, tile);
    std::vector<uint32_t> shuffled = words_of(random, tile);
    EXPECT_EQ(shuffled, words_of(again, tile));
    // How often two of 32 words that a warp stores at once lie in one bank.
    const auto conflicts = [](const std::vector<uint32_t>& all) {
      int count = 0;
      for (size_t first = 0; first + kWarp <= 1024; first += kWarp) {
        std::vector<bool> taken(kBanks);
        for (size_t i = first; i < first + kWarp; ++i) {
          const uint32_t bank = bank_of((all[i] >> 16) / 2);
          count += taken[bank] ? 1 : 0;
          taken[bank] = true;
        }
      }
      return count;
    };
    EXPECT_EQ(conflicts(words), 0);
    EXPECT_GT(conflicts(shuffled), 200);  // of 1,024; about a third is expected
    std::ranges::sort(words);
    std::ranges::sort(shuffled);
    EXPECT_EQ(shuffled, words);
  }
}

}  // namespace
}  // namespace sparsellm
