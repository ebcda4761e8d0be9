#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// What ops of MLPs with activation sparsity have found, in memory of their device, where they add
// to it: sums of integers, which do not depend on the order. Several streams and threads may add.
struct NeuronCounters {
  uint64_t rows;     // of tokens
  uint64_t skipped;  // neurons of these rows that were predicted to be zero
  uint64_t active;   // neurons of these rows that were not zero
};

// All of them 0.
Buffer make_neuron_counters(Device device);
// Copies them to the host, without waiting for what is enqueued. All are 0 if `counters` is empty.
NeuronCounters read_neuron_counters(const Buffer& counters);

// What an op counts besides its work.
struct NeuronTally {
  NeuronCounters* counters = nullptr;  // on the op's device; null: nothing is counted
  Tensor positions = {};  // i32 [tokens]: rows of -1 are padding, not counted; or empty: none is
  Tensor active = {};     // u8 [tokens, neurons], 0: skipped (predict_active()); or empty: none is
};

// On the CPU: adds h [tokens, neurons], f32, whose elements that are not 0 are active; nothing
// without counters.
void count_neurons_cpu(const Tensor& h, const NeuronTally& tally);

}  // namespace sparsellm
