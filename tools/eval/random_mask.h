#pragma once

#include <cstdint>
#include <random>

#include "kernels/base/neuron_observer.h"

namespace sparsellm {

// The control of an experiment with prediction, which SparseInfer has (Shin et al., DATE 2025):
// of every generated token, neurons drawn at random are taken to be zero. With activation sparsity
// `exact`, on the CPU. The same steps draw the same neurons.
class RandomMask : public NeuronObserver {
 public:
  explicit RandomMask(double share) : share_(share) {}  // of the neurons, in [0, 1]

  void observe(const Neurons& neurons, ExecContext& ctx) override;

 private:
  double share_;
  std::mt19937_64 random_{1};
};

}  // namespace sparsellm
