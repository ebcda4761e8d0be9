#include "models/weights/weight_loader.h"

#include <memory>
#include <utility>

#include "kernels/base/error.h"
#include "models/weights/empty_weight.h"
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

WeightLoader::WeightLoader(Device device, DType activation_dtype, const Shard& shard)
    : device_(device), activation_dtype_(activation_dtype), shard_(shard) {
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
  return std::make_unique<ShapeLoader>(device_, activation_dtype_, LinearShapes(), shard_);
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
  return count(
      load({.kind = Wanted::Kind::vector, .parts = {{name, size, {.begin = 0, .count = size}}}}));
}

OwnedTensor WeightLoader::matrix(const std::string& name, int64_t rows, int64_t columns) {
  return count(load({.kind = Wanted::Kind::matrix,
                     .parts = {{name, rows, {.begin = 0, .count = rows}}},
                     .stored_columns = columns,
                     .columns = {.begin = 0, .count = columns}}));
}

WeightLoader::Wanted WeightLoader::weight_of(const WeightRequest& request) const {
  require(!request.parts.empty(), "a linear layer without parts");
  Wanted wanted{.kind = Wanted::Kind::linear,
                .parts = {},
                .stored_columns = request.in,
                .columns = columns_of(request, shard_),
                .request = &request};
  for (const WeightRequest::Part& part : request.parts) {
    wanted.parts.push_back(
        {part.module + ".weight", part.out, sparsellm::rows_of(request, part.out, shard_)});
  }
  return wanted;
}

OwnedTensor WeightLoader::load_bias(const WeightRequest& request) {
  if (request.bias == Bias::no) {
    return {};
  }
  Wanted wanted{.kind = Wanted::Kind::vector, .parts = {}};
  for (const WeightRequest::Part& part : request.parts) {
    wanted.parts.push_back(
        {part.module + ".bias", part.out, sparsellm::rows_of(request, part.out, shard_)});
  }
  if (is_empty(wanted) || !has_bias(request, shard_)) {
    pass_over(wanted);
    return {};
  }
  return count(load(wanted));
}

Linear WeightLoader::load_linear(const WeightRequest& request, Wanted::Kind kind) {
  Wanted wanted = weight_of(request);
  wanted.kind = kind;
  Linear result{.weight = nullptr,
                .bias = {},
                .activation = request.activation,
                .sums_over_ranks = request.split == WeightRequest::Split::in && shard_.degree > 1};
  if (is_empty(wanted)) {
    pass_over(wanted);
    result.weight =
        std::make_unique<EmptyWeight>(rows_of(wanted), wanted.columns.count, activation_dtype_);
  } else if (kind == Wanted::Kind::linear) {
    result.weight = load_weight(wanted);
  } else {
    result.weight = std::make_unique<DenseWeight>(count(load(wanted)));
  }
  result.bias = load_bias(request);
  return result;
}

Linear WeightLoader::linear(const WeightRequest& request) {
  return load_linear(request, Wanted::Kind::linear);
}

Linear WeightLoader::head(const WeightRequest& request) {
  return load_linear(request, Wanted::Kind::matrix);
}

WeightLoader::DenseLinear WeightLoader::dense_linear(const WeightRequest& request, Order order,
                                                     OwnedSignWords* signs) {
  Wanted wanted = weight_of(request);
  require(!is_empty(wanted), "neurons of {}, of which rank {} of {} has none",
          wanted.parts.front().name, shard_.rank, shard_.degree);
  wanted.order = order;
  wanted.signs = signs;
  DenseLinear result{.weight = count(load_dense(wanted)), .bias = {}};
  result.bias = load_bias(request);
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
  for (const Wanted::Part& part : wanted.parts) {
    rows = checked_add(rows, part.slice.count, "rows of a joined weight");
  }
  return rows;
}

std::pair<int64_t, int64_t> WeightLoader::shape_of(const Wanted& wanted) {
  return wanted.order == Order::rows ? std::pair(rows_of(wanted), wanted.columns.count)
                                     : std::pair(wanted.columns.count, rows_of(wanted));
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
