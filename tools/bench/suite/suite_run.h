#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tools/bench/suite/suite_plan.h"
#include "tools/bench/suite/suite_results.h"

namespace spdlog {
class logger;
}

namespace sparsellm {

struct SuiteRunOptions {
  int64_t repeats = 1;  // measured runs of a batch
  // Nothing begins that is not expected to end within so many seconds.
  double budget = std::numeric_limits<double>::infinity();
  double read_bandwidth = 0.0;     // ThroughputOptions::read_bandwidth
  SuiteResultKey key = {};         // all results have its commit, GPU and memory
  std::string environment = "{}";  // SuiteResult::environment
  std::function<void(const std::string& line)> say = {};  // what was measured
};

struct SuiteCounts {
  int64_t measured = 0;
  int64_t failed = 0;     // with an error as their result
  int64_t not_begun = 0;  // for want of time
};

// Measures the cells of a plan that run, one model in memory after the other, and adds each result
// when it is there. A cell that fails has its error as result, and the next one goes on;
// Interrupted and errors of the results' file end all.
SuiteCounts run_suites(const std::vector<PlannedCell>& plan, const SuiteMachine& machine,
                       const SuiteRunOptions& options, SuiteResults& results, spdlog::logger& log);

}  // namespace sparsellm
