#pragma once

#include <spdlog/fwd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "models/activation_sparsity.h"
#include "models/weights/load_progress.h"

namespace sparsellm {

class Communicator;    // kernels/base/comm.h
class NeuronObserver;  // kernels/base/neuron_observer.h
class StepRunner;      // engine/step_runner.h

// How kernels with several variants are chosen on CUDA.
enum class Tuning : uint8_t {
  off,       // by rules
  measured,  // by measurements while loading, or what is kept of earlier ones
};

// Several devices that share the weights of one model, each a rank: threads of the caller's
// process, unless there is `meet`.
struct TensorParallel {
  static constexpr int kMaxDegree = 1024;

  int degree = 1;
  // Of each rank that is a thread, the first EngineOptions::device: GPUs, each once. Empty: that
  // GPU and those after it; on the CPU all have EngineOptions::device.
  std::vector<Device> devices = {};
  // How long a rank waits for another one that is to compute the same.
  std::chrono::milliseconds timeout{60000};
  // To measure what the sums over the ranks cost: they are left out, and results are wrong.
  bool leaves_out_sums = false;
  // Of ranks that are processes, of which the caller is rank 0: tells the others what they need to
  // know of the engine (`rank_options`, for engine/rank_process.h) and makes the communicator. It
  // is called once, when rank 0 has found nothing to refuse, before weights are loaded.
  std::function<std::unique_ptr<Communicator>(const std::string& rank_options)> meet = {};
};

struct EngineOptions {
  Device device;
  // Ranks on the CPU share EngineOptions::threads. kv_bytes are those of each rank, and all sizes
  // that an engine tells are those of rank 0. Whatever goes wrong on a rank is like a device that
  // is lost.
  TensorParallel tensor_parallel;
  int64_t context_size = 0;    // tokens of prompt and continuation; 0: the model's maximum
  int64_t max_requests = 32;   // samples computed at once
  int64_t step_tokens = 2048;  // computed in one step
  // Capacity of the KV cache, in tokens or in bytes; both 0: max_requests full contexts, or as many
  // as fit in half of the machine's memory, or in what is left of the GPU's, at least one.
  int64_t kv_tokens = 0;
  int64_t kv_bytes = 0;
  // The share of a GPU's memory that may be in use, by other programs as well: weights, the tensors
  // of a step and the KV cache must fit it, also with kv_tokens or kv_bytes.
  double gpu_memory_utilization = 0.95;
  // The memory that each GPU is taken to have, in bytes; 0: what it has. What other programs use of
  // it counts as used.
  int64_t gpu_memory = 0;
  // The bits of a result depend on the request alone: not on what else is computed, nor on
  // preemption. The CPU device is always so.
  bool deterministic = false;
  // Steps that are enqueued before the tokens of the one before are read, 0 or 1; -1: 1 on CUDA, 0
  // on the CPU. Results are the same; a request that turns out to be finished has one row computed
  // for nothing.
  int steps_ahead = -1;
  // Measures where the time of decode rows goes (Engine::decode_seconds); on CUDA only, without
  // steps ahead.
  bool traces = false;
  // On CUDA, captures the graphs of decode rows for every token bucket while loading, instead of
  // each in the first step that needs it.
  bool warm_up = false;
  int threads = 0;  // of the CPU device; 0: usable_cores()
  // Of the kernels of products on the CPU device, which has it; results are the same bits.
  CpuIsa cpu_isa = best_cpu_isa();
  // What the KV cache of the CPU device holds: f32, the default, or f16, which takes half of the
  // memory. On CUDA it has the dtype that the model computes in, and this is an Error.
  std::optional<DType> kv_dtype;
  // What a model on CUDA computes in, f16 or bf16, and what its weights become; by default bf16 if
  // the checkpoint has bf16, else f16.
  std::optional<DType> dtype;
  // The format of the linear layers' weights, a name of sparse/registry.h; empty: as each is
  // stored. Others are converted while loading. "auto": for each kind of layers the fastest
  // (engine/format_selection.h).
  std::string weight_format;
  // What weights that are converted to tca_bme, or made in it, are encoded for: "speed", which an
  // empty text is, or "size" (docs/formats.md). Those that are stored in it stay as they are, and
  // "auto" measures those for speed.
  std::string records;
  // What the MLPs of models with relu or fatrelu skip; by default what the model has stored. With
  // `exact` and `predict` they are dense, whatever weight_format says. Not on CUDA yet (an Error).
  ActivationSparsityRequest activation_sparsity;
  // Sees neurons while the engine runs, which it outlives; with `exact`, on the CPU (else an
  // Error). Those of all ranks, if it takes several (else an Error).
  NeuronObserver* neuron_observer = nullptr;
  // Rows of decode steps that "auto" is to be fast for; empty: all up to max_requests.
  std::vector<int64_t> decode_tokens;
  bool verify = false;  // all checksums of a converted model before it is loaded
  Tuning tuning = Tuning::off;
  std::filesystem::path tune_cache;  // file that keeps what was measured; empty: nothing is kept
  bool with_tokenizer = true;
  LoadProgress progress;
  spdlog::logger* log = nullptr;  // has to outlive the engine
  // Makes of the engine's runner, that of rank 0, the one that it uses, for tests of what a device
  // may do.
  std::function<std::unique_ptr<StepRunner>(std::unique_ptr<StepRunner>)> wrap_runner;
};

}  // namespace sparsellm
