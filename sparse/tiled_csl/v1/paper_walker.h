#pragma once

#include "sparse/tiled_csl/v1/paper_parts.h"

namespace sparsellm::tiled_csl {

// For sparse/cpu/walk.h.
template <class T>
class PaperWalker {
 public:
  static constexpr int64_t kBlockRows = kTileRows;

  explicit PaperWalker(const EncodedWeight& e) : tiles_(e) {}

  template <class F>
  void walk(int64_t block, F&& f) const {
    const int64_t columns = tiles_.grid().columns;
    for (int64_t j = 0; j < columns; ++j) {
      for (const uint32_t word : tiles_.nonzeros(block * columns + j)) {
        const uint32_t location = location_of_word(word);
        f(int64_t{row_of(location)}, j * kTileColumns + column_of(location),
          T{static_cast<uint16_t>(value_bits_of(word))});
      }
    }
  }

 private:
  EncodedTiles tiles_;
};

}  // namespace sparsellm::tiled_csl
