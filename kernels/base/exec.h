#pragma once

#include <cstdint>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/device.h"
#include "kernels/base/parallel.h"
#include "kernels/base/workspace.h"

namespace sparsellm {

class Communicator;    // kernels/base/comm.h
class CudaContext;     // kernels/base/cuda_context.h
struct CudaQueue;      // kernels/base/cuda_queue.h
class NeuronObserver;  // kernels/base/neuron_observer.h
class StepTrace;       // kernels/base/step_trace.h

// Whether the bits of a row of a result may depend on the other rows of a call.
enum class Sums : uint8_t {
  fastest,          // kernel and order of the sums are chosen by the number of rows
  batch_invariant,  // the same kernel and order whatever the number of rows; the CPU is always so
};

// Whether a kernel on CUDA may begin while the one before it still runs, as far as it does not need
// that one's results (programmatic dependent launch).
enum class Launches : uint8_t {
  overlapping,  // kernels that can do so
  ordinary,     // none: for what has just been computed where an op expects what was always there,
                // and for measurements of a kernel by itself
};

// What an op needs to run, passed down as the last argument: the device, scratch memory, and the
// threads of the CPU device, or a queue of a CUDA device.
struct ExecContext {
  Device device;
  Workspace& workspace;
  ThreadPool& threads;
  CpuIsa isa = best_cpu_isa();  // of the kernels on the CPU
  CudaContext* cuda = nullptr;
  const CudaQueue* queue = nullptr;  // of `cuda`, where ops enqueue; nullptr: its main one
  Sums sums = Sums::fastest;
  Launches launches = Launches::overlapping;
  StepTrace* trace = nullptr;         // measures the parts of a step; on CUDA, if requested
  NeuronObserver* neurons = nullptr;  // sees those of MLPs; on the CPU, if requested
  Communicator* comm = nullptr;       // of a model on several ranks; nullptr: there is one
};

}  // namespace sparsellm
