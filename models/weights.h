#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/activation.h"
#include "kernels/base/buffer.h"
#include "models/linear.h"
#include "models/safetensors.h"

namespace sparsellm {

// Bytes of the checkpoint that are on the device, and in all.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

// Brings the tensors of a checkpoint to a device, under their Hugging Face names. A name is looked
// up as given and with its leading "model." or "model.decoder." missing. Every method throws Error
// for a tensor that is missing, has another shape than asked for (both in the message) or is not
// f16, bf16 or f32; the stored dtype is kept.
class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, Device device, LoadProgress progress);

  OwnedTensor vector(const std::string& name, int64_t size);
  OwnedTensor matrix(const std::string& name, int64_t rows, int64_t columns);

  // One of the linear layers that `linear` joins by rows: "<module>.weight" [out, in] and
  // "<module>.bias" [out].
  struct Part {
    std::string module;
    int64_t out = 0;
  };
  enum class Bias : uint8_t { no, yes };
  Linear linear(const std::vector<Part>& parts, int64_t in, Bias bias, Activation activation = {});

  // Throws Error if the checkpoint has tensors that nobody asked for: a bias or a projection that
  // the config denies would be lost in silence. Tensors that end with one of `ignored` may stay.
  void require_all_used(std::initializer_list<std::string_view> ignored) const;

  Device device() const { return device_; }
  int64_t loaded_bytes() const { return loaded_bytes_; }

 private:
  const StoredTensor& get(const std::string& name, const std::vector<int64_t>& shape);
  // Tensors of one dtype, stored one behind the other.
  void copy(const std::vector<const StoredTensor*>& parts, const Tensor& destination);

  const Checkpoint* checkpoint_;
  Device device_;
  LoadProgress progress_;
  int64_t loaded_bytes_ = 0;
  std::set<std::string, std::less<>> used_;  // names in the checkpoint
};

}  // namespace sparsellm
