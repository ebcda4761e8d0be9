#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/tune_cache.h"
#include "models/layer_kinds.h"

namespace sparsellm {

// Measures layers on a device.
class FormatMeter {
 public:
  virtual ~FormatMeter() = default;

  struct Measured {
    int64_t bytes = 0;
    std::vector<double> seconds = {};  // of a product of each number of tokens
  };
  // The layer that stands for the kind, in this format: as it is stored where it is stored so, else
  // encoded on the device, and with tuned kernels. Takes the memory of the layer and of what it is
  // made from. Throws OutOfMemory where there is not so much, and Error for a weight that the
  // format does not take.
  virtual Measured measure(const LayerKind& kind, const LayerFormat& in,
                           std::span<const int64_t> tokens) = 0;
};

// What the layer that stands for a kind takes in a format.
struct FormatTime {
  LayerFormat in;
  int64_t bytes = 0;  // on the device
  // Of products of all the numbers of tokens together, each of which counts the same; nothing where
  // it could not be measured.
  std::optional<double> seconds = {};
  std::string why_not = {};  // that is, in one line; empty if it was, or was not tried
};

// Where the times of candidates come from.
struct TimeSource {
  Device device;
  std::span<const int64_t> tokens;
  int64_t most_tokens = 0;      // of a step
  std::string_view device_key;  // TuneMeter::device_key()
  TuneCache& cache;
  FormatMeter* meter = nullptr;  // of what the cache does not have
  bool measured = false;         // whether the meter had to be asked, and had an answer
};

// Of one format for the numbers of tokens together. What is measured goes into the cache for each
// number of tokens apart, and so does the reason why it could not be; that is no answer where there
// is a meter. Neither time nor reason: it was never tried, and there is no meter. Throws
// DeviceLost, and Error if the weight cannot be loaded as a dense one, for other reasons than want
// of memory.
FormatTime time_of(const LayerKind& kind, const LayerFormat& in, TimeSource& source);

// All that a time for one number of tokens depends on: the format with its version and layout and
// whether the layer is stored in it, shape, density in percent, places of random zeros, dtype, bias
// and activation, the largest step, and the device.
std::string format_time_key(const LayerKind& kind, const LayerFormat& in, int64_t tokens,
                            const TimeSource& source);

// As a TuneCache has it: "97.123 us, 411041792 bytes of 410000000 expected", or "none: " and why.
// Layers whose densities are the same percent share a time, but not their bytes, which differ as
// the expected ones do.
std::string to_text(const FormatTime& time, int64_t expected);
// Nothing for any other text, for figures that cannot be, and for a reason that is no short line of
// printable characters. `expected`: bytes of this layer.
std::optional<FormatTime> format_time_from(std::string_view text, const LayerKind& kind,
                                           const LayerFormat& in, int64_t expected);

}  // namespace sparsellm
