#include "sparse/tca_bme/quantized/quantized_order.h"

#include <cstddef>

namespace sparsellm::tca_bme {
namespace {

constexpr ChunkOrder make_chunk_order(const QuantizedLayout& layout) {
  ChunkOrder order{};
  size_t next = 0;
  for (int32_t i = 0; i < kUnitsOfChunk; ++i) {
    const QuantizedUnit unit = quantized_unit(layout, i);
    for (int32_t k = 0; k < 4; ++k) {
      order[next++] = {.row = static_cast<uint8_t>(unit.row()),
                       .column = static_cast<uint8_t>(unit.column() + k),
                       .word = static_cast<uint8_t>(unit.word(0)),
                       .bit = static_cast<uint8_t>(unit.bit(k))};
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
