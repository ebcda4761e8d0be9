#pragma once

#include <cstdint>

#include "models/neuron_counts.h"

namespace sparsellm {

// What an engine has done and what it holds. The time of a step includes its callbacks; that of a
// step that both prefills and decodes is shared out by rows.
struct EngineStats {
  double load_seconds = 0.0;
  int64_t tuned_choices = 0;    // of kernels, that were measured while loading
  double weight_seconds = 0.0;  // part of load_seconds, until the weights were on the device
  int64_t prefill_tokens = 0;
  double prefill_seconds = 0.0;
  int64_t decode_tokens = 0;
  double decode_seconds = 0.0;
  int64_t steps = 0;
  int64_t preemptions = 0;        // requests that lost their pages of the KV cache to an older one
  int64_t recomputed_tokens = 0;  // part of prefill_tokens: computed before, lost to a preemption
  int64_t shared_tokens = 0;      // of prompts, not computed: another sample's pages have them

  // Of the MLPs of all layers, with activation sparsity; on CUDA of all rows that the device has
  // computed, also if a step ahead turned out to be of no use.
  NeuronCounts neurons;

  // Samples of requests, now: those that have pages of the KV cache, and those that wait for some.
  int64_t running = 0;
  int64_t waiting = 0;

  int64_t waits = 0;  // times that the host waited for a CUDA device

  int64_t weight_bytes = 0;
  int64_t kv_bytes = 0;
  int64_t workspace_bytes = 0;  // of the tensors of a step
};

}  // namespace sparsellm
