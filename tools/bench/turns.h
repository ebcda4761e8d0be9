#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tools/cli/report.h"
#include "tools/cli/statistics.h"

namespace sparsellm {

// How a product fares against another one that it was measured by turns with.
enum class Verdict : uint8_t { slower, equal, faster };
std::string_view name_of(Verdict verdict);  // "slower", "equal", "faster"

// A product and the one that it is compared with, measured by turns, so that both find the device
// as warm and as fast.
struct Turns {
  Spread time;
  Spread baseline;
  Verdict verdict = Verdict::equal;

  double speedup() const { return baseline.median / time.median; }
};

// Of the times of each in its turns, at least one each. They are equal where the medians differ by
// no more than the larger of the two interquartile ranges: what one run calls faster another may
// call slower. Throws Error without times.
Turns compare_turns(const std::vector<double>& times, const std::vector<double>& baseline);
std::string_view verdict_rule();                  // this, in one line for the head of a report
Turns scaled(const Turns& turns, double factor);  // in another unit

// Of a report; nothing where nothing took turns.
Cell verdict_cell(const std::optional<Verdict>& verdict);

}  // namespace sparsellm
