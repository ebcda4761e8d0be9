#pragma once

#include <spdlog/fwd.h>

#include "tools/bench/engine.h"
#include "tools/bench/layers.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Adds the tables of report_layers(): the time of the linear layers of a model that is not loaded,
// as in an engine of this size. Seed and sums of the options are the model's. Throws Error and
// Interrupted.
void measure_layers(const BenchModelArgs& model, LayerBenchOptions options,
                    const BenchEngineSize& size, int ranks, spdlog::logger& log,
                    ReportWriter& report);

}  // namespace sparsellm
