#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "sparse/activation/sign_words.h"

namespace sparsellm {

// Of an MLP: y = down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x))), as
// in OPT.
struct MlpShape {
  int64_t neurons = 0;
  int64_t hidden = 0;  // inputs, and as many outputs
  bool gated = true;

  int64_t up_rows() const { return gated ? 2 * neurons : neurons; }
  friend bool operator==(const MlpShape&, const MlpShape&) = default;
};
std::string to_string(const MlpShape& shape);  // "11008x4096", "28672x7168:plain"

// Random operands of an MLP of this shape on the context's device, uniform about 0: the same bits
// on every device. Inputs are in [-1, 1); weights are so small that gates and ups have a deviation
// of about 1, and outputs one that f16 has room for.

// [neurons, hidden], or of a gated MLP [2 * neurons, hidden]: the gate and up projections joined.
OwnedTensor random_up(const MlpShape& shape, DType dtype, uint64_t seed, ExecContext& ctx);
// [neurons, hidden], the transpose of the down projection.
OwnedTensor random_down(const MlpShape& shape, DType dtype, uint64_t seed, ExecContext& ctx);
// x [tokens, hidden], each token independent of the others.
OwnedTensor random_tokens(const MlpShape& shape, int64_t tokens, DType dtype, uint64_t seed,
                          ExecContext& ctx);

// Of random_up(): what the activation is applied to, the gate, or up where there is none.
inline Tensor first_rows(const Tensor& up, const MlpShape& shape) {
  return up.rows(0, shape.neurons);
}
inline Tensor last_rows(const Tensor& up, const MlpShape& shape) {
  return up.rows(up.size(0) - shape.neurons, shape.neurons);
}

}  // namespace sparsellm
