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

RandomFillSteps steps_of(const RandomFill& fill) {
  return {.key = fill.key,
          .zeros = static_cast<uint64_t>(std::llround(fill.sparsity * 0x1p32)),
          .centre = fill.centre,
          .step = fill.spread * 0x1p-16f};
}

void fill_random(const RandomFill& fill, Tensor x, ExecContext& ctx) {
  check_tensor({"fill_random", "x"}, x, Elements::floating, {kAnySize}, ctx);
  require(x.contiguous(), "fill_random: x is not contiguous");
  require(fill.sparsity >= 0.0 && fill.sparsity <= 1.0,
          "fill_random: the sparsity is {}; it lies between 0 and 1", fill.sparsity);
  if (ctx.device.is_cuda()) {
    fill_random_cuda(fill, x, ctx);
  } else {
    fill_random_cpu(fill, x, ctx);
  }
}

}  // namespace sparsellm
