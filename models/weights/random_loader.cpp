#include "models/weights/random_loader.h"

#include <cmath>

#include "kernels/base/error.h"
#include "kernels/fill_random.h"
#include "kernels/transpose.h"
#include "models/weights/shape_loader.h"
#include "sparse/dense/dense.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

// Biases and embeddings, as models are initialised before they are trained.
constexpr float kSmallDeviation = 0.02f;

// Of a uniform distribution.
float spread_of(float deviation) { return std::sqrt(3.0f) * deviation; }

}  // namespace

RandomLoader::RandomLoader(Device device, const RandomWeights& weights, const Shard& shard)
    : WeightLoader(device, device.is_cuda() ? weights.dtype : DType::f32, shard),
      weights_(weights),
      workspace_(device, 0),
      threads_(device.is_cuda() ? 1 : 0),
      cuda_(device.is_cuda() ? std::make_unique<CudaContext>(device) : nullptr),
      exec_{.device = device, .workspace = workspace_, .threads = threads_, .cuda = cuda_.get()},
      uploads_(device.is_cuda() ? std::make_unique<Uploader>(device) : nullptr) {
  require_possible(weights);
}

OwnedTensor RandomLoader::load(const Wanted& wanted) {
  OwnedTensor result = allocate(wanted, weights_.dtype);
  try {
    if (wanted.order == Order::transposed) {
      const OwnedTensor weight = allocate_tensor(
          device(), weights_.dtype, {rows_of(wanted), wanted.columns.count}, "random weights");
      fill(wanted, weight.view);
      transpose(weight.view, result.view, exec_);
      finish();  // before the weight goes
    } else {
      fill(wanted, result.view);
      if (wanted.signs != nullptr) {
        pack_signs(result.view.rows(0, wanted.parts.front().slice.count), *wanted.signs, exec_);
      }
    }
    finish();  // nothing waits for the kernel if a builder throws and frees the tensor
  } catch (...) {
    if (cuda_) {
      cuda_->wait();
    }
    throw;
  }
  return result;
}

void RandomLoader::fill(const Wanted& wanted, const Tensor& tensor) {
  RandomFill fill{.spread = spread_of(kSmallDeviation), .columns = wanted.stored_columns};
  if (wanted.kind == Wanted::Kind::linear) {
    fill.spread = spread_of(1.0f / std::sqrt(static_cast<float>(wanted.stored_columns)));
  } else if (wanted.parts.front().name.ends_with("norm.weight")) {
    fill.centre = 1.0f;
    fill.spread = 0.0f;
  }
  auto* destination = static_cast<std::byte*>(tensor.raw());
  for (const Wanted::Part& part : wanted.parts) {
    const Tensor values(destination, weights_.dtype, {part.slice.count * wanted.columns.count},
                        device());
    fill.part = wanted.whole(part) ? RandomFill::Part()
                                   : RandomFill::Part{.all_rows = part.rows,
                                                      .first_row = part.slice.begin,
                                                      .first_column = wanted.columns.begin,
                                                      .columns = wanted.columns.count};
    fill.key = random_key(weights_.seed, part.name);
    if (wanted.kind == Wanted::Kind::linear) {
      const RandomLinear linear = weights_.linear(part.name);
      fill.sparsity = linear.sparsity;
      fill.pattern = linear.pattern;
    }
    fill_random(fill, values, exec_);
    destination += values.bytes();
  }
}

std::unique_ptr<WeightMatrix> RandomLoader::load_weight(const Wanted& wanted) {
  const RandomLinear linear = weights_.linear(wanted.parts.front().name);
  const std::string& name = linear.format;
  if (name.empty() || name == dense_format().name()) {
    return WeightLoader::load_weight(wanted);
  }
  const WeightFormat& format = weight_format(name);
  require(format.runs_on(device()), "random weights in the format {} cannot be made on {}", name,
          to_string(device()));
  const OwnedTensor dense = allocate_scratch(
      exec_, weights_.dtype, {rows_of(wanted), wanted.columns.count}, "random weights");
  fill(wanted, dense.view);
  const LoadContext context{.device = device(),
                            .compute = weights_.dtype,
                            .threads = threads_,
                            .exec = [this]() -> ExecContext& { return exec_; },
                            .uploads = uploads_.get()};
  std::unique_ptr<WeightMatrix> weight =
      naming_errors(fmt::format("random weights cannot be in the format {}", name), [&] {
        return format.encode_on_device(dense.view, records_in(name, linear.records), context);
      });
  count_bytes(weight->bytes());
  return weight;
}

std::unique_ptr<WeightLoader> RandomLoader::shapes() const {
  return std::make_unique<ShapeLoader>(device(), weights_.dtype,
                                       LinearShapes{.store = nullptr, .random = weights_}, shard());
}

void RandomLoader::finish() {
  if (cuda_) {
    cuda_->synchronize();
  }
}

}  // namespace sparsellm
