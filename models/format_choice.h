#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/tune_cache.h"
#include "models/format_times.h"
#include "models/layer_kinds.h"
#include "models/weights/layer_formats.h"
#include "sparse/choice/format_rules.h"

namespace sparsellm {

// Measures layers on a device.
class FormatMeter {
 public:
  virtual ~FormatMeter() = default;

  struct Measured {
    int64_t bytes = 0;
    double seconds = 0.0;  // of a product of each number of tokens, together
  };
  // The layer that stands for the kind, in this format: as it is stored where it is stored so, else
  // encoded on the device, and with tuned kernels. Takes the memory of the layer and of what it is
  // made from. Throws OutOfMemory where there is not so much, and Error for a weight that the
  // format does not take.
  virtual Measured measure(const LayerKind& kind, const WeightFormat& format,
                           std::span<const int64_t> tokens) = 0;
};

// The format of all layers of a kind, and why.
struct FormatChoice {
  enum class By : uint8_t {
    rules,
    no_other,     // candidate than dense
    cache,        // what an earlier load measured
    measurement,  // now
    plan,         // LayerWeight::planned
  };

  LayerKind kind;
  std::string format;
  By by = By::rules;
  // Of the candidates, dense first; none unless they were measured.
  std::vector<FormatTime> times = {};
  bool for_memory = false;  // not the fastest, which would not have fitted

  int64_t bytes() const;  // of one layer; what can be expected where nothing was measured
};

struct ChoiceOptions {
  Device device;
  std::vector<int64_t> tokens;  // token buckets (kernels/base/token_buckets.h); at least one
};

// What is tried for a kind: dense; the formats of auto_formats() that run on the device, hold the
// dtype and can be expected to take fewer bytes than dense; and, if it runs there, the one that it
// is stored in.
std::vector<const WeightFormat*> format_candidates(const LayerKind& kind, const Device& device);

// That of the plan, where there is one; else by rules alone: the same for the same model on every
// GPU. Where a rule's format is no candidate, dense. On the CPU, where all sparse formats are
// loaded into the same panels, a weight that is not to be dense stays in the format that it is
// stored in.
FormatChoice choose_by_rules(const LayerKind& kind, const FormatRules& rules,
                             const ChoiceOptions& options);

// That of the plan, where there is one; else by measurement: the fastest candidate, and of those
// that are no more than 2 % slower the one with the fewest bytes. Times come from the cache, where
// they are kept under candidates and their versions, shape, density in percent, dtype, tokens and
// `device_key` (TuneMeter::device_key()), or from `meter`, and then go into the cache. Without a
// meter, and for want of memory, rules choose.
FormatChoice choose_by_time(const LayerKind& kind, const FormatRules& rules,
                            const ChoiceOptions& options, FormatMeter* meter, TuneCache& cache,
                            std::string_view device_key);

// Changes choices by time until all layers together take no more than `bytes`, as far as formats
// with fewer bytes go: each time the change of a kind that saves the most bytes for the time that
// it costs.
void fit_into(int64_t bytes, std::span<FormatChoice> choices);

int64_t total_bytes(std::span<const FormatChoice> choices);
LayerFormats layer_formats(std::span<const FormatChoice> choices);

// "48 layers of 28672 x 7168, 40.0 % nonzeros: tca_bme, by measurement (dense 391.2 us, tca_bme
// 230.0 us)", without an end of line. `rules` are those that may have chosen.
std::string to_string(const FormatChoice& choice, const FormatRules& rules);
std::string_view name_of(FormatChoice::By by);

}  // namespace sparsellm
