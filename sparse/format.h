#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "kernels/base/upload.h"
#include "sparse/encoded_weight.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

enum class Axis : uint8_t { rows, columns };

// What the layout of an encoding is chosen for, by formats that have several.
enum class LayoutFor : uint8_t {
  speed,  // the one in which products are the fastest
  size,   // the one with the fewest bytes, but for less than 1 in 256 of them
};

// One way to store the weight of a linear layer: its layout, encoder, decoder and kernels.
// Stateless; sparse/registry.h lists them. A dense matrix is a Tensor [rows, columns] in host
// memory, f16, bf16 or f32: a view of a mapped file, or of a buffer.
class WeightFormat {
 public:
  virtual ~WeightFormat() = default;

  virtual std::string_view name() const = 0;  // key in model files and on command lines
  virtual int32_t version() const = 0;        // of the layout that encode() makes

  // Whether devices of a kind multiply by what is encoded as it is, if the build has code for them;
  // load() throws Error for those that do not.
  virtual bool multiplies_on(Device::Kind kind) const = 0;

  virtual bool holds(DType dtype) const = 0;
  // Why the matrix cannot be encoded; empty if it can.
  virtual std::string why_not(const Tensor& w) const = 0;
  // The same bytes whatever the number of threads. A negative zero may become a zero.
  virtual EncodedWeight encode(const Tensor& w, LayoutFor goal, ThreadPool& threads) const = 0;
  EncodedWeight encode(const Tensor& w, ThreadPool& threads) const;  // for speed

  // Checks everything that a file may have wrong: sizes, offsets, counts, bitmaps. Throws Error.
  // What follows takes it for granted.
  virtual void validate(const EncodedWeight& e, ThreadPool& threads) const = 0;
  void validate(const EncodedWeight& e) const;
  // The matrix, bit by bit but for negative zeros.
  virtual OwnedTensor decode(const EncodedWeight& e, ThreadPool& threads) const = 0;
  // Bytes by the formula of the format's paper, which takes rows, columns, dtype and nonzeros
  // alone: e may have no parts. bytes() has padding and what the layout spends on its kernel's
  // speed on top, and may still be less where a layout stores something in fewer bytes than the
  // paper's.
  virtual int64_t formula_bytes(const EncodedWeight& e) const = 0;
  // Bytes that a weight can be expected to take whose nonzeros are anywhere, by the fields of `e`
  // but its parts.
  virtual int64_t expected_bytes(const EncodedWeight& e) const { return formula_bytes(e); }
  // What WeightMatrix::workspace_bytes() says of such a weight on a device.
  virtual int64_t workspace_bytes(const EncodedWeight& e, Device device, int64_t tokens,
                                  Sums sums) const;

  // Part of a matrix, and matrices one below the other, without decoding; nothing where tiles do
  // not fall right. Equal to what encode() makes of the decoded result in the layout of what it is
  // made of.
  virtual std::optional<EncodedWeight> slice(const EncodedWeight& e, Axis axis, Range range) const;
  virtual std::optional<EncodedWeight> concat_rows(
      std::span<const EncodedWeight* const> parts) const;

  // Takes the encoding to a device; parts that are views are copied. Throws Error for a device that
  // the format has no kernels for.
  virtual std::unique_ptr<WeightMatrix> load(EncodedWeight e, Device device) const = 0;
  // Matrices one below the other on a CUDA device, without values until what is added to `copies`,
  // whose sources are views of the parts, has been uploaded. Nothing where that takes more than
  // copies. The parts need not be valid: what validate() checks is checked here, or by a copy of
  // what goes to the device. Throws Error.
  virtual std::unique_ptr<WeightMatrix> prepare(std::span<const EncodedWeight* const> parts,
                                                Device device, std::vector<Upload>& copies) const;
  // What load() makes of encode(w), of w on the CUDA device of ctx, without the host. Takes little
  // memory but for what it returns; synchronises. Nothing where the format has no such encoder.
  virtual std::unique_ptr<WeightMatrix> encode_on_device(const Tensor& w, ExecContext& ctx) const;
};

// The same for any range of any encoding, decoding and encoding again, for speed, where that has to
// be.
EncodedWeight slice(const EncodedWeight& e, Axis axis, Range range, ThreadPool& threads);
// Of matrices with equally many columns and one dtype. If formats differ, the result has that of
// the part with the most rows.
EncodedWeight concat_rows(std::span<const EncodedWeight* const> parts, ThreadPool& threads);

// Throws Error unless the fields of `e` but its parts make sense, and are those of the format.
void require_header(const EncodedWeight& e, const WeightFormat& format);

// Throws Error for a device that does not multiply by weights in the format.
void require_multiplies_on(Device device, const WeightFormat& format);

// The same encoding without memory of its own.
EncodedWeight view_of(const EncodedWeight& e);

// e with every part in memory of its own, for encodings that outlive what they view.
EncodedWeight with_own_memory(EncodedWeight e);

}  // namespace sparsellm
