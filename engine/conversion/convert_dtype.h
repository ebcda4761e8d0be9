#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"
#include "models/storage/safetensors.h"

// A checkpoint's tensors in f16 or bf16. Values are rounded to nearest even, small ones to
// subnormals and zeros; infinities and NaN stay what they are.
namespace sparsellm {

// What a tensor has to be converted from; nothing for one that is in `to` already, or not of
// floating-point numbers. Throws Error that begins with `what`, the tensor in words, for
// floating-point numbers other than f32, f16 and bf16.
std::optional<DType> dtype_to_convert(const StoredTensor& tensor, DType to,
                                      const std::string& what);

// Throws Error that begins with `what` and says how many, if finite values are too large for `to`.
// `bytes` need not be aligned.
void require_in_range(DType from, std::span<const std::byte> bytes, DType to,
                      const std::string& what, ThreadPool& threads);

// The values in `to`. Throws Error as require_in_range() does.
Buffer convert_values(DType from, std::span<const std::byte> bytes, DType to,
                      const std::string& what, ThreadPool& threads);

}  // namespace sparsellm
