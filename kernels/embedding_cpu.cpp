#include "kernels/cpu_loops.h"
#include "kernels/embedding_device.h"

namespace sparsellm {
namespace {

// Calls body(table_row, out, i, lanes) for the table's row `indices[t] + offset` and y's row of
// every token.
template <class Body>
void for_each_lookup(std::string_view what, const Tensor& indices, int64_t offset,
                     const Tensor& table, const Tensor& y, ExecContext& ctx, Body&& body) {
  visit_float(table.dtype(), [&]<class T>(T) {
    for_each_row(y.size(0), y.size(1), ctx, [&](int64_t token) {
      const int64_t index = indices.data<int32_t>()[token];
      require(index >= 0 && index + offset >= 0 && index + offset < table.size(0),
              "embedding: {} {} is outside [0, {})", what, index, table.size(0) - offset);
      const T* from = table.row<T>(index + offset);
      float* to = y.row<float>(token);
      for_each_vector(y.size(1), [&](int64_t i, auto lanes) { body(from + i, to + i, lanes); });
    });
  });
}

}  // namespace

void embedding_cpu(const Tensor& ids, const Tensor& positions, const EmbeddingTables& tables,
                   Tensor y, ExecContext& ctx) {
  for_each_lookup("token id", ids, 0, tables.tokens, y, ctx,
                  [&](auto* from, float* to, auto lanes) {
                    store(load(from, lanes) * F32x8::all(tables.token_scale), to, lanes);
                  });
  if (!tables.positions.empty()) {
    for_each_lookup("position", positions, tables.position_offset, tables.positions, y, ctx,
                    [](auto* from, float* to, auto lanes) {
                      store(load(to, lanes) + load(from, lanes), to, lanes);
                    });
  }
}

}  // namespace sparsellm
