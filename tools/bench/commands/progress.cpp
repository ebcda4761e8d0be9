#include "tools/bench/commands/progress.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "tools/cli/interrupt.h"

namespace sparsellm {

BenchProgress::BenchProgress(std::string label, std::string unit, bool enabled)
    : bar_(std::move(label), enabled), unit_(std::move(unit)) {}

void BenchProgress::operator()(int64_t done, int64_t total) {
  throw_if_interrupted();
  bar_.update(done, total, fmt::format("of {} {}", total, unit_));
}

}  // namespace sparsellm
