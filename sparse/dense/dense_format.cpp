#include <cstring>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/count_nonzeros.h"
#include "sparse/dense/dense.h"

namespace sparsellm {
namespace {

constexpr std::string_view kValues = "values";

class DenseFormat : public WeightFormat {
 public:
  std::string_view name() const override { return "dense"; }
  int32_t version() const override { return 1; }

  bool multiplies_on(Device::Kind) const override { return true; }

  bool holds(DType dtype) const override { return is_floating(dtype); }

  std::string why_not(const Tensor&) const override { return {}; }

  EncodedWeight encode(const Tensor& w, LayoutFor, ThreadPool& threads) const override {
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

  std::unique_ptr<WeightMatrix> load(EncodedWeight e, Device device) const override {
    OwnedTensor weight = allocate_tensor(device, e.dtype, {e.rows, e.columns}, "a dense weight");
    copy_bytes(device, weight.view.raw(), {}, e.part(kValues).bytes.data(), weight.view.bytes());
    return std::make_unique<DenseWeight>(std::move(weight));
  }

 private:
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
