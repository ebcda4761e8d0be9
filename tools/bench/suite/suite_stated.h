#pragma once

#include <vector>

#include "kernels/base/json_reader.h"
#include "tools/bench/suite/suite.h"

namespace sparsellm {

// Adds an element of "stated" to a suite whose other members are there. `all_cells` are the suite's
// with SuiteFormats::all: every pattern matches one of them. Throws Error that names the key.
void add_stated_figure(const JsonValue& value, const std::vector<SuiteCell>& all_cells,
                       Suite& suite);

// A text that suite_metrics() has.
std::string read_suite_metric(const JsonValue& value);

}  // namespace sparsellm
