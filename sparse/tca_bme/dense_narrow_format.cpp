#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "sparse/cpu/cpu_weight.h"
#include "sparse/cpu/walk.h"
#include "sparse/narrow_encoding.h"
#include "sparse/record_upload.h"
#include "sparse/tca_bme/cuda/record_weight_cuda.h"
#include "sparse/tca_bme/cuda/record_workspace.h"
#include "sparse/tca_bme/dense_narrow.h"
#include "sparse/tca_bme/quantized/quantized_choice.h"
#include "sparse/tca_bme/quantized/quantized_load.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/quantized/quantized_walker.h"

namespace sparsellm {
namespace {

using tca_bme::QuantizedChecker;
using tca_bme::QuantizedLayout;
using tca_bme::QuantizedWalker;

class DenseNarrowFormat : public WeightFormat {
 public:
  explicit DenseNarrowFormat(ValueType type) : type_(type) {}

  std::string_view name() const override {
    return type_ == ValueType::i8 ? tca_bme::kDenseI8 : tca_bme::kDenseI4;
  }
  int32_t version() const override { return tca_bme::kDenseNarrowVersion; }

  bool runs_on(const Device&) const override { return true; }

  // Values are rounded where users say so.
  bool for_auto(const Device&) const override { return false; }
  bool for_smallest() const override { return false; }
  std::string values_in(std::string_view layout) const override {
    const auto choice = tca_bme::quantized_choice(layout);
    return std::string(choice && choice->type == type_ ? layout : name_of(type_));
  }

  bool holds(DType dtype) const override { return dtype == DType::f16 || dtype == DType::bf16; }

  std::string why_not(const Tensor& w) const override {
    if (!holds(w.dtype())) {
      return fmt::format("{} holds f16 and bf16 values, not {}", name(), name_of(w.dtype()));
    }
    const int64_t records = tca_bme::quantized_grid(w.size(0), w.size(1)).count();
    const int64_t most = tca_bme::kMaxBytesOfRecords / layout_in({}).max_record_bytes();
    return records <= most ? std::string()
                           : fmt::format("{} x {} elements are more than the starts of {} hold",
                                         w.size(0), w.size(1), name());
  }

  void check_layout(std::string_view text) const override {
    require(text.empty() || values_in(text) == text,
            "the weight format {} holds values of {}, not of {}", name(), name_of(type_),
            quote(text));
  }

  void validate(const EncodedWeight& e, ThreadPool& threads) const override {
    check_header(e);
    tca_bme::validate_quantized(e, threads);
  }

  OwnedTensor decode(const EncodedWeight& e, ThreadPool& threads) const override {
    return decode_walk<QuantizedWalker>(e, threads);
  }

  int64_t formula_bytes(const EncodedWeight& e) const override {
    return tca_bme::quantized_formula_bytes(with_layout(e));
  }

  int64_t expected_bytes(const EncodedWeight& e) const override {
    return tca_bme::expected_quantized_bytes(with_layout(e));
  }

  int64_t workspace_bytes(const EncodedWeight& e, Device device, int64_t tokens,
                          Sums sums) const override {
    if (!device.is_cuda()) {
      return WeightFormat::workspace_bytes(e, device, tokens, sums);
    }
    const RecordMatrix matrix{
        .rows = e.rows,
        .columns = e.columns,
        .chunks = QuantizedLayout::kColumns / tca_bme::kChunkColumns,
        .elements = type_ == ValueType::i4 ? RecordElements::i4 : RecordElements::i8,
        .clusters = device.is_planned() ? assumed_clusters(kPlannedMultiprocessors)
                                        : count_clusters(device)};
    return tca_bme::records_workspace_bytes(matrix, tokens, sums);
  }

  void tell_layout(EncodedWeight& header, const LayoutOptions& options) const override {
    check_layout(options.layout);
    header.version = version();
    header.parts.push_back(tca_bme::quantized_layout_part(layout_in(options.layout)));
  }

  LayoutOptions layout_like(const EncodedWeight& e) const override {
    return {.layout = type_of_values(e)};
  }

  std::optional<EncodedWeight> slice(const EncodedWeight& e, Axis axis,
                                     Range range) const override {
    return tca_bme::slice_quantized(e, axis, range);
  }

  std::optional<EncodedWeight> concat_rows(
      std::span<const EncodedWeight* const> parts) const override {
    return tca_bme::concat_rows_quantized(parts);
  }

  EncodedWeight encode_again(std::span<const EncodedWeight* const> parts, const Slice& slice,
                             ThreadPool& threads) const override {
    return tca_bme::are_quantized_alike(parts)
               ? tca_bme::encode_quantized_again(parts, slice, threads)
               : WeightFormat::encode_again(parts, slice, threads);
  }

  bool at_borders(const EncodedWeight& e, const Slice& slice) const override {
    check_header(e);
    tca_bme::read_quantized_layout(e);
    return sparsellm::at_borders(tca_bme::quantized_tiling(e.rows, e.columns), slice);
  }

  EncodedSize expected_size(const EncodedWeight& e, const Slice& slice) const override {
    return at_borders(e, slice) ? record_slice_size<QuantizedChecker>(e, slice)
                                : tca_bme::expected_quantized_size(e, slice);
  }

 private:
  // By a text that check_layout() takes.
  QuantizedLayout layout_in(std::string_view text) const {
    const auto choice = tca_bme::quantized_choice(values_in(text));
    return tca_bme::quantized_layout_in(name(), tca_bme::values_of(type_), choice->group, 0, 0);
  }

  EncodedWeight with_layout(const EncodedWeight& header) const {
    EncodedWeight view = view_of(header);
    if (view.find(tca_bme::kLayout) == nullptr) {
      tell_layout(view, {});
    }
    return view;
  }

  void check_header(const EncodedWeight& e) const {
    require_header(e, *this);
    require(e.version == version(), "version {} of the format {} is not known", e.version, name());
  }

  EncodedWeight encode_on_host(const Tensor& w, const LayoutOptions& options,
                               ThreadPool& threads) const override {
    return encode_narrow(w, *this, options.layout, threads).encoded;
  }

  std::unique_ptr<WeightMatrix> encode_without_host(const Tensor& w, const LayoutOptions& options,
                                                    const LoadContext& ctx) const override {
    const bool takes = ctx.device.is_cuda() && why_not(w).empty();
    return takes ? tca_bme::encode_quantized_weight_cuda(
                       w, name(), *tca_bme::quantized_choice(values_in(options.layout)), ctx.exec())
                 : nullptr;
  }

  EncodedWeight read_slice_at_borders(const WeightPart& part, ThreadPool& threads) const override {
    return read_record_slice<QuantizedChecker>(part, threads);
  }

  std::unique_ptr<WeightMatrix> load_on_cpu(EncodedWeight e, ThreadPool& threads) const override {
    return make_cpu_weight<QuantizedWalker>(std::move(e), threads);
  }

  std::unique_ptr<WeightMatrix> load_on_cuda(std::span<const WeightPart> parts,
                                             const LoadContext& ctx) const override {
    for (const WeightPart& part : parts) {
      naming_errors(part.name, [&] { check_header(*part.weight); });
    }
    return tca_bme::load_quantized(*this, parts, ctx);
  }

  ValueType type_;
};

}  // namespace

const WeightFormat& dense_i8_format() {
  static const DenseNarrowFormat format(ValueType::i8);
  return format;
}

const WeightFormat& dense_i4_format() {
  static const DenseNarrowFormat format(ValueType::i4);
  return format;
}

}  // namespace sparsellm
