#pragma once

#include <string>
#include <vector>

#include "tools/bench/commands/throughput_args.h"

namespace sparsellm {

// Measures the server of args.server.url, with a report on stdout. Throws Error and Interrupted.
void measure_server(const ThroughputArgs& args, const std::vector<std::string>& command_line);

}  // namespace sparsellm
