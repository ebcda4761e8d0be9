#include "sparse/tca_bme/quantized/quantized_order.h"

#include <cstddef>

namespace sparsellm::tca_bme {
namespace {

constexpr ChunkOrder make_chunk_order(const QuantizedLayout& layout) {
  ChunkOrder order{};
  size_t next = 0;
  for (int32_t outer = 0; outer < 16; ++outer) {
    const bool j_first = layout.offsets == 16;
    const int32_t j = j_first ? outer / 8 : outer % 2;
    const int32_t q = j_first ? outer / 4 % 2 : outer / 8;
    const int32_t t = j_first ? outer % 4 : outer / 2 % 4;
    for (int32_t inner = 0; inner < 16; ++inner) {
      const int32_t h = layout.nibbles() ? inner % 2 : inner / 8;
      const int32_t g = layout.nibbles() ? inner / 2 : inner % 8;
      for (int32_t k = 0; k < 4; ++k) {
        order[next++] = {.row = static_cast<uint8_t>(16 * j + 8 * q + g),
                         .column = static_cast<uint8_t>(16 * h + 4 * t + k),
                         .word = static_cast<uint8_t>(quantized_mask_word(0, g, t, q)),
                         .bit = static_cast<uint8_t>(4 * k + 2 * j + h)};
      }
    }
  }
  return order;
}

using QuantizedValues = QuantizedLayout::Values;
constexpr ChunkOrder kManyOffsetsOrder = make_chunk_order({QuantizedValues::i8, 16, 0});
constexpr ChunkOrder kFewOffsetsOrder = make_chunk_order({QuantizedValues::i8, 8, 0});
constexpr ChunkOrder kNibblesOrder = make_chunk_order({QuantizedValues::i4, 8, 32});

}  // namespace

const ChunkOrder& chunk_order(const QuantizedLayout& layout) {
  return layout.nibbles()       ? kNibblesOrder
         : layout.offsets == 16 ? kManyOffsetsOrder
                                : kFewOffsetsOrder;
}

}  // namespace sparsellm::tca_bme
