#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/zero_pattern.h"
#include "tools/bench/verify_product.h"

namespace sparsellm {

// Random values in [-spread, spread) except for a share of zeros: [rows, columns] on the context's
// device.
struct RandomOperand {
  int64_t rows = 0;
  int64_t columns = 0;
  DType dtype = DType::f16;
  double sparsity = 0.0;
  ZeroPattern pattern = {};  // of the zeros
  uint64_t key = 0;
  float spread = 1.0f;
};
OwnedTensor random_matrix(const RandomOperand& matrix, ExecContext& ctx);

// Inputs of a product by this weight, [tokens, in], in the dtype of activations: on the CPU f32, on
// CUDA that of the weight.
OwnedTensor random_inputs(const Tensor& weight, int64_t tokens, uint64_t seed, ExecContext& ctx);

// What products by one weight are measured with: random inputs for as many tokens as are needed at
// most, and the right result; fewer tokens are the first rows of all of them.
class ProductOperands {
 public:
  // weight [out, in] is contiguous, on the context's device.
  ProductOperands(const Tensor& weight, int64_t max_tokens, uint64_t seed, ExecContext& ctx);
  // With x [max_tokens, in] instead of random inputs.
  ProductOperands(const Tensor& weight, OwnedTensor x, ExecContext& ctx);

  const Tensor& weight() const { return weight_; }
  int64_t max_tokens() const { return x_.view.size(0); }
  Tensor x(int64_t tokens) const { return x_.view.rows(0, tokens); }
  Tensor y(int64_t tokens) const { return y_.view.rows(0, tokens); }
  // Of the product that takes turns with the one that y() is of.
  Tensor other_y(int64_t tokens) const { return other_y_.view.rows(0, tokens); }
  const ProductReference& reference() const { return reference_; }

 private:
  Tensor weight_;
  OwnedTensor x_;
  OwnedTensor y_;
  OwnedTensor other_y_;
  ProductReference reference_;
};

}  // namespace sparsellm
