#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/general_sparse/cuda/device_encoding.h"
#include "sparse/general_sparse/cuda/row_product_cuda.h"

namespace sparsellm::general_sparse {

// What row_product_cuda() needs beside the parts of an encoding that it multiplies by, made of
// those on the host and copied to the device.
void add_row_pieces(DeviceEncoding& encoding, std::span<const uint32_t> starts,
                    std::span<const uint16_t> row_order, const Device& device);

// A view of an encoding that has them; nothing if it is none for row_product_cuda().
std::optional<RowWeight> row_weight(const DeviceEncoding& encoding);

// Operands of a product in the order of a linear layer, y [tokens, rows] = x [tokens, columns] *
// A^T, with x transposed into `scratch`, so that the tokens of a column are side by side.
int64_t transposed_x_bytes(DType dtype, int64_t columns, int64_t tokens);
DenseOperands with_transposed_x(const Tensor& x, const Tensor& y, Workspace::Scope& scratch,
                                ExecContext& ctx);

// A product in the order of a linear layer: y [tokens, rows] = x [tokens, columns] * A^T + bias.
// x is transposed before, so that the tokens of a column are side by side.
struct RowMatmul {
  const Tensor& x;
  const Tensor& y;
  const void* bias = nullptr;  // [rows] or null
  bool relu = false;
};
int64_t row_matmul_workspace_bytes(const RowWeight& weight, int64_t columns, int64_t tokens);
void row_matmul(const RowWeight& weight, const RowMatmul& operands, const RowConfig& config,
                ExecContext& ctx);

}  // namespace sparsellm::general_sparse
