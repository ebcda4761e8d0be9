#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/weights/checkpoint_loader.h"

namespace sparsellm {

// The weight "<module>.weight" [out, in] of a linear layer: f16, bf16 or f32, contiguous, in host
// memory. It may be a view of memory that the caller owns, and that stays until the call that
// asked for it is over.
using LinearWeights = std::function<OwnedTensor(const std::string& weight_name)>;

// What went into one linear layer, or into several that share their input.
struct InputSums {
  std::vector<std::string> modules;  // "model.layers.3.mlp.gate_proj", "model.layers.3.mlp.up_proj"
  std::vector<double> squares;       // [in]: the sum of the squares over all tokens so far
};

// Weights on the CPU for calibration: those of linear layers come from a function and add up their
// inputs, all others come from the checkpoint.
class BlockLoader : public CheckpointLoader {
 public:
  // Both outlive this object, and this object the layers that it makes. `dtype`: round_to() that.
  BlockLoader(const Checkpoint& checkpoint, const LinearWeights& linear_weights,
              std::optional<DType> dtype = {});

  // In the order in which the weights were asked for.
  const std::deque<InputSums>& inputs() const { return inputs_; }

 private:
  // Throws Error with the name of a weight that is not as LinearWeights says, that has another
  // shape than asked for, or another dtype than one that it is joined with.
  std::unique_ptr<WeightMatrix> load_weight(const Wanted& wanted) override;
  OwnedTensor get(const Wanted::Part& part, int64_t columns) const;
  OwnedTensor join(const Wanted& wanted);

  const LinearWeights* linear_weights_;
  std::deque<InputSums> inputs_;  // which stay where they are
};

}  // namespace sparsellm
