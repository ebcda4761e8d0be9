#include "engine/resolve_options.h"

#include <algorithm>

#include "kernels/base/comm.h"
#include "kernels/base/error.h"
#include "kernels/base/neuron_observer.h"
#include "kernels/base/parallel.h"
#include "kernels/base/usable_cores.h"
#include "kernels/paged_kv.h"
#include "models/decoder.h"
#include "models/shard.h"

namespace sparsellm {
namespace {

// What the KV cache gets at most by default. On CUDA everything else is there already, but for the
// captured graphs.
int64_t affordable_bytes(const EngineOptions& options, const DeviceMemory& memory) {
  if (!options.device.is_cuda()) {
    return memory.total / 2;
  }
  constexpr int64_t kGraphs = 256 << 20;
  return std::max<int64_t>(memory.free - kept_bytes(options, memory) - kGraphs, 0);
}

void check_ranks(const EngineOptions& options) {
  const TensorParallel& ranks = options.tensor_parallel;
  require(ranks.degree >= 1 && ranks.degree <= TensorParallel::kMaxDegree,
          "{} ranks that share a model; use 1 to {}", ranks.degree, TensorParallel::kMaxDegree);
  require(ranks.timeout.count() > 0, "ranks that wait {} ms for each other", ranks.timeout.count());
  const auto devices = static_cast<int>(ranks.devices.size());
  require(devices == 0 || devices == ranks.degree, "{} devices for {} ranks", devices,
          ranks.degree);
  for (auto device = ranks.devices.begin(); device != ranks.devices.end(); ++device) {
    require(device->kind == options.device.kind &&
                (device != ranks.devices.begin() || *device == options.device),
            "a rank on {} beside one on {}", to_string(*device), to_string(options.device));
    require(!device->is_cuda() || device->is_planned() ||
                std::find(ranks.devices.begin(), device, *device) == device,
            "two ranks on {}", to_string(*device));
  }
}

}  // namespace

int64_t kept_bytes(const EngineOptions& options, const DeviceMemory& memory) {
  const double kept = (1.0 - options.gpu_memory_utilization) * static_cast<double>(memory.total);
  return static_cast<int64_t>(kept);
}

SchedulerLimits scheduler_limits(const EngineOptions& options) {
  require(options.kv_tokens >= 0, "a KV cache of {} tokens is negative", options.kv_tokens);
  require(options.kv_bytes >= 0, "a KV cache of {} bytes is negative", options.kv_bytes);
  require(options.kv_tokens == 0 || options.kv_bytes == 0,
          "the KV cache is given in tokens ({}) and in bytes ({}); give one", options.kv_tokens,
          options.kv_bytes);
  if (options.kv_dtype) {
    require(!options.device.is_cuda(),
            "a KV cache of {} on {}: there it has the dtype that the model computes in",
            name_of(*options.kv_dtype), to_string(options.device));
    require(*options.kv_dtype == DType::f32 || *options.kv_dtype == DType::f16,
            "a KV cache of {}; use f32 or f16", name_of(*options.kv_dtype));
  }
  require(options.threads >= 0 && options.threads <= ThreadPool::kMaxThreads,
          "{} threads; use 0 (one for each core) to {}", options.threads, ThreadPool::kMaxThreads);
  require(options.device.is_cuda() || options.cpu_isa <= best_cpu_isa(), "this CPU has no {}",
          name_of(options.cpu_isa));
  require(options.steps_ahead >= -1 && options.steps_ahead <= 1, "{} steps ahead; use 0 or 1",
          options.steps_ahead);
  require(!options.traces || choose_steps_ahead(options) == 0,
          "the parts of a step are measured without steps ahead");
  require(options.gpu_memory_utilization > 0.0 && options.gpu_memory_utilization <= 1.0,
          "a GPU memory utilization of {} is not in (0, 1]", options.gpu_memory_utilization);
  require(options.gpu_memory >= 0, "a GPU memory of {} bytes is negative", options.gpu_memory);
  require(options.gpu_memory == 0 || options.device.is_cuda(), "a GPU memory of {} bytes on {}",
          options.gpu_memory, to_string(options.device));
  require(options.max_requests >= 1 && options.max_requests <= 1 << 16,
          "{} requests at once; use 1 to 65536", options.max_requests);
  require(options.step_tokens >= options.max_requests && options.step_tokens <= 1 << 20,
          "{} tokens per step; use {} (one for each request) to 1048576", options.step_tokens,
          options.max_requests);
  return {.step_tokens = options.step_tokens, .max_requests = options.max_requests};
}

int choose_steps_ahead(const EngineOptions& options) {
  if (options.steps_ahead >= 0) {
    return options.steps_ahead;
  }
  return options.device.is_cuda() && !options.traces ? 1 : 0;
}

EngineOptions with_devices(EngineOptions options) {
  check_ranks(options);
  TensorParallel& ranks = options.tensor_parallel;
  if (options.device.is_cuda() && !ranks.meet && ranks.degree > 1) {
    const int gpus = cuda_device_count();
    require(ranks.degree <= gpus, "{} ranks need {} GPUs, there {} {}", ranks.degree, ranks.degree,
            gpus == 1 ? "is" : "are", gpus);
    for (int i = 0; i < ranks.degree && std::ssize(ranks.devices) < ranks.degree; ++i) {
      ranks.devices.push_back({options.device.kind, options.device.index + i});
    }
  }
  check_device(options.device);
  for (const Device device : ranks.devices) {
    check_device(device);
  }
  return options;
}

EngineOptions options_of_rank(const EngineOptions& options, Communicator& comm) {
  EngineOptions own = options;
  if (!options.tensor_parallel.devices.empty()) {
    own.device = options.tensor_parallel.devices.at(static_cast<size_t>(comm.rank()));
  }
  const int threads = options.threads > 0 ? options.threads : usable_cores();
  const int more = comm.rank() < threads % comm.size() ? 1 : 0;
  own.threads = std::max(threads / comm.size() + more, 1);
  own.progress = [&comm, report = options.progress](int64_t done, int64_t total) {
    comm.check();
    if (report && comm.rank() == 0) {
      report(done, total);
    }
  };
  if (comm.rank() != 0) {
    own.log = nullptr;
    own.wrap_runner = nullptr;
  }
  return own;
}

KvShape choose_kv_shape(const EngineOptions& options, const Decoder& decoder) {
  KvShape shape = decoder.kv_shape();
  shape.dtype = options.kv_dtype.value_or(shape.dtype);
  return shape;
}

int64_t choose_context_size(const EngineOptions& options, const ModelConfig& config) {
  require(options.context_size >= 0, "a context of {} tokens is negative", options.context_size);
  require(options.context_size <= config.max_positions,
          "a context of {} tokens is more than the {} positions of the model", options.context_size,
          config.max_positions);
  return options.context_size > 0 ? options.context_size : config.max_positions;
}

DeviceMemory memory_of_rank(const EngineOptions& options) {
  if (options.device.is_planned()) {
    require(options.gpu_memory > 0, "nobody said how much memory {} has",
            to_string(options.device));
    return {.total = options.gpu_memory, .free = options.gpu_memory};
  }
  DeviceMemory memory = device_memory(options.device);
  if (!options.device.is_cuda()) {
    memory.total /= options.tensor_parallel.degree;
    memory.free /= options.tensor_parallel.degree;
  } else if (options.gpu_memory > 0) {
    constexpr double kGiB = 1 << 30;
    require(options.gpu_memory <= memory.total, "{} has {:.1f} GiB of memory, not {:.1f}",
            to_string(options.device), static_cast<double>(memory.total) / kGiB,
            static_cast<double>(options.gpu_memory) / kGiB);
    const int64_t held = memory.total - memory.free;
    memory = {.total = options.gpu_memory, .free = std::max<int64_t>(options.gpu_memory - held, 0)};
  }
  return memory;
}

ModelConfig config_to_run(ModelConfig config, const EngineOptions& options) {
  config.activation_sparsity = activation_sparsity_for(config, options.activation_sparsity);
  check_ranks(options);
  const int degree = options.tensor_parallel.degree;
  require_shared(config, {.rank = 0, .degree = degree});
  require(
      options.neuron_observer == nullptr || degree == 1 || options.neuron_observer->takes_ranks(),
      "these neurons are observed on one rank, not on {}", degree);
  require(options.neuron_observer == nullptr || !options.tensor_parallel.meet,
          "neurons are observed on ranks that are threads, not on other processes");
  require(options.neuron_observer == nullptr ||
              (!options.device.is_cuda() &&
               config.activation_sparsity.mode == ActivationSparsity::Mode::exact),
          "neurons are observed with activation sparsity exact on the CPU, not with {} on {}",
          name_of(config.activation_sparsity.mode), to_string(options.device));
  return config;
}

int64_t max_kv_pages(const EngineOptions& options, int64_t context_size, const KvShape& shape,
                     const DeviceMemory& memory) {
  if (options.kv_tokens > 0) {
    return pages_for(options.kv_tokens);
  }
  const int64_t page_bytes = shape.bytes_per_token() * kPageSize;
  if (options.kv_bytes > 0) {
    require(options.kv_bytes >= page_bytes,
            "a KV cache of {} bytes is smaller than a page of {} tokens, which takes {} bytes",
            options.kv_bytes, kPageSize, page_bytes);
    return options.kv_bytes / page_bytes;
  }
  return std::max(pages_for(context_size), affordable_bytes(options, memory) / page_bytes);
}

int64_t choose_kv_pages(const EngineOptions& options, int64_t context_size, const KvShape& shape,
                        const DeviceMemory& memory) {
  const int64_t most = max_kv_pages(options, context_size, shape, memory);
  if (options.kv_tokens > 0 || options.kv_bytes > 0) {
    return most;
  }
  return std::min(
      most, checked_mul(pages_for(context_size), options.max_requests, "pages of the KV cache"));
}

}  // namespace sparsellm
