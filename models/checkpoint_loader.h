#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/upload.h"
#include "models/safetensors.h"
#include "models/weight_loader.h"

namespace sparsellm {

// Bytes of the checkpoint that are on the device, and in all.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

// The dtype of the weights that a CheckpointLoader makes; on the CPU, where every tensor keeps its
// own, the largest of them.
DType weight_dtype(const Checkpoint& checkpoint, Device device, std::optional<DType> dtype);

// Weights from a checkpoint. A name is looked up as given and with its leading "model." or
// "model.decoder." missing. Every method throws Error for a tensor that is missing, has another
// shape than asked for (both in the message) or is not f16, bf16 or f32. On the CPU the stored
// dtype is kept; on CUDA all tensors get activation_dtype().
class CheckpointLoader : public WeightLoader {
 public:
  // `dtype` is what a model on CUDA computes in; if absent, bf16 for a checkpoint with a bf16
  // tensor, else f16. `progress` is called in finish(), on its thread. The checkpoint outlives this
  // object. Throws Error for a dtype that the device does not compute in.
  CheckpointLoader(const Checkpoint& checkpoint, Device device, std::optional<DType> dtype,
                   LoadProgress progress);

  void require_all_used(std::initializer_list<std::string_view> ignored) const override;
  // Throws Error that names the tensor if a finite number is too large for activation_dtype().
  void finish() override;

 private:
  OwnedTensor load(const Wanted& wanted) override;
  const StoredTensor& get(const std::string& name, const std::vector<int64_t>& shape);
  std::string describe(const std::string& name) const;

  const Checkpoint* checkpoint_;
  LoadProgress progress_;
  std::vector<Upload> copies_;               // for finish()
  std::set<std::string, std::less<>> used_;  // names in the checkpoint
};

}  // namespace sparsellm
