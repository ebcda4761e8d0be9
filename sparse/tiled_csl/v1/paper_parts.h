#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sparse/encoded_weight.h"
#include "sparse/format.h"
#include "sparse/tiled_csl/v1/paper_layout.h"

// Encodings of version 1 (paper_layout.h).
namespace sparsellm::tiled_csl {

inline constexpr std::string_view kTileOffsets = "tile_offsets";
inline constexpr std::string_view kWords = "words";

// A view of a valid encoding.
class EncodedTiles {
 public:
  explicit EncodedTiles(const EncodedWeight& e)
      : grid_(tile_grid(e.rows, e.columns)),
        offsets_(e.part(kTileOffsets).values<uint32_t>()),
        words_(e.part(kWords).values<uint32_t>()) {}

  TileGrid grid() const { return grid_; }
  int64_t offset(int64_t tile) const { return offsets_[static_cast<size_t>(tile)]; }
  // Of tiles [begin, begin + count), padding included.
  std::span<const uint32_t> words(int64_t begin, int64_t count) const {
    return words_.subspan(static_cast<size_t>(offset(begin)),
                          static_cast<size_t>(offset(begin + count) - offset(begin)));
  }
  std::span<const uint32_t> nonzeros(int64_t tile) const { return without_padding(words(tile, 1)); }

 private:
  TileGrid grid_;
  std::span<const uint32_t> offsets_;
  std::span<const uint32_t> words_;
};

// Why the offsets cannot count this many words; empty if they can.
std::string why_too_many(int64_t words);

// Words of the encoding of w [rows, columns], f16 or bf16.
int64_t count_words(const Tensor& w);

// As the functions of WeightFormat, for encodings of this version.
EncodedWeight encode_paper(const Tensor& w, ThreadPool& threads);
void validate_paper(const EncodedWeight& e);

}  // namespace sparsellm::tiled_csl
