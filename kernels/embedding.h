#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Row lookup, with any floating dtype in the tables; on CUDA both have the same.
//   ids        i32 [tokens], each in [0, vocabulary)
//   table      [vocabulary, hidden]
//   positions  i32 [tokens], or empty: the model has no learned positions
//   position_table [positions, hidden], or empty; row positions[t] + position_offset is added
//   token_scale    of the rows of table
//   y          f32 [tokens, hidden], the residual stream
// An index outside its table throws Error on the CPU.
struct EmbeddingTables {
  Tensor tokens;
  Tensor positions;
  int64_t position_offset = 0;  // 2 in OPT, whose table starts with two unused rows
  float token_scale = 1.0f;
};
void embedding(const Tensor& ids, const Tensor& positions, const EmbeddingTables& tables, Tensor y,
               ExecContext& ctx);

}  // namespace sparsellm
