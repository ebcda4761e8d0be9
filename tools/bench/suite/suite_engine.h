#pragma once

#include <cstdint>

#include "tools/bench/engine.h"
#include "tools/bench/suite/suite.h"
#include "tools/cli/args.h"

namespace sparsellm {

// Where a suite is measured.
struct SuiteMachine {
  ModelArgs model;              // device, kernel choices, threads: what cells say nothing of
  int gpus = 1;                 // that there are; on the CPU any number of ranks will do
  int64_t gpu_memory = 0;       // bytes of each, as if it had so many; 0: what it has
  int64_t gpu_memory_here = 0;  // bytes that the GPU has; 0: there is none
  double gpu_memory_utilization = 0.98;
};

// What `throughput` is told for a cell of a suite: the model, its random weights, where it runs.
// Shares of neurons are not in it yet (choose_neuron_shares()).
BenchModelArgs suite_model_args(const SuiteCell& cell, const SuiteMachine& machine);

// Of an engine for a cell alone.
BenchEngineSize suite_engine_size(const EngineCell& cell);

// What a cell takes of a GPU's memory, on the CPU of a rank's share of the machine's.
struct SuiteFit {
  int64_t needed = 0;  // bytes: weights, a step, the KV cache of its requests
  int64_t step = 0;    // of them
  int64_t there = 0;   // that may be taken
  bool fits = false;
};
// By shapes alone: nothing is loaded, and no GPU is asked. Throws Error for a cell that cannot be.
SuiteFit fit_suite_cell(const SuiteCell& cell, const SuiteMachine& machine);

}  // namespace sparsellm
