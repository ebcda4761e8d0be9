#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/parallel.h"
#include "models/storage/model_file.h"
#include "models/storage/safetensors.h"
#include "sparse/encoded_weight.h"
#include "sparse/format.h"
#include "sparse/quantize/quantized_matrix.h"

namespace sparsellm {

// The matrices of a checkpoint, in whatever form each of them is stored: as a plain tensor, in one
// of the formats of sparse/registry.h (models/storage/model_file.h), or as compressed-tensors
// writes them (models/storage/bitmask_weight.h, quantized_weight.h). A leading "model." or
// "model.decoder." of a name may be missing in the checkpoint. Files may be hostile: every method
// throws Error that names directory and tensor.
class WeightStore {
 public:
  // The checkpoint outlives this object.
  explicit WeightStore(const Checkpoint& checkpoint);

  enum class Form : uint8_t { plain, encoded, bitmask, quantized };
  struct Stored {
    std::string name;  // of the tensor; the requested one if no tensor has it
    Form form = Form::plain;
    // Of an encoded weight its own. Of others the one they are loaded in: "tca_bme" if quantised,
    // which keeps codes and scales, else "dense".
    std::string format;
    // f32, f16 or bf16. Codes say nothing of it: they are bf16 in a checkpoint with a bf16 tensor,
    // else f16.
    DType dtype = DType::f16;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t nonzeros = 0;              // of an encoded one; the stored values of a bitmask
    const MappedFile* file = nullptr;  // that an encoded one is in
    int64_t bytes = 0;                 // in the file
    std::vector<std::string> tensors;  // of the checkpoint, whose parts make up the matrix
  };
  // Looks at headers alone. Throws Error if the weight is missing or no matrix.
  Stored get(std::string_view name) const;

  // The share of nonzeros in the matrix. Of a plain or quantised one with more than 256 rows it is
  // estimated: 256 random rows are read, the same ones every time.
  double density(std::string_view name) const;

  // What an encoded one takes, and how many nonzeros it has; of a slice as
  // WeightFormat::expected_size() has it. Of a quantised one what encode() can be expected to make.
  EncodedSize size(const Stored& stored, const std::optional<Slice>& slice) const;

  // The matrix [rows, columns], or a slice of it, in host memory, in its stored dtype, contiguous:
  // a view of the mapped file if it is stored plainly, and a copy of the bytes if they are not
  // aligned there or not all of each row. Of a slice no more is read than where it is stored needs.
  OwnedTensor dense(std::string_view name, ThreadPool& threads,
                    const std::optional<Slice>& slice = {}) const;

  // Of a quantised one.
  QuantizedMatrix quantized(std::string_view name, ThreadPool& threads) const;

  // Of an encoded one: checked, in memory of its own.
  EncodedWeight encoded(std::string_view name, ThreadPool& threads) const;
  // The same, of which WeightFormat::validate() has said nothing yet; it may view the mapped file.
  EncodedWeight unchecked(std::string_view name) const;

  // The matrix, or a slice of it, in another format than its own, its values in `dtype`. A
  // quantised one becomes tca_bme by its codes and scales, whatever the options say. Throws Error
  // if the format does not take it, and for values that are too large for the dtype.
  EncodedWeight encode(std::string_view name, const WeightFormat& to, DType dtype,
                       ThreadPool& threads, const std::optional<Slice>& slice = {},
                       const LayoutOptions& options = {}) const;

  // WeightFormat::layout_like() of an encoded one; of others by rule.
  LayoutOptions layout_like(const Stored& stored) const;

  // The type of its narrow values, as records name it (sparse/records_choice.h); empty if it has
  // values of 16 or 32 bits.
  std::string narrow_values(const Stored& stored) const;
  // Whether parts, at least one, have one format and one type of values: joined, they keep these.
  bool are_alike(std::span<const Stored> parts) const;

  // The format of the weight that at least one part, one below the other, make: that of the part
  // with the most rows, as concat_rows() has it. Where that would round the others, to its narrow
  // values, it is "dense", which holds all of them as they are.
  std::string_view joined_format(std::span<const Stored> parts) const;

  // Takes the pages of a weight that were read out of memory.
  void release(const Stored& stored) const;

  // Throws Error unless all tensors of the checkpoint are among `used`, are parts of weights that
  // are, or end with one of `ignored`.
  void require_all_used(const std::set<std::string, std::less<>>& used,
                        std::span<const std::string_view> ignored) const;

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const ModelFile& file() const { return file_; }

 private:
  OwnedTensor dense_plain(const Stored& stored, const Slice& slice) const;
  OwnedTensor dense_quantized(const Stored& stored, const Slice& slice, ThreadPool& threads) const;
  EncodedWeight encode_codes(std::string_view name, const WeightFormat& to, DType dtype,
                             ThreadPool& threads, const std::optional<Slice>& slice) const;
  // The name under which a plain tensor is stored; empty if there is none.
  std::string plain_name(std::string_view name) const;
  std::string describe(std::string_view name) const;

  const Checkpoint* checkpoint_;
  ModelFile file_;
  DType dtype_of_codes_;  // what they are dequantised to
};

// Throws Error for the first number of the matrix, a code's value times its scale, that is infinite
// in the dtype: f16, bf16 or f32.
void require_finite(const QuantizedMatrix& q, DType dtype);

// Whether a tensor of a checkpoint has a dtype, "F32" as files name it; scales of quantised weights
// aside, whose dtype says nothing of the weights'.
bool has_tensor_of(const Checkpoint& checkpoint, std::string_view dtype);

}  // namespace sparsellm
