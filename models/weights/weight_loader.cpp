#include "models/weights/weight_loader.h"

#include <memory>
#include <utility>

#include "kernels/base/error.h"
#include "models/weights/shape_loader.h"
#include "sparse/activation/sign_words.h"
#include "sparse/dense/dense.h"

namespace sparsellm {
namespace {

constexpr int64_t kAlignment = 256;  // as that of a Buffer

int64_t aligned(int64_t bytes) {
  return checked_add(bytes, kAlignment - 1, "bytes of weights") / kAlignment * kAlignment;
}

}  // namespace

WeightLoader::WeightLoader(Device device, DType activation_dtype)
    : device_(device), activation_dtype_(activation_dtype) {
  if (device.is_cuda()) {
    require(activation_dtype == DType::f16 || activation_dtype == DType::bf16,
            "a model on {} computes in f16 or bf16, not in {}", to_string(device),
            name_of(activation_dtype));
  } else {
    require(activation_dtype == DType::f32, "a model on {} computes in f32, not in {}",
            to_string(device), name_of(activation_dtype));
  }
}

std::unique_ptr<WeightLoader> WeightLoader::shapes() const {
  return std::make_unique<ShapeLoader>(device_, activation_dtype_);
}

void WeightLoader::reserve(int64_t bytes) {
  memory_ = Buffer(device_, bytes,
                   "the model's weights (sparsellm-run --fit tells beforehand what fits)");
  memory_used_ = 0;
}

Buffer WeightLoader::take_memory() { return std::move(memory_); }

OwnedTensor WeightLoader::count(OwnedTensor tensor) {
  loaded_bytes_ += tensor.view.bytes();
  footprint_ += aligned(tensor.view.bytes());
  return tensor;
}

OwnedTensor WeightLoader::vector(const std::string& name, int64_t size) {
  return count(load({.kind = Wanted::Kind::vector, .parts = {{name, size}}}));
}

OwnedTensor WeightLoader::matrix(const std::string& name, int64_t rows, int64_t columns) {
  return count(load({.kind = Wanted::Kind::matrix, .parts = {{name, rows}}, .columns = columns}));
}

WeightLoader::Wanted WeightLoader::joined(Wanted::Kind kind, const std::vector<Part>& parts,
                                          int64_t columns) {
  require(!parts.empty(), "a linear layer without parts");
  Wanted wanted{.kind = kind, .parts = {}, .columns = columns};
  for (const Part& part : parts) {
    const char* const suffix = kind == Wanted::Kind::vector ? ".bias" : ".weight";
    wanted.parts.push_back({part.module + suffix, part.out});
  }
  return wanted;
}

OwnedTensor WeightLoader::load_bias(const std::vector<Part>& parts, Bias bias) {
  return bias == Bias::yes ? count(load(joined(Wanted::Kind::vector, parts, 1))) : OwnedTensor();
}

Linear WeightLoader::linear(const std::vector<Part>& parts, int64_t in, Bias bias,
                            Activation activation) {
  Wanted weight = joined(Wanted::Kind::linear, parts, in);
  weight.bias = bias;
  weight.activation = activation;
  Linear result{.weight = load_weight(weight), .bias = {}, .activation = activation};
  result.bias = load_bias(parts, bias);
  return result;
}

WeightLoader::DenseLinear WeightLoader::dense_linear(const std::vector<Part>& parts, int64_t in,
                                                     Bias bias, Order order,
                                                     OwnedSignWords* signs) {
  Wanted weight = joined(Wanted::Kind::linear, parts, in);
  weight.bias = bias;
  weight.order = order;
  weight.signs = signs;
  DenseLinear result{.weight = count(load_dense(weight)), .bias = {}};
  result.bias = load_bias(parts, bias);
  return result;
}

std::unique_ptr<WeightMatrix> WeightLoader::load_weight(const Wanted& wanted) {
  return std::make_unique<DenseWeight>(count(load(wanted)));
}

OwnedTensor WeightLoader::constants(std::string_view what, std::span<const float> values) {
  OwnedTensor result = allocate_tensor(device_, DType::f32, {std::ssize(values)}, what);
  copy_bytes(device_, result.view.raw(), Device{}, values.data(), result.view.bytes());
  return result;
}

int64_t WeightLoader::rows_of(const Wanted& wanted) {
  int64_t rows = 0;
  for (const Wanted::Rows& part : wanted.parts) {
    rows = checked_add(rows, part.count, "rows of a joined weight");
  }
  return rows;
}

std::pair<int64_t, int64_t> WeightLoader::shape_of(const Wanted& wanted) {
  return wanted.order == Order::rows ? std::pair(rows_of(wanted), wanted.columns)
                                     : std::pair(wanted.columns, rows_of(wanted));
}

void WeightLoader::pack_signs(const Tensor& weight, OwnedSignWords& signs, ExecContext& ctx) {
  signs = pack_sign_words(weight, ctx);
  count_bytes(signs.bytes());
}

void WeightLoader::count_decoded(const Decoded& more) {
  decoded_.bytes += more.bytes;
  decoded_.stored_bytes += more.stored_bytes;
}

OwnedTensor WeightLoader::allocate(const Wanted& wanted, DType dtype) {
  const std::string& name = wanted.parts.front().name;
  const auto [rows, columns] = shape_of(wanted);
  const bool is_vector = wanted.kind == Wanted::Kind::vector;
  const int64_t bytes = checked_mul(checked_mul(rows, columns, "elements of a weight"),
                                    size_of(dtype), "bytes of a weight");
  if (aligned(bytes) <= memory_.bytes() - memory_used_) {
    void* const data = static_cast<std::byte*>(memory_.data()) + memory_used_;
    memory_used_ += aligned(bytes);
    return {.buffer = {},
            .view = is_vector ? Tensor(data, dtype, {rows}, device_)
                              : Tensor(data, dtype, {rows, columns}, device_)};
  }
  return is_vector ? allocate_tensor(device_, dtype, {rows}, name)
                   : allocate_tensor(device_, dtype, {rows, columns}, name);
}

}  // namespace sparsellm
