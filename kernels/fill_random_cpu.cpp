#include "kernels/cpu_loops.h"
#include "kernels/fill_random_device.h"

namespace sparsellm {
namespace {

float random_value(const RandomFillSteps& steps, int64_t index) {
  const uint64_t bits = random_bits(steps.key, index);
  const auto odd = static_cast<float>(2 * static_cast<int>(bits & 0xffffu) - 65535);
  return is_zero(steps, bits, index) ? 0.0f : steps.centre + odd * steps.step;
}

}  // namespace

void fill_random_cpu(const RandomFill& fill, const ZeroThresholds& thresholds, Tensor x,
                     ExecContext& ctx) {
  const RandomFillSteps steps =
      steps_of(fill, thresholds, thresholds.zeros.empty() ? nullptr : thresholds.zeros.data());
  visit_float(x.dtype(), [&]<class T>(T) {
    T* values = x.data<T>();
    ctx.threads.parallel_for(x.size(0), kMinElementsPerRange, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        values[i] = from_float<T>(random_value(steps, steps.index_of(i)));
      }
    });
  });
}

}  // namespace sparsellm
