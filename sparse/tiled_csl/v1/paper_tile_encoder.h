#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "sparse/tiled_csl/format/tile_source.h"
#include "sparse/tiled_csl/v1/paper_layout.h"

namespace sparsellm::tiled_csl {

// Puts the nonzeros of a tile into the order of the encoding (Flash-LLM, section 4.3, algorithm 3).
// There are as many buckets as banks, and each group of 32 words, which a warp stores at once, is
// taken from the fullest ones. Unlike in the paper two nonzeros that share 4 bytes of a bank stay
// together, because a store writes both of them at once; and the last NNZ mod 32 are words as well.
// With nonzeros at random places a store takes 1.02 wavefronts on average at 70 % zeros and 1.29 at
// 90 %, where the fullest bank has more than its share; in random order 3.5.
//
// About 65 KB; one object serves many tiles, one after the other.
class PaperTileEncoder {
 public:
  // The words of the tile, filled up; valid until the next call.
  std::span<const uint32_t> encode(const TileSource& tile);

 private:
  struct Pair {  // 4 bytes of a bank; at least one half is a nonzero
    uint32_t values;
    uint32_t location;  // of the lower half
  };

  void fill_buckets(const TileSource& tile);
  void sort_banks();
  bool take_wavefront();
  bool take_pairs(int64_t end);
  void fill_up();

  std::array<std::array<Pair, kTileRows>, kBanks> buckets_;  // a row of a tile meets a bank once
  std::array<uint32_t, kBanks> left_;                        // pairs in a bucket
  std::array<uint32_t, kBanks> banks_;                       // the fullest first
  std::array<uint32_t, kTileElements> words_;
  int64_t count_ = 0;  // of words
};

}  // namespace sparsellm::tiled_csl
