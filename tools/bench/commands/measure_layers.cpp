#include "tools/bench/commands/measure_layers.h"

#include <functional>

#include "kernels/base/exec.h"
#include "tools/bench/commands/progress.h"
#include "tools/bench/layer_source.h"

namespace sparsellm {

void measure_layers(const BenchModelArgs& model, LayerBenchOptions options,
                    const BenchEngineSize& size, int ranks, spdlog::logger& log,
                    ReportWriter& report) {
  options.seed = model.seed;
  options.sums = model.deterministic ? Sums::batch_invariant : Sums::fastest;
  BenchProgress progress("layers", "layers", !model.model.quiet);
  options.progress = std::ref(progress);
  report_layers(options, open_layers(model, size, ranks, &log), report);
}

}  // namespace sparsellm
