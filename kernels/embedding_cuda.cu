#include "kernels/device/cuda_types.cuh"
#include "kernels/device/elementwise.cuh"
#include "kernels/embedding_device.h"

namespace sparsellm {
namespace {

template <class W>
struct Table {
  const W* data;
  int64_t stride;
};

// position_ids is null if there are no learned positions; a position below 0 is that of padding.
template <class W>
__global__ void embedding_kernel(const int* ids, const int* position_ids, Table<W> tokens,
                                 Table<W> positions, int64_t position_offset, float token_scale,
                                 float* y, int64_t y_stride, int hidden) {
  const int64_t row = blockIdx.x;
  const W* token = tokens.data + ids[row] * tokens.stride;
  const W* position =
      position_ids != nullptr
          ? positions.data + (max(position_ids[row], 0) + position_offset) * positions.stride
          : nullptr;
  for (int i = elementwise_first(); i < hidden; i += elementwise_step()) {
    const float shift = position != nullptr ? f32_of(position[i]) : 0.0f;
    y[row * y_stride + i] = fmaf(f32_of(token[i]), token_scale, shift);
  }
}

}  // namespace

void embedding_cuda(const Tensor& ids, const Tensor& positions, const EmbeddingTables& tables,
                    Tensor y, ExecContext& ctx) {
  const bool has_positions = !tables.positions.empty();
  require(!has_positions || tables.positions.dtype() == tables.tokens.dtype(),
          "embedding: the tables are {} and {}; on CUDA they have one dtype",
          name_of(tables.tokens.dtype()), name_of(tables.positions.dtype()));
  visit_floating(tables.tokens.dtype(), [&]<class W>(W) {
    const Table<W> token_table{static_cast<const W*>(tables.tokens.raw()),
                               tables.tokens.row_stride()};
    const Table<W> position_table{static_cast<const W*>(tables.positions.raw()),
                                  has_positions ? tables.positions.row_stride() : 0};
    // Not early: a decode step's tables, and the tokens of the step before, are there when it
    // begins (kernels/paged_kv.h).
    launch(ctx, embedding_kernel<W>, elementwise_shape(y.size(0), y.size(1)),
           static_cast<const int*>(ids.raw()),
           has_positions ? static_cast<const int*>(positions.raw()) : nullptr, token_table,
           position_table, tables.position_offset, tables.token_scale, static_cast<float*>(y.raw()),
           y.row_stride(), static_cast<int>(y.size(1)));
  });
}

}  // namespace sparsellm
