#pragma once

#include <cstdint>
#include <string>

namespace sparsellm {

// What the layout of an encoding is chosen for, by formats that have several.
enum class LayoutFor : uint8_t {
  speed,  // the one in which products are the fastest
  size,   // the one with the fewest bytes, or less than 1/256 more
};

// The layout that a weight is encoded in.
struct LayoutOptions {
  LayoutFor goal = LayoutFor::speed;  // of the format's rule, which chooses by the matrix alone
  // The text of a layout as the format writes it, or of a rule that it has besides (of tca_bme
  // "speed" and "size"), instead of what the goal's rule chooses; empty: by that. It may be hostile
  // (WeightFormat::check_layout()).
  std::string layout = {};

  bool operator==(const LayoutOptions&) const = default;
};

}  // namespace sparsellm
