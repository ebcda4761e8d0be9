#pragma once

#include <cstdint>

namespace sparsellm {

// Some of a model's decoder blocks, for models with any number of them.
struct LayerRange {
  enum class Unit : uint8_t {
    // Shares of the number of layers, in [0, 1]. A border x lies at x * layers, rounded to nearest;
    // one in the middle of a layer goes towards the middle of the model: a half is rounded up for
    // x <= 1/2 and down for x > 1/2. So ranges that share a border neither overlap nor leave out a
    // layer, and the first and the last x of a model are equally many layers (for x < 1/2).
    share,
    layer,  // numbers of layers; a negative begin, and an end of 0 or less, count from the end
  };
  enum class Side : uint8_t { inside, outside };

  Unit unit = Unit::share;
  double begin = 0.0;  // whole numbers where the unit is a layer
  double end = 1.0;    // exclusive
  Side side = Side::inside;

  // 0 <= layer < layers. Throws Error if numbers of layers leave the model or are no range in it.
  bool contains(int64_t layer, int64_t layers) const;

  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

}  // namespace sparsellm
