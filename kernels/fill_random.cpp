#include "kernels/fill_random.h"

#include <cmath>

#include "kernels/base/error.h"
#include "kernels/checks.h"
#include "kernels/fill_random_device.h"

namespace sparsellm {

uint64_t random_key(uint64_t seed, std::string_view name) {
  uint64_t key = 0xcbf29ce484222325u ^ seed;  // FNV-1a
  for (char c : name) {
    key = (key ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  }
  return key;
}

RandomFillSteps steps_of(const RandomFill& fill, const ZeroThresholds& thresholds,
                         const uint64_t* cell_zeros) {
  return {.key = fill.key,
          .zeros = static_cast<uint64_t>(std::llround(fill.sparsity * 0x1p32)),
          .centre = fill.centre,
          .step = fill.spread * 0x1p-16f,
          .grid = thresholds.grid,
          .cell_zeros = cell_zeros,
          .row_order = thresholds.counted ? random_order(thresholds.grid.columns) : RandomOrder()};
}

void fill_random(const RandomFill& fill, Tensor x, ExecContext& ctx) {
  check_tensor({"fill_random", "x"}, x, Elements::floating, {kAnySize}, ctx);
  require(x.contiguous(), "fill_random: x is not contiguous");
  require(fill.sparsity >= 0.0 && fill.sparsity <= 1.0,
          "fill_random: the sparsity is {}; it lies between 0 and 1", fill.sparsity);
  const std::string reason = why_not(fill.pattern, fill.sparsity);
  require(reason.empty(), "fill_random: the pattern {}", reason);
  ZeroThresholds thresholds;
  if (fill.pattern.kind != ZeroPattern::Kind::uniform) {
    require(fill.columns > 0 && x.size(0) % fill.columns == 0,
            "fill_random: {} elements are no matrix with {} columns", x.size(0), fill.columns);
    if (x.size(0) > 0) {
      thresholds = zero_thresholds(fill.pattern, fill.sparsity, fill.key, x.size(0) / fill.columns,
                                   fill.columns);
    }
  }
  if (ctx.device.is_cuda()) {
    fill_random_cuda(fill, thresholds, x, ctx);
  } else {
    fill_random_cpu(fill, thresholds, x, ctx);
  }
}

}  // namespace sparsellm
