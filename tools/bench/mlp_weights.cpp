#include "tools/bench/mlp_weights.h"

#include <cmath>

#include "kernels/base/error.h"
#include "kernels/fill_random.h"
#include "tools/bench/product_operands.h"

namespace sparsellm {
namespace {

// Of a sum of `terms` products with numbers in [-1, 1): a third of the variance of these is each
// factor's.
float spread_of_weights(int64_t terms) { return 3.0f / std::sqrt(static_cast<float>(terms)); }

}  // namespace

std::string to_string(const MlpShape& shape) {
  return fmt::format("{}x{}{}", shape.neurons, shape.hidden, shape.gated ? "" : ":plain");
}

OwnedTensor random_up(const MlpShape& shape, DType dtype, uint64_t seed, ExecContext& ctx) {
  return random_matrix({.rows = shape.up_rows(),
                        .columns = shape.hidden,
                        .dtype = dtype,
                        .key = random_key(seed, "up"),
                        .spread = spread_of_weights(shape.hidden)},
                       ctx);
}

OwnedTensor random_down(const MlpShape& shape, DType dtype, uint64_t seed, ExecContext& ctx) {
  return random_matrix({.rows = shape.neurons,
                        .columns = shape.hidden,
                        .dtype = dtype,
                        .key = random_key(seed, "down"),
                        .spread = spread_of_weights(shape.neurons)},
                       ctx);
}

OwnedTensor random_tokens(const MlpShape& shape, int64_t tokens, DType dtype, uint64_t seed,
                          ExecContext& ctx) {
  return random_matrix(
      {.rows = tokens, .columns = shape.hidden, .dtype = dtype, .key = random_key(seed, "x")}, ctx);
}

}  // namespace sparsellm
