#include "kernels/embedding.h"

#include "kernels/checks.h"
#include "kernels/embedding_device.h"

namespace sparsellm {

void embedding(const Tensor& ids, const Tensor& positions, const EmbeddingTables& tables, Tensor y,
               ExecContext& ctx) {
  check_tensor({"embedding", "y"}, y, Elements::f32, {kAnySize, kAnySize}, ctx);
  check_tensor({"embedding", "ids"}, ids, Elements::i32, {y.size(0)}, ctx);
  check_tensor({"embedding", "table"}, tables.tokens, Elements::floating, {kAnySize, y.size(1)},
               ctx);
  if (!tables.positions.empty()) {
    check_tensor({"embedding", "position_table"}, tables.positions, Elements::floating,
                 {kAnySize, y.size(1)}, ctx);
    check_tensor({"embedding", "positions"}, positions, Elements::i32, {y.size(0)}, ctx);
  }
  if (ctx.device.is_cuda()) {
    embedding_cuda(ids, positions, tables, y, ctx);
  } else {
    embedding_cpu(ids, positions, tables, y, ctx);
  }
}

}  // namespace sparsellm
