#include "models/required_tensors.h"

#include <spdlog/fmt/ranges.h>

#include <memory>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/registry.h"
#include "models/shape_loader.h"
#include "models/stored_names.h"
#include "sparse/dense/dense.h"

namespace sparsellm {
namespace {

std::string describe(const Checkpoint& checkpoint, std::string_view name) {
  return fmt::format("{}: the tensor {}", checkpoint.directory().string(), quote(name));
}

// Looks for what the builder of a model asks for.
class RequestedTensors : public ShapeLoader {
 public:
  explicit RequestedTensors(const Checkpoint& checkpoint)
      : ShapeLoader(Device{}, DType::f32), checkpoint_(&checkpoint) {}

 private:
  OwnedTensor load(const Wanted& wanted) override {
    for (const Wanted::Rows& part : wanted.parts) {
      std::vector<int64_t> shape{part.count};
      if (wanted.kind != Wanted::Kind::vector) {
        shape.push_back(wanted.columns);
      }
      required_tensor(*checkpoint_, part.name, shape)
          .tensor->float_dtype(describe(*checkpoint_, part.name));
    }
    return ShapeLoader::load(wanted);
  }
  std::unique_ptr<WeightMatrix> load_weight(const Wanted& wanted) override {
    return std::make_unique<DenseWeight>(ShapeLoader::load(wanted));
  }

  const Checkpoint* checkpoint_;
};

}  // namespace

std::string shape_string(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

NamedTensor required_tensor(const Checkpoint& checkpoint, std::string_view name,
                            const std::vector<int64_t>& shape) {
  for (std::string_view stored_name : stored_names(name)) {
    if (const StoredTensor* tensor = checkpoint.find(stored_name)) {
      require(tensor->shape == shape, "{} has shape {}, but the config asks for {}",
              describe(checkpoint, name), shape_string(tensor->shape), shape_string(shape));
      return {.name = stored_name, .tensor = tensor};
    }
  }
  fail("{} is missing", describe(checkpoint, name));
}

void require_tensors(const Checkpoint& checkpoint, const ModelConfig& config) {
  RequestedTensors requested(checkpoint);
  build_decoder(config, requested);
}

}  // namespace sparsellm
