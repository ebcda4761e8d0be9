#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/tiled_csl/format/tile_source.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "sparse/tiled_csl/v1/paper_parts.h"
#include "sparse/tiled_csl/v1/paper_tile_encoder.h"

namespace sparsellm::tiled_csl {
namespace {

constexpr int64_t kPaperTilesPerRange = 8;

}  // namespace

std::string why_too_many(int64_t words) {
  constexpr int64_t kMax = std::numeric_limits<uint32_t>::max();
  return words <= kMax ? std::string()
                       : fmt::format("it has {} nonzeros with padding; offsets of 32 bits count {}",
                                     words, kMax);
}

int64_t count_words(const Tensor& w) {
  const int64_t tiles = tile_grid(w.size(0), w.size(1)).count();
  int64_t words = 0;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    words += aligned_words(count_nonzeros(tile_of(w, tile)));
  }
  return words;
}

EncodedWeight encode_paper(const Tensor& w, ThreadPool& threads) {
  EncodedWeight e = header_of(kPaperVersion, w.dtype(), w.size(0), w.size(1));
  const int64_t tiles = tile_grid(w.size(0), w.size(1)).count();
  auto offsets = new_part<uint32_t>(std::string(kTileOffsets), DType::u32, tiles + 1);
  std::atomic<int64_t> nonzeros = 0;
  threads.parallel_for(tiles, kPaperTilesPerRange, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t count = count_nonzeros(tile_of(w, tile));
      nonzeros += count;
      offsets.values[static_cast<size_t>(tile + 1)] = static_cast<uint32_t>(aligned_words(count));
    }
  });
  e.nonzeros = nonzeros;

  int64_t words_end = 0;
  offsets.values[0] = 0;
  for (uint32_t& offset : offsets.values) {
    words_end += offset;
    offset = static_cast<uint32_t>(words_end);
  }
  const std::string too_many = why_too_many(words_end);
  require(too_many.empty(), "a weight cannot be encoded: {}", too_many);

  auto words = new_part<uint32_t>(std::string(kWords), DType::u32, words_end);
  threads.parallel_for(tiles, kPaperTilesPerRange, [&](int64_t begin, int64_t end) {
    const auto encoder = std::make_unique<PaperTileEncoder>();
    for (int64_t tile = begin; tile < end; ++tile) {
      const std::span<const uint32_t> encoded = encoder->encode(tile_of(w, tile));
      std::copy(encoded.begin(), encoded.end(),
                words.values.begin() + offsets.values[static_cast<size_t>(tile)]);
    }
  });
  e.parts.push_back(std::move(offsets.part));
  e.parts.push_back(std::move(words.part));
  return e;
}

}  // namespace sparsellm::tiled_csl
