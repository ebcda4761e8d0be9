#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/count_nonzeros.h"
#include "sparse/cpu/cpu_weight.h"
#include "sparse/general_sparse/cuda/general_weight_cuda.h"
#include "sparse/general_sparse/cuda/general_workspace.h"
#include "sparse/general_sparse/format/encoded_size.h"
#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/host/walker.h"
#include "sparse/general_sparse/layout_rule.h"
#include "sparse/join_parts.h"

namespace sparsellm {
namespace {

class GeneralSparseFormat : public WeightFormat {
 public:
  std::string_view name() const override { return general_sparse::kName; }
  int32_t version() const override { return general_sparse::kVersion; }

  bool runs_on(const Device&) const override { return true; }

  // On the CPU all sparse formats become the same panels.
  bool for_auto(const Device& device) const override { return device.is_cuda(); }

  // There are no kernels for its smallest layouts.
  bool for_smallest() const override { return false; }

  bool holds(DType dtype) const override { return is_floating(dtype); }

  std::string why_not(const Tensor& w) const override {
    constexpr int64_t kMaxSize = CompressedRows::kMaxSize;
    constexpr int64_t kMostNonzeros = general_sparse::kMostNonzeros;
    if (!holds(w.dtype())) {
      return fmt::format("general_sparse holds f16, bf16 and f32 values, not {}",
                         name_of(w.dtype()));
    }
    if (w.size(0) > kMaxSize || w.size(1) > kMaxSize) {
      return fmt::format("{} x {} elements are more than general_sparse holds: {} rows and columns",
                         w.size(0), w.size(1), kMaxSize);
    }
    if (w.element_count() <= kMostNonzeros) {
      return {};
    }
    ThreadPool caller(1);
    const int64_t nonzeros = count_nonzeros(w, caller);
    return nonzeros <= kMostNonzeros
               ? std::string()
               : fmt::format("{} nonzeros are more than the starts of general_sparse hold",
                             nonzeros);
  }

  void check_layout(std::string_view text) const override {
    if (!text.empty()) {
      general_sparse::layout_from(text);
    }
  }

  void validate(const EncodedWeight& e, ThreadPool& threads) const override {
    require_header(e, *this);
    general_sparse::validate(e, threads);
  }

  OwnedTensor decode(const EncodedWeight& e, ThreadPool& threads) const override {
    return general_sparse::decode(e, threads);
  }

  int64_t formula_bytes(const EncodedWeight& e) const override {
    constexpr const char* kWhat = "bytes of compressed rows";
    constexpr int64_t kIndexBytes = sizeof(uint32_t);
    return checked_add(checked_mul(e.nonzeros, kIndexBytes + size_of(e.dtype), kWhat),
                       checked_mul(checked_add(e.rows, 1, kWhat), kIndexBytes, kWhat), kWhat);
  }

  int64_t expected_bytes(const EncodedWeight& e) const override {
    return e.rows <= CompressedRows::kMaxSize && e.columns <= CompressedRows::kMaxSize
               ? general_sparse::expected_uniform_bytes(
                     {.rows = e.rows, .columns = e.columns, .nonzeros = e.nonzeros}, e.dtype)
               : formula_bytes(e);
  }

  int64_t workspace_bytes(const EncodedWeight& e, Device device, int64_t tokens,
                          Sums sums) const override {
    if (device.is_cuda()) {
      return general_sparse::slices_or_expansion_bytes(e.rows, e.columns, panels(e), tokens);
    }
    return WeightFormat::workspace_bytes(e, device, tokens, sums);
  }

  std::optional<EncodedWeight> slice(const EncodedWeight& e, Axis axis,
                                     Range range) const override {
    return axis == Axis::rows ? general_sparse::slice_rows(e, range)
                              : general_sparse::slice_columns(e, range);
  }

  std::optional<EncodedWeight> concat_rows(
      std::span<const EncodedWeight* const> parts) const override {
    return general_sparse::concat_rows(parts);
  }

 private:
  EncodedWeight encode_on_host(const Tensor& w, const LayoutOptions& options,
                               ThreadPool& threads) const override {
    const std::string reason = why_not(w);
    require(reason.empty(), "{}", reason);
    return options.layout.empty()
               ? general_sparse::encode(w, options.goal, threads)
               : general_sparse::encode(w, general_sparse::layout_from(options.layout), threads);
  }

  std::unique_ptr<WeightMatrix> encode_without_host(const Tensor& w, const LayoutOptions& options,
                                                    const LoadContext& ctx) const override {
    const bool has_encoder = w.dtype() == DType::f16 || w.dtype() == DType::bf16;
    // What cannot be loaded is refused by load().
    return options == LayoutOptions() && ctx.device.is_cuda() && has_encoder &&
                   w.dtype() == ctx.compute
               ? general_sparse::encode_weight_cuda(w, ctx.exec())
               : nullptr;
  }

  // Of a header without parts those of the layout for speed.
  static int64_t panels(const EncodedWeight& e) {
    const general_sparse::Layout layout =
        e.parts.empty() ? general_sparse::usual_layout() : general_sparse::read_layout(e);
    return general_sparse::ChunkGrid(layout, e.rows, e.columns).panels();
  }

  std::unique_ptr<WeightMatrix> load_on_cpu(EncodedWeight e, ThreadPool& threads) const override {
    if (!is_compressed_rows_on_cpu(e)) {
      return make_panel_weight<general_sparse::Walker>(std::move(e), threads);
    }
    CompressedRows m = general_sparse::to_compressed_rows(e, threads);
    e.parts.clear();
    return std::make_unique<CompressedRowsWeight>(name(), std::move(m));
  }

  std::unique_ptr<WeightMatrix> load_on_cuda(std::span<const WeightPart> parts,
                                             const LoadContext& ctx) const override {
    for (const WeightPart& part : parts) {
      read_and_validate(part, ctx.threads);
    }
    return general_sparse::load_encoding_cuda(join_on_host(parts, ctx.threads), ctx);
  }
};

}  // namespace

const WeightFormat& general_sparse_format() {
  static const GeneralSparseFormat format;
  return format;
}

}  // namespace sparsellm
