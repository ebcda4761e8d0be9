#pragma once

#include <spdlog/fwd.h>

#include "tools/cli/args.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Adds the table "load": how fast the weights of a checkpoint in the page cache come to the GPU,
// and what bounds that: copies from page-locked memory of as many bytes, and a parallel read of the
// same files. Each is measured `repeats` times, after a read that fills the page cache. Throws
// Error; on the CPU device there is nothing to measure.
void bench_load(const ModelArgs& model, int64_t repeats, spdlog::logger& log, ReportWriter& report);

}  // namespace sparsellm
