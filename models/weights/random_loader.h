#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/cuda_context.h"
#include "kernels/base/exec.h"
#include "kernels/base/upload.h"
#include "models/weights/random_weights.h"
#include "models/weights/weight_loader.h"
#include "sparse/format.h"

namespace sparsellm {

// Weights for benchmarks of any shape of model, made on the device: a tensor's values depend on the
// seed, its name, its sizes, sparsity and pattern alone, and are the same on every device; a rank
// makes its share of the same values. Norms
// change nothing but the scale (weight 1, bias near 0), linear layers keep the magnitude of their
// input, so that activations stay in range through any number of layers.
class RandomLoader : public WeightLoader {
 public:
  // Throws Error for a dtype that the device does not compute in, and as require_possible() does.
  RandomLoader(Device device, const RandomWeights& weights, const Shard& shard = {});

  std::unique_ptr<WeightLoader> shapes() const override;
  void finish() override;

 private:
  OwnedTensor load(const Wanted& wanted) override;
  void fill(const Wanted& wanted, const Tensor& tensor);
  std::unique_ptr<WeightMatrix> load_weight(const Wanted& wanted) override;

  RandomWeights weights_;
  Workspace workspace_;
  ThreadPool threads_;
  std::unique_ptr<CudaContext> cuda_;  // on CUDA
  ExecContext exec_;
  std::unique_ptr<Uploader> uploads_;  // on CUDA; of formats that are encoded on the host
};

}  // namespace sparsellm
