#include <cstring>
#include <utility>

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/base/upload.h"
#include "kernels/gemm.h"
#include "sparse/count_nonzeros.h"
#include "sparse/dense/dense.h"
#include "sparse/join_parts.h"

namespace sparsellm {
namespace {

constexpr std::string_view kValues = "values";

class DenseFormat : public WeightFormat {
 public:
  std::string_view name() const override { return "dense"; }
  int32_t version() const override { return 1; }

  bool runs_on(const Device&) const override { return true; }

  bool holds(DType dtype) const override { return is_floating(dtype); }

  std::string why_not(const Tensor&) const override { return {}; }

  void validate(const EncodedWeight& e, ThreadPool&) const override {
    require_header(e, *this);
    require(e.version == version(), "version {} of the format {} is not known", e.version, name());
    require(holds(e.dtype), "a weight of {} values", name_of(e.dtype));
    require_parts(e, {{kValues, e.dtype, e.rows * e.columns}});
  }

  OwnedTensor decode(const EncodedWeight& e, ThreadPool&) const override {
    OwnedTensor dense = allocate_tensor({}, e.dtype, {e.rows, e.columns}, "a dense weight");
    copy_bytes({}, dense.view.raw(), {}, e.part(kValues).bytes.data(), dense.view.bytes());
    return dense;
  }

  int64_t formula_bytes(const EncodedWeight& e) const override {
    return e.rows * e.columns * size_of(e.dtype);
  }

  int64_t bytes_on_cpu(const EncodedWeight& e) const override { return formula_bytes(e); }

  int64_t workspace_bytes(const EncodedWeight& e, Device device, int64_t tokens,
                          Sums) const override {
    return gemm_workspace_bytes(device, e.columns, tokens);
  }

 private:
  EncodedWeight encode_on_host(const Tensor& w, const LayoutOptions&,
                               ThreadPool& threads) const override {
    require(w.contiguous(), "a dense weight with strided rows");
    EncodedWeight e{.format = std::string(name()),
                    .version = version(),
                    .dtype = w.dtype(),
                    .rows = w.size(0),
                    .columns = w.size(1),
                    .nonzeros = count_nonzeros(w, threads),
                    .parts = {}};
    Buffer memory(Device{}, w.bytes(), "a dense weight");
    copy_bytes({}, memory.data(), {}, w.raw(), w.bytes());
    e.parts.push_back(part_of(std::move(memory), w.dtype()));
    return e;
  }

  std::unique_ptr<WeightMatrix> encode_without_host(const Tensor& w, const LayoutOptions&,
                                                    const LoadContext& ctx) const override {
    OwnedTensor copy =
        allocate_tensor(w.device(), w.dtype(), {w.size(0), w.size(1)}, "a dense weight");
    if (w.device().is_cuda()) {
      const ExecContext& exec = ctx.exec();
      exec.cuda->copy(copy.view.raw(), w.raw(), w.bytes(), exec.queue);
    } else {
      copy_bytes({}, copy.view.raw(), {}, w.raw(), w.bytes());
    }
    return std::make_unique<DenseWeight>(std::move(copy));
  }

  std::unique_ptr<WeightMatrix> load_on_cpu(EncodedWeight e, ThreadPool&) const override {
    OwnedTensor weight = allocate_tensor({}, e.dtype, {e.rows, e.columns}, "a dense weight");
    copy_bytes({}, weight.view.raw(), {}, e.part(kValues).bytes.data(), weight.view.bytes());
    return std::make_unique<DenseWeight>(std::move(weight));
  }

  std::unique_ptr<WeightMatrix> load_on_cuda(std::span<const WeightPart> parts,
                                             const LoadContext& ctx) const override {
    const std::vector<const EncodedWeight*> weights = weights_of(parts);
    OwnedTensor joined =
        allocate_tensor(ctx.device, ctx.compute, {joined_rows(weights), weights.front()->columns},
                        "a dense weight");
    auto* destination = static_cast<std::byte*>(joined.view.raw());
    for (const WeightPart& part : parts) {
      naming_errors(part.name, [&] { validate(*part.weight, ctx.threads); });
      const std::span<const std::byte> values = part.weight->part(kValues).bytes;
      ctx.uploads->submit({.what = part.name,
                           .source = values,
                           .from = ctx.compute,
                           .destination = destination,
                           .to = ctx.compute,
                           .file = part.file_of(values)});
      destination += values.size();
    }
    return std::make_unique<DenseWeight>(std::move(joined));
  }

  static EncodedPart part_of(Buffer memory, DType dtype) {
    EncodedPart part{
        .name = std::string(kValues), .dtype = dtype, .bytes = {}, .memory = std::move(memory)};
    part.bytes = {static_cast<const std::byte*>(part.memory.data()),
                  static_cast<size_t>(part.memory.bytes())};
    return part;
  }
};

}  // namespace

const WeightFormat& dense_format() {
  static const DenseFormat format;
  return format;
}

}  // namespace sparsellm
