#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/base/cuda_context.h"
#include "kernels/base/parallel.h"
#include "models/format_times.h"
#include "models/weights/weight_loader.h"

namespace sparsellm {

// Measures layers on a CUDA device as an engine has them: each comes from a loader of its own,
// which gets it there in the format, is tuned, and goes again before the next. Calls find their
// weight outside the L2: there are as many copies of a small one as that takes, which take turns.
class LoadedFormatMeter : public FormatMeter {
 public:
  struct Options {
    Device device;
    // Loads the model's weights to the device, linear layers in this format.
    std::function<std::unique_ptr<WeightLoader>(const LayerFormat& in)> loader;
    int64_t most_tokens = 0;  // of a step of the engine, whose workspace kernels are chosen for
  };
  // Puts the kernels that it chooses into the cache, which outlives it, as an engine that tunes its
  // layers does (WeightMatrix::tune). Throws Error.
  LoadedFormatMeter(Options options, TuneCache& cache);

  Measured measure(const LayerKind& kind, const LayerFormat& in,
                   std::span<const int64_t> tokens) override;

 private:
  Linear load(const JoinedLinear& layer, const LayerFormat& in) const;

  Options options_;
  TuneCache& cache_;
  CudaContext cuda_;
  ThreadPool threads_{1};
};

}  // namespace sparsellm
