#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "models/step_inputs.h"

namespace sparsellm {

// What stands before the layers of a decoder.
struct InputEmbedding {
  OwnedTensor tokens;           // [vocabulary, hidden]
  OwnedTensor positions;        // [positions + offset, hidden], or empty
  int64_t position_offset = 0;  // as in EmbeddingTables (kernels/embedding.h)
  float token_scale = 1.0f;     // there

  int64_t vocab_size() const { return tokens.view.size(0); }
  int64_t hidden_size() const { return tokens.view.size(1); }

  // hidden f32 [tokens, hidden]: the residual stream before the first layer.
  void forward(const StepInputs& step, Tensor hidden, ExecContext& ctx) const;
};

}  // namespace sparsellm
