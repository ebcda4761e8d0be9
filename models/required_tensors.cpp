#include "models/required_tensors.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/build_decoder.h"
#include "models/storage/required_tensor.h"
#include "models/weights/shape_loader.h"
#include "sparse/dense/dense.h"

namespace sparsellm {
namespace {

// Looks for what the builder of a model asks for.
class RequestedTensors : public ShapeLoader {
 public:
  explicit RequestedTensors(const Checkpoint& checkpoint)
      : ShapeLoader(Device{}, DType::f32), checkpoint_(&checkpoint) {}

 private:
  OwnedTensor load(const Wanted& wanted) override {
    for (const Wanted::Part& part : wanted.parts) {
      std::vector<int64_t> shape{part.rows};
      if (wanted.kind != Wanted::Kind::vector) {
        shape.push_back(wanted.stored_columns);
      }
      required_tensor(*checkpoint_, part.name, shape)
          .tensor->float_dtype(fmt::format("{}: the tensor {}", checkpoint_->directory().string(),
                                           quote(part.name)));
    }
    return ShapeLoader::load(wanted);
  }
  std::unique_ptr<WeightMatrix> load_weight(const Wanted& wanted) override {
    return std::make_unique<DenseWeight>(ShapeLoader::load(wanted));
  }

  const Checkpoint* checkpoint_;
};

}  // namespace

void require_tensors(const Checkpoint& checkpoint, const ModelConfig& config) {
  ModelConfig without_sparsity = config;  // whose MLPs ask for the same tensors in another way
  without_sparsity.activation_sparsity = {};
  RequestedTensors requested(checkpoint);
  build_decoder(without_sparsity, requested);
}

}  // namespace sparsellm
