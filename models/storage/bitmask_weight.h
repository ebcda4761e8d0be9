#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "models/storage/safetensors.h"

namespace sparsellm {

// A weight [rows, columns] (out, in) as the library compressed-tensors stores it in its formats
// "sparse-bitmask" and "sparse-24-bitmask", as four tensors of a checkpoint:
//   <base>.shape        I64 [2]: rows, columns
//   <base>.bitmask      U8 [rows, ceil(columns / 8)]: bit i of byte j is set where the value of
//                       column 8 * j + i is stored; no bits are set after the last column
//   <base>.compressed   f32, f16 or bf16: the stored values, row by row; of a quantised weight its
//                       codes, i8 or e4m3
//   <base>.row_offsets  I64 [rows]: which of these is the first of each row; the second format
//   lacks
//                       them
// where <base> is the name of the weight, "<module>.weight", or in newer releases "<module>". Newer
// releases also add a dimension of 1 to some of the shapes. A view of the checkpoint.
class BitmaskWeight {
 public:
  // Nothing if the checkpoint does not have the weight in this form. A leading "model." or
  // "model.decoder." of the name may be missing in the checkpoint. Throws Error with the directory
  // and the tensor's name if one is missing or of the wrong type or shape, or if the weight is
  // there in another form, too.
  static std::optional<BitmaskWeight> find(const Checkpoint& checkpoint,
                                           std::string_view weight_name);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  DType dtype() const { return dtype_; }  // of no use where there are codes
  // "I8" or "F8_E4M3" of codes (models/storage/quantized_weight.h); else empty.
  std::string_view code_type() const { return code_type_; }
  int64_t stored_values() const { return values_; }
  int64_t bytes() const;  // of all its tensors

  // The names of its tensors, so that they do not count as unused.
  std::vector<std::string> tensor_names() const;

  // The matrix, in host memory, in its stored dtype. Throws Error if it has codes, and if bitmask,
  // offsets and values do not fit together. The pages that it read of the mapped file are out of
  // memory again.
  OwnedTensor dense() const;
  // The same of one that has codes: [rows, columns], 0 where none is stored.
  std::vector<int8_t> codes() const;

 private:
  // A tensor of the checkpoint, and its name; nullptr for offsets that are not there.
  struct Part {
    std::string name;
    const StoredTensor* tensor = nullptr;
  };

  BitmaskWeight(const Checkpoint& checkpoint, const std::string& base);
  Part part(std::string_view suffix) const;
  std::string describe(const Part& part) const;
  // To [rows, columns] of zeros.
  template <class T>
  void expand(T* to) const;

  const Checkpoint* checkpoint_;
  std::string base_;
  Part shape_;
  Part bitmask_;
  Part compressed_;
  Part row_offsets_;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  int64_t values_ = 0;
  DType dtype_ = DType::f16;
  std::string_view code_type_;  // of the tensor
};

// The name of the module that the weight belongs to: the weight's without its ".weight", or that
// itself if it has no such end. A view of it.
std::string_view module_of_weight(std::string_view weight_name);
// Whether a stored dtype is that of codes of 8 bits.
bool is_code_type(std::string_view dtype);

}  // namespace sparsellm
