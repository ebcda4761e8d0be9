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

// The format of all layers of a kind, and why.
struct FormatChoice {
  enum class By : uint8_t {
    rules,
    no_other,     // candidate than dense
    cache,        // what an earlier load measured
    measurement,  // now
    plan,         // LayerWeight::planned
  };
  struct NotTried {
    std::string format;
    std::string why;  // why_no_candidate()
  };

  LayerKind kind;
  LayerFormat in;
  By by = By::rules;
  // Of the candidates, dense first; none unless they were tried.
  std::vector<FormatTime> times = {};
  std::vector<NotTried> not_tried = {};  // all others, where there was a choice by time
  bool for_memory = false;               // not the fastest, which would not have fitted
  Device device = {};

  // In the format that was chosen, or another one: of the layer that stands for all, as measured,
  // or else as it can be expected or is stored; and of all layers together, whose sizes differ from
  // its as can be expected of their densities, or as they do where they are stored in this format.
  int64_t bytes() const { return bytes(in); }
  int64_t bytes(const LayerFormat& other) const;
  int64_t bytes_of_all() const { return bytes_of_all(in); }
  int64_t bytes_of_all(const LayerFormat& other) const;
};

struct ChoiceOptions {
  Device device;
  std::vector<int64_t> tokens;  // token buckets (kernels/base/token_buckets.h); at least one
  int64_t most_tokens = 0;      // the bucket of the largest step, for whose workspace is measured
};

// What is tried for a kind: dense; the formats that are for_auto() on the device, run there, hold
// the dtype and can be expected to take fewer bytes than dense; likewise, on a GPU, the dense
// format of the requested narrow values (dense_format_with()), unless the kind is stored in
// tca_bme, which keeps its values; and, if it runs there, the one that it is stored in.
std::vector<const WeightFormat*> format_candidates(const LayerKind& kind, const Device& device);
// Why a format is not among them, in a few words; empty if it is.
std::string why_no_candidate(const WeightFormat& format, const LayerKind& kind,
                             const Device& device);

// That of the plan, where there is one; else by rules alone: the same for the same model on every
// GPU, and that of choose_narrow_format() on all GPUs for weights that are to have narrow values
// and are not stored in tca_bme. Where a rule's format is no candidate, dense. On the CPU, where
// all sparse formats are loaded into the same panels, a weight that is not to be dense stays in the
// format that it is stored in; on a GPU one of a format that always rounds does.
FormatChoice choose_by_rules(const LayerKind& kind, const FormatRules& rules,
                             const ChoiceOptions& options);

// That of the plan, where there is one; else by measurement: the fastest candidate, and of those
// that are no more than 2 % slower the one with the fewest bytes. Times come from the cache, which
// has one for each format and number of tokens (format_time_key()), or from `meter`, and then go
// into the cache. A candidate for which there is not enough memory, or which does not take the
// weight, is out, and tried again where there is a meter; dense has to take it. Where a time is
// missing and there is no meter, and where no candidate could be measured, rules choose.
FormatChoice choose_by_time(const LayerKind& kind, const FormatRules& rules,
                            const ChoiceOptions& options, FormatMeter* meter, TuneCache& cache,
                            std::string_view device_key);

// Adds to a choice by time the times of smaller layouts than those that were tried
// (WeightFormat::smaller_layout()) of weights that are encoded while they load: slower ones, which
// fit_into() takes where the fastest do not fit. As choose_by_time(); what was never tried, where
// there is no meter, is not added.
void add_smaller_layouts(FormatChoice& choice, const ChoiceOptions& options, FormatMeter* meter,
                         TuneCache& cache, std::string_view device_key);

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
