#include "models/input_embedding.h"

#include "kernels/embedding.h"

namespace sparsellm {

void InputEmbedding::forward(const StepInputs& step, Tensor hidden, ExecContext& ctx) const {
  const EmbeddingTables tables{.tokens = tokens.view,
                               .positions = positions.view,
                               .position_offset = position_offset,
                               .token_scale = token_scale};
  embedding(step.token_ids, step.batch.positions, tables, hidden, ctx);
}

}  // namespace sparsellm
