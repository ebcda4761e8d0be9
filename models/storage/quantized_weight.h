#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/parallel.h"
#include "models/storage/bitmask_weight.h"
#include "models/storage/safetensors.h"
#include "sparse/quantize/quantized_matrix.h"

namespace sparsellm {

// A weight [rows, columns] (out, in) as the library compressed-tensors stores it in its formats
// "float-quantized", "int-quantized" and "pack-quantized", as tensors of a checkpoint. Codes are
//   <module>.weight         F8_E4M3 or I8 [rows, columns]; or
//   those of a bitmask      (models/storage/bitmask_weight.h) of the same types; or
//   <module>.weight_packed  I32 [rows, ceil(columns / 8)]: codes of 4 bits, each with 8 added, that
//                           of the first column in the lowest bits; 0, or 8 for a code of 0, after
//                           the last column
//     with <module>.weight_shape  I64 or I32 [2]: rows, columns
// and scales
//   <module>.weight_scale   f32, f16 or bf16: of codes of 8 bits one of the matrix or one of each
//                           row; of 4 bits one of each row, or [rows, groups], of 32, 64 or 128
//                           columns, which divide the columns
// A view of the checkpoint.
class QuantizedWeight {
 public:
  // Nothing if the checkpoint does not have the weight in this form. A leading "model." or
  // "model.decoder." of the name may be missing in the checkpoint. Throws Error with the directory
  // and the tensor's name if one is missing or of the wrong type or shape, if the weight is also
  // stored in another form, and for tensors of zero points, an order of groups or second scales,
  // which are not supported.
  static std::optional<QuantizedWeight> find(const Checkpoint& checkpoint,
                                             std::string_view weight_name);

  ValueType type() const { return type_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t group() const { return group_; }  // QuantizedMatrix::group
  // Of a bitmask; some of them may be zeros.
  std::optional<int64_t> stored_values() const;
  int64_t bytes() const;  // of all its tensors

  // The names of its tensors, so that they do not count as unused.
  std::vector<std::string> tensor_names() const;

  // The share of codes that are not zero: of a bitmask by its stored values, else estimated from
  // 256 random rows, the same ones every time.
  double density() const;

  // Codes and scales as they are stored, valid. Of 4 bits with one scale a row, groups of 128 have
  // that scale. Throws Error with the tensor's name if a scale is not finite and positive, or of 4
  // bits no number of f16; for a NaN of e4m3; for what a bitmask has wrong; and for bits after the
  // last column. The pages that it read of the mapped file are out of memory again.
  QuantizedMatrix matrix(ThreadPool& threads) const;

 private:
  // A tensor of the checkpoint, and its name.
  struct Part {
    std::string name;
    const StoredTensor* tensor = nullptr;
  };

  QuantizedWeight(const Checkpoint& checkpoint, std::string_view name);
  Part part(std::string_view suffix) const;
  std::string describe(const Part& part) const;
  void refuse_what_is_not_supported() const;
  void read_shape();
  void read_scale_shape();
  void unpack_row(int64_t row, std::span<int8_t> codes) const;
  std::span<const std::byte> row_bytes(int64_t row) const;
  std::vector<float> scales() const;

  const Checkpoint* checkpoint_;
  std::string module_;
  Part codes_;  // or packed; none of a bitmask
  Part shape_;  // of packed codes
  Part scale_;
  std::optional<BitmaskWeight> bitmask_;
  ValueType type_ = ValueType::i8;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  int64_t group_ = 0;
};

}  // namespace sparsellm
