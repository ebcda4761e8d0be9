#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/layer_kinds.h"
#include "sparse/format.h"

namespace sparsellm {

// What one layer of a kind takes in a format.
struct FormatTime {
  std::string format;
  int64_t bytes = 0;  // on the device
  // Of products of all the numbers of tokens together, each of which counts the same; nothing where
  // there is no weight in this format or no product.
  std::optional<double> seconds = {};
};

// Times of all candidates for a kind of layers as a TuneCache keeps them.

// All that they depend on: candidates with their versions, shape, density in percent, dtype, tokens
// and `device_key` (TuneMeter::device_key()).
std::string format_times_key(const LayerKind& kind, std::span<const WeightFormat* const> candidates,
                             std::span<const int64_t> tokens, std::string_view device_key);

// "dense 97.123 us 411041792 bytes; tiled_csl none"
std::string to_text(std::span<const FormatTime> times);
// Empty for anything but a text of these candidates in their order, with figures that can be.
std::vector<FormatTime> format_times_from(std::string_view text, const LayerKind& kind,
                                          std::span<const WeightFormat* const> candidates);

}  // namespace sparsellm
