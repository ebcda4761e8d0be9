#include "models/shape_loader.h"

#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/cpu/sparse_product.h"
#include "sparse/dense/dense.h"

namespace sparsellm {

namespace {

// A weight in a sparse format that is never multiplied with.
class WeightOfSize : public WeightMatrix {
 public:
  WeightOfSize(std::string format, int64_t out, int64_t in, int64_t bytes)
      : format_(std::move(format)), out_(out), in_(in), bytes_(bytes) {}

  std::string_view format() const override { return format_; }
  int64_t out() const override { return out_; }
  int64_t in() const override { return in_; }
  int64_t bytes() const override { return bytes_; }
  void matmul(const Tensor&, Tensor, const Epilogue&, ExecContext&) const override { refuse(); }
  void expand(Range, Tensor, ExecContext&) const override { refuse(); }
  int64_t workspace_bytes(int64_t) const override { return sparse_product_workspace_bytes(in_); }
  int64_t tune(const MatmulTuning&, TuneCache&, ExecContext&) const override { return 0; }

 private:
  [[noreturn]] void refuse() const { fail("a weight without values in the format {}", format_); }

  std::string format_;
  int64_t out_;
  int64_t in_;
  int64_t bytes_;
};

bool is_sparse(const WeightStore::Stored& stored) { return stored.format != dense_format().name(); }

}  // namespace

ShapeLoader::ShapeLoader(Device device, DType dtype, const WeightStore* store)
    : WeightLoader(device, device.is_cuda() ? dtype : DType::f32), dtype_(dtype), store_(store) {}

std::unique_ptr<WeightMatrix> ShapeLoader::load_weight(const Wanted& wanted) {
  if (store_ == nullptr) {
    return WeightLoader::load_weight(wanted);
  }
  std::string format;
  int64_t bytes = 0;
  for (const Wanted::Rows& part : wanted.parts) {
    const WeightStore::Stored stored = store_->get(part.name);
    format = is_sparse(stored) ? stored.format : format;
    bytes += is_sparse(stored) ? stored.bytes : part.count * wanted.columns * size_of(dtype_);
  }
  if (format.empty()) {
    return WeightLoader::load_weight(wanted);
  }
  count_bytes(bytes);
  return std::make_unique<WeightOfSize>(format, rows_of(wanted), wanted.columns, bytes);
}

OwnedTensor ShapeLoader::constants(std::string_view, std::span<const float> values) {
  return {.buffer = {}, .view = Tensor(nullptr, DType::f32, {std::ssize(values)}, device())};
}

OwnedTensor ShapeLoader::load(const Wanted& wanted) {
  const int64_t rows = rows_of(wanted);
  return {.buffer = {},
          .view = wanted.kind == Wanted::Kind::vector
                      ? Tensor(nullptr, dtype_, {rows}, device())
                      : Tensor(nullptr, dtype_, {rows, wanted.columns}, device())};
}

}  // namespace sparsellm
