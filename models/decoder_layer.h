#pragma once

#include <cstdint>
#include <memory>

#include "models/attention.h"
#include "models/mlp.h"
#include "models/norm.h"

namespace sparsellm {

// One pre-norm transformer block. Architectures differ in how it is put together, not in what it
// does.
struct DecoderLayer {
  Norm attention_norm;
  SelfAttention attention;
  Norm mlp_norm;
  std::unique_ptr<Mlp> mlp;

  // In place on the residual stream x [tokens, hidden]; see SelfAttention for the rest.
  void forward(Tensor x, const PagedBatch& batch, const Tensor& cos_sin, const KvLayer& kv,
               ExecContext& ctx) const;

  int64_t workspace_bytes(int64_t tokens, int64_t hidden, DType dtype) const;
};

}  // namespace sparsellm
