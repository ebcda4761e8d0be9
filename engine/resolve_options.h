#pragma once

#include <cstdint>

#include "engine/engine_options.h"
#include "engine/scheduler.h"
#include "models/config.h"
#include "models/kv_cache.h"

namespace sparsellm {

class Communicator;  // kernels/base/comm.h
class Decoder;       // models/decoder.h

// What the options come to. All throw Error for an option that is out of range.
SchedulerLimits scheduler_limits(const EngineOptions& options);
int choose_steps_ahead(const EngineOptions& options);
KvShape choose_kv_shape(const EngineOptions& options, const Decoder& decoder);
int64_t choose_context_size(const EngineOptions& options, const ModelConfig& config);
// With a device for each rank that is a thread of this process. Throws Error if there are not as
// many.
EngineOptions with_devices(EngineOptions options);
// Of one of several ranks: with its device, and its share of the threads. Rank 0 alone logs and
// reports; loading stops on all of them when it fails on one.
EngineOptions options_of_rank(const EngineOptions& options, Communicator& comm);
// Of the device, as if it had EngineOptions::gpu_memory if that is given; ranks on the CPU have
// equal shares of one machine's. Throws Error for a GPU that has less.
DeviceMemory memory_of_rank(const EngineOptions& options);
// The config as it runs, with the activation sparsity that the options request.
ModelConfig config_to_run(ModelConfig config, const EngineOptions& options);
// `memory` is what the device has left when all but the KV cache is there. What an engine takes,
// and what it could take for any number of requests.
int64_t choose_kv_pages(const EngineOptions& options, int64_t context_size, const KvShape& shape,
                        const DeviceMemory& memory);
int64_t max_kv_pages(const EngineOptions& options, int64_t context_size, const KvShape& shape,
                     const DeviceMemory& memory);
// Of a GPU's memory, what gpu_memory_utilization leaves to others.
int64_t kept_bytes(const EngineOptions& options, const DeviceMemory& memory);

}  // namespace sparsellm
