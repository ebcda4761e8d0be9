#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/quantize/quantized_matrix.h"

namespace sparsellm {

// A QuantizedMatrix in the memory of a CUDA device, with the same fields.
struct DeviceQuantizedMatrix {
  ValueType type = ValueType::i8;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t group = 0;
  Buffer scales;  // f32 [rows, groups of columns]
  // i8 [rows, columns]; Buffer::scratch() of the context, which is freed first and waits for the
  // kernels that use both.
  Buffer codes;
};

// quantize() of w [rows, columns], f16 or bf16, on the CUDA device of ctx, bit by bit; the rows of
// w may be strided. The codes take a byte a weight besides w. Waits for the check that all weights
// are finite; the rest is enqueued. Throws Error as quantize() does.
DeviceQuantizedMatrix quantize_cuda(const Tensor& w, ValueType type, int64_t group,
                                    ExecContext& ctx);

}  // namespace sparsellm
