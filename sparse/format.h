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
#include "sparse/encoded_weight.h"
#include "sparse/layout_options.h"
#include "sparse/load_context.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

enum class Axis : uint8_t { rows, columns };

struct EncodedSize {
  int64_t bytes = 0;
  int64_t nonzeros = 0;
  bool exact = true;  // the bytes; else only to be expected
};

// One way to store the weight of a linear layer: its layout, encoder, decoder and kernels.
// Stateless; sparse/registry.h lists them. A dense matrix is a Tensor [rows, columns] in host
// memory, f16, bf16 or f32: a view of a mapped file, or of a buffer.
class WeightFormat {
 public:
  virtual ~WeightFormat() = default;

  virtual std::string_view name() const = 0;  // key in model files and on command lines
  virtual int32_t version() const = 0;        // of the layout that encode() makes

  // Whether the device multiplies by what is encoded as it is, if the build has code for it. The
  // device need not be there.
  virtual bool runs_on(const Device& device) const = 0;

  // Whether `auto`, which takes the fastest format on a device, may choose it there, and whether
  // `smallest` may: not if it serves one purpose, for which users name it.
  virtual bool for_auto(const Device&) const { return true; }
  virtual bool for_smallest() const { return true; }

  // The type of narrow values that encode() rounds to in this layout, as --values takes it: "i8",
  // "f8" or "i4:64"; empty: values are kept. A format that always rounds has a type for any text.
  virtual std::string values_in(std::string_view layout) const;

  virtual bool holds(DType dtype) const = 0;
  // Why the matrix cannot be encoded; empty if it can.
  virtual std::string why_not(const Tensor& w) const = 0;
  // Throws Error of one line unless the text is one of a layout that the format can be told to
  // encode in, or empty. This one takes none: formats whose layouts can be chosen do.
  virtual void check_layout(std::string_view text) const;
  // The same bytes whatever the number of threads. A negative zero may become a zero. Throws Error
  // for what why_not() and check_layout() say, and for a matrix that does not fit into the layout.
  EncodedWeight encode(const Tensor& w, const LayoutOptions& options, ThreadPool& threads) const;
  EncodedWeight encode(const Tensor& w, ThreadPool& threads) const;  // by rule, for speed

  // Checks everything that a file may have wrong: sizes, offsets, counts, bitmaps. Throws Error.
  // What follows takes it for granted.
  virtual void validate(const EncodedWeight& e, ThreadPool& threads) const = 0;
  void validate(const EncodedWeight& e) const;
  // The matrix, bit by bit except for negative zeros, or rounded to values_in() the layout.
  virtual OwnedTensor decode(const EncodedWeight& e, ThreadPool& threads) const = 0;
  // Bytes by the formula of the format's paper, which takes rows, columns, dtype and nonzeros
  // alone: e may have no parts. bytes() has padding and what the layout spends on its kernel's
  // speed on top, and may still be less where a layout stores something in fewer bytes than the
  // paper's.
  virtual int64_t formula_bytes(const EncodedWeight& e) const = 0;
  // Bytes that a weight can be expected to take whose nonzeros are anywhere, by the fields of `e`
  // but its parts, and by what tell_layout() has added.
  virtual int64_t expected_bytes(const EncodedWeight& e) const { return formula_bytes(e); }
  // Bytes of the loaded weight on the CPU, by the same fields: the same for all sparse formats.
  virtual int64_t bytes_on_cpu(const EncodedWeight& e) const;
  // What WeightMatrix::workspace_bytes() says of such a weight on a device, by the same as
  // expected_bytes().
  virtual int64_t workspace_bytes(const EncodedWeight& e, Device device, int64_t tokens,
                                  Sums sums) const;
  // Adds to a header, an encoding without parts, what says in which layout encode() with these
  // options puts such a matrix, where that is not the one for speed. Throws Error for what
  // check_layout() refuses.
  virtual void tell_layout(EncodedWeight& header, const LayoutOptions& options) const;
  // The options with which encode() puts other rows or columns into the layout of `e`. Throws Error
  // if the part that says the layout is not valid; the other parts are not looked at.
  virtual LayoutOptions layout_like(const EncodedWeight& e) const;
  // LayoutOptions::layout of a layout that takes fewer bytes than the one for speed for some
  // matrices, where its products are slower; empty: there is none.
  virtual std::string_view smaller_layout() const { return {}; }

  // Part of a matrix, and matrices one below the other, without decoding; nothing where tiles do
  // not fall right. Equal to what encode() makes of the decoded result in the layout of what it is
  // made of.
  virtual std::optional<EncodedWeight> slice(const EncodedWeight& e, Axis axis, Range range) const;
  virtual std::optional<EncodedWeight> concat_rows(
      std::span<const EncodedWeight* const> parts) const;
  // Where tiles do not fall right, or formats differ: of parts one below the other, with equally
  // many columns and one dtype, a slice. The one with the most rows is in this format. This encodes
  // the decoded rows and columns in layout_like() that part; a format with encodings that encode()
  // does not make overrides it.
  virtual EncodedWeight encode_again(std::span<const EncodedWeight* const> parts,
                                     const Slice& slice, ThreadPool& threads) const;

  // Whether a slice of such an encoding, of which validate() has said nothing yet, needs no
  // decoding and can be read without the rest. Throws Error for what is wrong at first sight.
  virtual bool at_borders(const EncodedWeight& e, const Slice& slice) const;
  // What an encoding of such a slice takes, and how many nonzeros it has, as far as can be said
  // without its values; parts as at_borders() has them. Of others what encode() can be expected to
  // make of them.
  virtual EncodedSize expected_size(const EncodedWeight& e, const Slice& slice) const;

  // The one way of a weight to a device. Joins the parts, one below the other: at least one, all in
  // this format, with equally many columns and one dtype; slices of parts keep the layout of these
  // where they fall at borders, and are encoded anew where not. What comes from a file is validated
  // before it is copied, or while it is; memory may be moved out of the parts. On a CUDA device the
  // weight has its values when ctx.uploads->finish() has returned, and is not destroyed earlier;
  // parts that cannot be joined as they are encoded are expanded there, one after the other, and
  // encoded. Never null. Throws Error that begins with the name of a part, also for a device that
  // the format does not run on; then nothing was submitted.
  std::unique_ptr<WeightMatrix> load(std::span<const WeightPart> parts,
                                     const LoadContext& ctx) const;
  // A valid encoding, which is moved; the weight has its values on return.
  std::unique_ptr<WeightMatrix> load(EncodedWeight e, const LoadContext& ctx) const;
  // What load() makes of encode(w, options), with its values on return. w is contiguous and on the
  // device of ctx; on a CUDA device it is what it becomes by all that was enqueued in ctx.exec().
  // The host encodes where the format has no encoder for the device, or one that does not make what
  // the options ask for. Throws Error without a name, as encode() does.
  std::unique_ptr<WeightMatrix> encode_on_device(const Tensor& w, const LayoutOptions& options,
                                                 const LoadContext& ctx) const;
  std::unique_ptr<WeightMatrix> encode_on_device(const Tensor& w, const LoadContext& ctx) const;

  // The slice of a part: valid, in memory of its own. Where it falls at borders no other values are
  // read. Throws Error that begins with the part's name.
  EncodedWeight read_slice(const WeightPart& part, ThreadPool& threads) const;

 private:
  // encode() in a layout that check_layout() takes.
  virtual EncodedWeight encode_on_host(const Tensor& w, const LayoutOptions& options,
                                       ThreadPool& threads) const = 0;
  // encode_on_device() without the host, in a layout that check_layout() takes. Null where the host
  // has to encode.
  virtual std::unique_ptr<WeightMatrix> encode_without_host(const Tensor& w,
                                                            const LayoutOptions& options,
                                                            const LoadContext& ctx) const;
  // Of a part whose slice falls at borders. Throws Error without a name.
  virtual EncodedWeight read_slice_at_borders(const WeightPart& part, ThreadPool& threads) const;
  // load() of a valid encoding, which may view memory that the weight outlives. Sparse formats make
  // panels of it (sparse/cpu/panels/panel_weight.h).
  virtual std::unique_ptr<WeightMatrix> load_on_cpu(EncodedWeight e, ThreadPool& threads) const = 0;
  // load() for formats that run on CUDA devices. The parts' headers fit each other, and the dtype
  // is ctx.compute; slices fall at borders. sparse/join_parts.h helps with parts that are not
  // alike.
  virtual std::unique_ptr<WeightMatrix> load_on_cuda(std::span<const WeightPart> parts,
                                                     const LoadContext& ctx) const;
};

// The same for any range of any encoding, decoding and encoding again where that has to be, for
// speed or as WeightFormat::layout_like() says.
EncodedWeight slice(const EncodedWeight& e, Axis axis, Range range, ThreadPool& threads);
// Of matrices with equally many columns and one dtype. If formats differ, the result has that of
// the part with the most rows, and its layout_like() where it is encoded again.
EncodedWeight concat_rows(std::span<const EncodedWeight* const> parts, ThreadPool& threads);

// Throws Error unless the fields of `e` but its parts make sense, and are those of the format.
void require_header(const EncodedWeight& e, const WeightFormat& format);

// Throws Error for a device that the format does not run on.
void require_runs_on(const Device& device, const WeightFormat& format);

// Throws Error unless the slice is inside.
void require_inside(const Slice& slice, int64_t rows, int64_t columns);

// The rows of all parts together. Throws Error if there are none, and unless all have equally many
// columns and one dtype.
int64_t joined_rows(std::span<const EncodedWeight* const> parts);

// The same encoding without memory of its own.
EncodedWeight view_of(const EncodedWeight& e);

// Copies what a part views into memory of its own; a part with a file is a view of it, and is read
// from there instead of through the mapping. What becomes of the view later changes nothing.
void take_into_memory(EncodedPart& part, const MappedFile* file = nullptr);

// e with every part in memory of its own, for encodings that outlive what they view.
EncodedWeight with_own_memory(EncodedWeight e);

}  // namespace sparsellm
