#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/count_nonzeros.h"
#include "sparse/cpu/cpu_weight.h"
#include "sparse/join_parts.h"
#include "sparse/narrow_encoding.h"
#include "sparse/tca_bme/cuda/record_weight_cuda.h"
#include "sparse/tca_bme/cuda/record_workspace.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/host/record_uploads.h"
#include "sparse/tca_bme/host/record_walker.h"
#include "sparse/tca_bme/quantized/quantized_choice.h"
#include "sparse/tca_bme/quantized/quantized_load.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/quantized/quantized_walker.h"
#include "sparse/tca_bme/tca_bme.h"
#include "sparse/tca_bme/v1/paper_layout.h"
#include "sparse/tca_bme/v1/paper_walker.h"

namespace sparsellm {
namespace {

using tca_bme::is_quantized;
using tca_bme::PaperWalker;
using tca_bme::QuantizedWalker;
using tca_bme::RecordsFor;
using tca_bme::RecordWalker;

bool is_paper(const EncodedWeight& e) { return e.version == tca_bme::kPaperVersion; }

class TcaBmeFormat : public WeightFormat {
 public:
  std::string_view name() const override { return tca_bme::kName; }
  int32_t version() const override { return tca_bme::kRecordVersion; }

  bool runs_on(const Device&) const override { return true; }

  std::string values_in(std::string_view layout) const override {
    return std::string(tca_bme::quantized_choice(layout) ? layout : "");
  }

  bool holds(DType dtype) const override { return dtype == DType::f16 || dtype == DType::bf16; }

  std::string why_not(const Tensor& w) const override {
    if (!holds(w.dtype())) {
      return fmt::format("tca_bme holds f16 and bf16 values, not {}", name_of(w.dtype()));
    }
    if (tca_bme::starts_hold_any(w.size(0), w.size(1))) {
      return {};
    }
    ThreadPool caller(1);
    const int64_t nonzeros = count_nonzeros(w, caller);
    return tca_bme::starts_hold(w.size(0), w.size(1), nonzeros)
               ? std::string()
               : fmt::format("{} nonzeros are more than the starts of tca_bme hold", nonzeros);
  }

  void check_layout(std::string_view text) const override {
    if (!tca_bme::quantized_choice(text)) {
      tca_bme::records_for(text);
    }
  }

  void validate(const EncodedWeight& e, ThreadPool& threads) const override {
    check_header(e);
    is_paper(e)       ? tca_bme::validate_paper(e)
    : is_quantized(e) ? tca_bme::validate_quantized(e, threads)
                      : tca_bme::validate_records(e, threads);
  }

  OwnedTensor decode(const EncodedWeight& e, ThreadPool& threads) const override {
    return is_paper(e)       ? decode_walk<PaperWalker>(e, threads)
           : is_quantized(e) ? decode_walk<QuantizedWalker>(e, threads)
                             : decode_walk<RecordWalker>(e, threads);
  }

  int64_t formula_bytes(const EncodedWeight& e) const override {
    return is_quantized(e) ? tca_bme::quantized_formula_bytes(e) : tca_bme::paper_formula_bytes(e);
  }

  int64_t expected_bytes(const EncodedWeight& e) const override {
    return is_quantized(e) ? tca_bme::expected_quantized_bytes(e)
                           : tca_bme::expected_record_bytes(e);
  }

  int64_t workspace_bytes(const EncodedWeight& e, Device device, int64_t tokens,
                          Sums sums) const override {
    if (!device.is_cuda()) {
      return WeightFormat::workspace_bytes(e, device, tokens, sums);
    }
    RecordMatrix matrix{.rows = e.rows, .columns = e.columns};
    if (is_quantized(e)) {
      matrix.chunks = tca_bme::QuantizedLayout::kColumns / tca_bme::kChunkColumns;
      matrix.elements = elements_of(tca_bme::read_quantized_layout(e).values);
    } else {
      const tca_bme::RecordLayout layout = tca_bme::layout_of(e);
      matrix.chunks = layout.chunks;
      matrix.pair = layout.pairs();
    }
    matrix.clusters =
        device.is_planned() ? assumed_clusters(kPlannedMultiprocessors) : count_clusters(device);
    return tca_bme::records_workspace_bytes(matrix, tokens, sums);
  }

  void tell_layout(EncodedWeight& header, const LayoutOptions& options) const override {
    if (const auto choice = tca_bme::quantized_choice(options.layout)) {
      header.version = tca_bme::kQuantizedVersion;
      header.parts.push_back(tca_bme::quantized_layout_part(tca_bme::quantized_layout_for(
          tca_bme::values_of(choice->type), choice->type == ValueType::i4 ? choice->group : 0,
          header.rows * header.columns, header.nonzeros)));
      return;
    }
    const RecordsFor goal = tca_bme::records_for(options.layout);
    header.parts.push_back(tca_bme::layout_part(
        tca_bme::record_layout_for(header.rows * header.columns, header.nonzeros, goal)));
  }

  LayoutOptions layout_like(const EncodedWeight& e) const override {
    return is_paper(e) || is_quantized(e) || tca_bme::goal_of(e) == RecordsFor::speed
               ? LayoutOptions()
               : LayoutOptions{.layout = std::string(name_of(RecordsFor::size))};
  }

  std::string_view smaller_layout() const override { return name_of(RecordsFor::size); }

  std::optional<EncodedWeight> slice(const EncodedWeight& e, Axis axis,
                                     Range range) const override {
    if (is_paper(e)) {
      return axis == Axis::rows ? tca_bme::slice_rows_paper(e, range)
                                : tca_bme::slice_columns_paper(e, range);
    }
    if (is_quantized(e)) {
      return tca_bme::slice_quantized(e, axis, range);
    }
    return axis == Axis::rows ? tca_bme::slice_rows_records(e, range)
                              : tca_bme::slice_columns_records(e, range);
  }

  std::optional<EncodedWeight> concat_rows(
      std::span<const EncodedWeight* const> parts) const override {
    return is_paper(*parts.front())       ? tca_bme::concat_rows_paper(parts)
           : is_quantized(*parts.front()) ? tca_bme::concat_rows_quantized(parts)
                                          : tca_bme::concat_rows_records(parts);
  }

  EncodedWeight encode_again(std::span<const EncodedWeight* const> parts, const Slice& slice,
                             ThreadPool& threads) const override {
    return tca_bme::are_quantized_alike(parts)
               ? tca_bme::encode_quantized_again(parts, slice, threads)
               : WeightFormat::encode_again(parts, slice, threads);
  }

  bool at_borders(const EncodedWeight& e, const Slice& slice) const override {
    check_header(e);
    return !is_paper(e) && sparsellm::at_borders(tiling_of(e), slice);
  }

  EncodedSize expected_size(const EncodedWeight& e, const Slice& slice) const override {
    const bool as_it_is = at_borders(e, slice);
    if (is_quantized(e)) {
      return as_it_is ? record_slice_size<tca_bme::QuantizedChecker>(e, slice)
                      : tca_bme::expected_quantized_size(e, slice);
    }
    return as_it_is ? record_slice_size<tca_bme::RecordChecker>(e, slice)
                    : WeightFormat::expected_size(e, slice);
  }

 private:
  EncodedWeight encode_on_host(const Tensor& w, const LayoutOptions& options,
                               ThreadPool& threads) const override {
    if (tca_bme::quantized_choice(options.layout)) {
      return encode_narrow(w, *this, options.layout, threads).encoded;
    }
    const std::string reason = why_not(w);
    require(reason.empty(), "{}", reason);
    return options.layout.empty()
               ? tca_bme::encode_records(w, options.goal, threads)
               : tca_bme::encode_records(w, tca_bme::records_for(options.layout), threads);
  }

  std::unique_ptr<WeightMatrix> encode_without_host(const Tensor& w, const LayoutOptions& options,
                                                    const LoadContext& ctx) const override {
    if (const auto choice = tca_bme::quantized_choice(options.layout)) {
      // What starts may not hold the host counts.
      const bool takes = ctx.device.is_cuda() && holds(w.dtype()) &&
                         tca_bme::starts_hold_any(w.size(0), w.size(1));
      return takes ? tca_bme::encode_quantized_weight_cuda(w, name(), *choice, ctx.exec())
                   : nullptr;
    }
    const bool has_encoder = options.goal == LayoutFor::speed || !options.layout.empty();
    return ctx.device.is_cuda() && has_encoder
               ? tca_bme::encode_weight_cuda(w, tca_bme::records_for(options.layout), ctx.exec())
               : nullptr;
  }

  void check_header(const EncodedWeight& e) const {
    require_header(e, *this);
    require(is_paper(e) || e.version == tca_bme::kRecordVersion || is_quantized(e),
            "version {} of the format {} is not known", e.version, name());
  }

  // Not of the paper's.
  static RecordTiling tiling_of(const EncodedWeight& e) {
    if (is_quantized(e)) {
      tca_bme::read_quantized_layout(e);
      return tca_bme::quantized_tiling(e.rows, e.columns);
    }
    return tca_bme::record_tiling(e.rows, e.columns, tca_bme::read_record_layout(e));
  }

  EncodedWeight read_slice_at_borders(const WeightPart& part, ThreadPool& threads) const override {
    if (is_quantized(*part.weight)) {
      return read_record_slice<tca_bme::QuantizedChecker>(part, threads);
    }
    return read_record_slice<tca_bme::RecordChecker>(part, threads);
  }

  std::unique_ptr<WeightMatrix> load_on_cpu(EncodedWeight e, ThreadPool& threads) const override {
    return is_paper(e)       ? make_cpu_weight<PaperWalker>(std::move(e), threads)
           : is_quantized(e) ? make_cpu_weight<QuantizedWalker>(std::move(e), threads)
                             : make_cpu_weight<RecordWalker>(std::move(e), threads);
  }

  std::unique_ptr<WeightMatrix> load_on_cuda(std::span<const WeightPart> parts,
                                             const LoadContext& ctx) const override {
    for (const WeightPart& part : parts) {
      naming_errors(part.name, [&] { check_header(*part.weight); });
    }
    if (std::ranges::all_of(parts, [](const auto& part) { return is_quantized(*part.weight); })) {
      return tca_bme::load_quantized(*this, parts, ctx);
    }
    if (std::ranges::any_of(parts, [](const auto& part) { return is_quantized(*part.weight); })) {
      return join_on_device(*this, parts, ctx);
    }
    if (std::ranges::any_of(parts, [](const auto& part) { return is_paper(*part.weight); })) {
      return load(as_records(join_on_host(parts, ctx.threads), ctx.threads), ctx);
    }
    const tca_bme::RecordUploads uploads = record_uploads<tca_bme::RecordChecker>(parts);
    return tca_bme::can_be_joined(uploads) ? tca_bme::load_records_cuda(uploads, ctx)
                                           : join_on_device(*this, parts, ctx);
  }

  // There are kernels for versions 2 and 3.
  static EncodedWeight as_records(EncodedWeight e, ThreadPool& threads) {
    return is_paper(e) ? tca_bme::encode_records(decode_walk<PaperWalker>(e, threads).view,
                                                 LayoutFor::speed, threads)
                       : std::move(e);
  }
};

}  // namespace

const WeightFormat& tca_bme_format() {
  static const TcaBmeFormat format;
  return format;
}

}  // namespace sparsellm
