#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"
#include "models/activation_sparsity.h"
#include "models/config.h"
#include "models/weights/random_weights.h"
#include "tools/bench/neuron_shares.h"

namespace sparsellm {

// What the MLPs of a model with random weights need so that these shares of their neurons are
// predicted to be zero, and zero: alphas, and thresholds of FATReLU in place of the model's
// activation, of each layer. They are quantiles over 64 random tokens of one sequence, whose hidden
// states come from layers that have theirs already. Computed on the CPU, a layer in memory at a
// time, also for a model that then runs on a GPU, where the weights have the same bits. Throws
// Error, also for a config whose MLPs have an activation without zeros.
ActivationSparsity choose_random_sparsity(const ModelConfig& config, const RandomWeights& weights,
                                          const NeuronShares& shares, Votes votes,
                                          ThreadPool& threads);

}  // namespace sparsellm
