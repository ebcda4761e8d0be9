#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/suite/suite.h"
#include "tools/bench/suite/suite_engine.h"
#include "tools/bench/suite/suite_results.h"

namespace sparsellm {

// Whether a cell would be measured, and if not, why.
enum class SuiteState : uint8_t { runs, done, does_not_fit, needs_gpus, no_kernels };

// A cell as it would be run here.
struct PlannedCell {
  const Suite* suite = nullptr;  // which the plan does not own
  const SuiteCell* cell = nullptr;
  SuiteState state = SuiteState::runs;
  SuiteFit fit = {};     // of a model; of one that runs, with the step of all of its load
  double seconds = 0.0;  // that it is expected to take, without loading
  double loading = 0.0;  // of its load

  // "does not fit: 63.1 of 47.0 GB", in 10^9 bytes.
  std::string text() const;
};

// Whether cells, one after the other in a plan, are measured with one engine, or one weight.
bool measured_together(const PlannedCell& a, const PlannedCell& b);

struct SuiteSelection {
  std::vector<std::string> only = {};  // patterns of matches_cell(), of "SUITE/CELL"; none: all
  int64_t repeats = 1;
  // Whether there is a result already.
  std::function<bool(const Suite& suite, const SuiteCell& cell)> done = {};
};

// The selected cells of the suites, in their order; looks at shapes alone. Throws Error for a
// pattern that selects nothing.
std::vector<PlannedCell> plan_suites(const std::vector<Suite>& suites,
                                     const SuiteSelection& selection, const SuiteMachine& machine);

}  // namespace sparsellm
