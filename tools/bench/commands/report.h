#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "tools/bench/args.h"
#include "tools/bench/engine.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Runs `body` with a report on stdout. What was measured before an error is written all the same.
void with_report(const OutputArgs& output, Environment environment,
                 const std::function<void(ReportWriter& report)>& body);

// describe_environment() of the device of these flags, with the devices of several ranks and the
// plan of random weights.
Environment describe_model_environment(const BenchModelArgs& args,
                                       const std::vector<std::string>& command_line);

Property dtype_property(DType dtype);
// How a verdict is arrived at.
Property verdict_property();
Property read_bandwidth_property(double bytes_per_second);

// What read_bandwidth_property() is told: measure_read_bandwidth() of many times any last cache.
double measure_memory_bandwidth(Device device);

}  // namespace sparsellm
