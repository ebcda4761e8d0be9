#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/cpu/cpu_weight.h"
#include "sparse/join_parts.h"
#include "sparse/tiled_csl/cuda/tile_weight_cuda.h"
#include "sparse/tiled_csl/cuda/tile_workspace.h"
#include "sparse/tiled_csl/host/record_walker.h"
#include "sparse/tiled_csl/host/tile_slice.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "sparse/tiled_csl/v1/paper_parts.h"
#include "sparse/tiled_csl/v1/paper_walker.h"

namespace sparsellm {
namespace {

using tiled_csl::PaperWalker;
using tiled_csl::RecordWalker;

bool is_paper(const EncodedWeight& e) { return e.version == tiled_csl::kPaperVersion; }

class TiledCslFormat : public WeightFormat {
 public:
  std::string_view name() const override { return tiled_csl::kName; }
  int32_t version() const override { return tiled_csl::kRecordVersion; }

  bool runs_on(const Device&) const override { return true; }

  bool holds(DType dtype) const override { return dtype == DType::f16 || dtype == DType::bf16; }

  std::string why_not(const Tensor& w) const override {
    if (w.rank() != 2) {
      return fmt::format("it has {} dimensions, not 2", w.rank());
    }
    if (!holds(w.dtype())) {
      return fmt::format("its values are {}, not f16 or bf16", name_of(w.dtype()));
    }
    return tiled_csl::starts_hold_any(w.size(0), w.size(1))
               ? std::string()
               : tiled_csl::why_too_large(tiled_csl::count_record_bytes(w));
  }

  void validate(const EncodedWeight& e, ThreadPool& threads) const override {
    check_header(e);
    is_paper(e) ? tiled_csl::validate_paper(e) : tiled_csl::validate_records(e, threads);
  }

  OwnedTensor decode(const EncodedWeight& e, ThreadPool& threads) const override {
    return is_paper(e) ? decode_walk<PaperWalker>(e, threads)
                       : decode_walk<RecordWalker>(e, threads);
  }

  int64_t formula_bytes(const EncodedWeight& e) const override {
    return 4 * (tiled_csl::tile_grid(e.rows, e.columns).count() + 1) + 4 * e.nonzeros;
  }

  int64_t expected_bytes(const EncodedWeight& e) const override {
    return tiled_csl::expected_record_bytes(e.rows, e.columns, e.nonzeros);
  }

  int64_t workspace_bytes(const EncodedWeight& e, Device device, int64_t tokens,
                          Sums sums) const override {
    return device.is_cuda() ? tiled_csl::tiles_workspace_bytes(e.rows, e.columns, tokens)
                            : WeightFormat::workspace_bytes(e, device, tokens, sums);
  }

  std::optional<EncodedWeight> slice(const EncodedWeight& e, Axis axis,
                                     Range range) const override {
    return tiled_csl::slice_tiles(e, axis, range);
  }

  std::optional<EncodedWeight> concat_rows(
      std::span<const EncodedWeight* const> parts) const override {
    return tiled_csl::concat_rows_of_tiles(parts);
  }

  bool at_borders(const EncodedWeight& e, const Slice& slice) const override {
    check_header(e);
    return !is_paper(e) &&
           sparsellm::at_borders(tiled_csl::record_tiling(e.rows, e.columns), slice);
  }

  EncodedSize expected_size(const EncodedWeight& e, const Slice& slice) const override {
    return at_borders(e, slice) ? record_slice_size<tiled_csl::RecordChecker>(e, slice)
                                : WeightFormat::expected_size(e, slice);
  }

 private:
  EncodedWeight encode_on_host(const Tensor& w, const LayoutOptions&,
                               ThreadPool& threads) const override {
    const std::string reason = why_not(w);
    require(reason.empty(), "a weight cannot be encoded as {}: {}", name(), reason);
    return tiled_csl::encode_records(w, threads);
  }

  std::unique_ptr<WeightMatrix> encode_without_host(const Tensor& w, const LayoutOptions&,
                                                    const LoadContext& ctx) const override {
    return ctx.device.is_cuda() ? tiled_csl::encode_weight_cuda(w, ctx.exec()) : nullptr;
  }

  void check_header(const EncodedWeight& e) const {
    require_header(e, *this);
    require(is_paper(e) || e.version == version(), "version {} of the format {} is not known",
            e.version, name());
    require(holds(e.dtype), "a weight in the format {} of {} values", name(), name_of(e.dtype));
  }

  EncodedWeight read_slice_at_borders(const WeightPart& part, ThreadPool& threads) const override {
    return read_record_slice<tiled_csl::RecordChecker>(part, threads);
  }

  std::unique_ptr<WeightMatrix> load_on_cpu(EncodedWeight e, ThreadPool& threads) const override {
    return is_paper(e) ? make_cpu_weight<PaperWalker>(std::move(e), threads)
                       : make_cpu_weight<RecordWalker>(std::move(e), threads);
  }

  std::unique_ptr<WeightMatrix> load_on_cuda(std::span<const WeightPart> parts,
                                             const LoadContext& ctx) const override {
    for (const WeightPart& part : parts) {
      naming_errors(part.name, [&] { check_header(*part.weight); });
    }
    if (std::ranges::any_of(parts, [](const auto& part) { return is_paper(*part.weight); })) {
      return load(as_records(join_on_host(parts, ctx.threads), ctx.threads), ctx);
    }
    const auto uploads = record_uploads<tiled_csl::RecordChecker>(parts);
    return records_follow_each_other(uploads, tiled_csl::kTileRows)
               ? tiled_csl::load_tiles_cuda(uploads, ctx)
               : join_on_device(*this, parts, ctx);
  }

  // There are kernels for version 2 alone.
  static EncodedWeight as_records(EncodedWeight e, ThreadPool& threads) {
    return is_paper(e)
               ? tiled_csl::encode_records(decode_walk<PaperWalker>(e, threads).view, threads)
               : std::move(e);
  }
};

}  // namespace

namespace tiled_csl {

EncodedWeight header_of(int32_t version, DType dtype, int64_t rows, int64_t columns) {
  return {.format = std::string(kName),
          .version = version,
          .dtype = dtype,
          .rows = rows,
          .columns = columns,
          .nonzeros = 0,
          .parts = {}};
}

}  // namespace tiled_csl

const WeightFormat& tiled_csl_format() {
  static const TiledCslFormat format;
  return format;
}

}  // namespace sparsellm
