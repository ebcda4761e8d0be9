#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/error.h"
#include "kernels/base/nccl_rank.h"

namespace sparsellm {
namespace {

// Configurations, and with them communicators that do not block.
constexpr int kOldestNccl = NCCL_VERSION(2, 14, 3);
constexpr std::chrono::microseconds kPause{50};
constexpr std::chrono::seconds kForGoodbye{5};

// The functions that are used here. The library stays loaded: it has threads of its own.
struct Nccl {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;

  // Throws Error where it cannot be used.
  static Nccl load() {
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const problem = dlerror();
      fail("NCCL cannot be loaded: {}", problem != nullptr ? problem : "no reason is given");
    }
    Nccl nccl;
    find(library, "ncclGetVersion", nccl.get_version);
    int version = 0;
    require(nccl.get_version(&version) == ncclSuccess && version >= kOldestNccl,
            "NCCL has version code {}, and {} is the oldest that is used", version, kOldestNccl);
    find(library, "ncclGetErrorString", nccl.error_string);
    find(library, "ncclGetUniqueId", nccl.get_unique_id);
    find(library, "ncclCommInitRankConfig", nccl.init);
    find(library, "ncclCommGetAsyncError", nccl.async_error);
    find(library, "ncclCommFinalize", nccl.finalize);
    find(library, "ncclCommDestroy", nccl.destroy);
    find(library, "ncclCommAbort", nccl.abort);
    find(library, "ncclAllReduce", nccl.all_reduce);
    find(library, "ncclBroadcast", nccl.broadcast);
    find(library, "ncclGroupStart", nccl.group_start);
    find(library, "ncclGroupEnd", nccl.group_end);
    return nccl;
  }

  void check(ncclResult_t result, const char* what) const {
    require(result == ncclSuccess, "NCCL, {}: {}", what, error_string(result));
  }

 private:
  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    require(function != nullptr, "NCCL has no {}", name);
  }
};

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f16:
      return ncclFloat16;
    case DType::bf16:
      return ncclBfloat16;
    default:
      fail("NCCL is to add up {}", name_of(dtype));
  }
}

}  // namespace

struct NcclRank::State {
  const Nccl nccl = Nccl::load();
  const std::function<void()> check_alive;
  std::mutex mutex;           // of `comm`
  ncclComm_t comm = nullptr;  // none: before, and after an abort

  explicit State(std::function<void()> check) : check_alive(std::move(check)) {}

  // Calls `enqueue`, and waits until it has enqueued what it is to.
  template <class Enqueue>
  void call(const char* what, Enqueue&& enqueue) {
    std::unique_lock lock(mutex);
    require_comm();
    ncclResult_t result = enqueue();
    while (result == ncclInProgress) {
      lock.unlock();
      check_alive();
      std::this_thread::sleep_for(kPause);
      lock.lock();
      require_comm();
      nccl.check(nccl.async_error(comm, &result), what);
    }
    nccl.check(result, what);
  }

  // After an abort the reason is on its way to this rank.
  void require_comm() const {
    if (comm == nullptr) {
      check_alive();
      fail("NCCL was aborted");
    }
  }
};

std::string NcclRank::why_not() {
  try {
    Nccl::load();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<std::byte> NcclRank::make_id() {
  const Nccl nccl = Nccl::load();
  ncclUniqueId id{};
  nccl.check(nccl.get_unique_id(&id), "a new communicator");
  std::vector<std::byte> bytes(sizeof(id));
  std::memcpy(bytes.data(), &id, sizeof(id));
  return bytes;
}

NcclRank::NcclRank(std::span<const std::byte> id, int rank, int size, int device,
                   std::function<void()> check)
    : state_(std::make_unique<State>(std::move(check))) {
  ncclUniqueId unique{};
  require(id.size() == sizeof(unique), "an id of NCCL has {} bytes, not {}", sizeof(unique),
          id.size());
  std::memcpy(&unique, id.data(), sizeof(unique));
  check_cuda(cudaSetDevice(device));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  State& state = *state_;
  constexpr char kWhat[] = "connecting the ranks";
  const ncclResult_t begun = state.nccl.init(&state.comm, size, unique, rank, &config);
  require(begun == ncclSuccess || begun == ncclInProgress, "NCCL, {}: {}", kWhat,
          state.nccl.error_string(begun));
  try {
    state.call(kWhat, [&] { return begun; });
  } catch (...) {
    abort();
    throw;
  }
}

NcclRank::~NcclRank() {
  State& state = *state_;
  // Where all are in order, they end together; but nobody waits for long.
  const auto deadline = std::chrono::steady_clock::now() + kForGoodbye;
  ncclResult_t result = ncclInternalError;
  {
    const std::lock_guard lock(state.mutex);
    if (state.comm == nullptr) {
      return;
    }
    result = state.nccl.finalize(state.comm);
  }
  while (result == ncclInProgress && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kPause);
    const std::lock_guard lock(state.mutex);
    if (state.comm == nullptr || state.nccl.async_error(state.comm, &result) != ncclSuccess) {
      break;
    }
  }
  const std::lock_guard lock(state.mutex);
  if (state.comm != nullptr) {
    result == ncclSuccess ? state.nccl.destroy(state.comm) : state.nccl.abort(state.comm);
    state.comm = nullptr;
  }
}

void NcclRank::all_reduce_sum(void* data, int64_t count, DType dtype, const CudaQueue& queue) {
  State& state = *state_;
  state.call("a sum", [&] {
    return state.nccl.all_reduce(data, data, static_cast<size_t>(count), type_of(dtype), ncclSum,
                                 state.comm, queue.stream);
  });
}

void NcclRank::broadcast(std::span<const Part> parts, const CudaQueue& queue) {
  State& state = *state_;
  state.call("a broadcast", [&] {
    ncclResult_t result = state.nccl.group_start();
    for (const Part& part : parts) {
      if (part.bytes > 0 && (result == ncclSuccess || result == ncclInProgress)) {
        result = state.nccl.broadcast(part.data, part.data, static_cast<size_t>(part.bytes),
                                      ncclUint8, part.root, state.comm, queue.stream);
      }
    }
    const ncclResult_t ended = state.nccl.group_end();
    return result == ncclSuccess || result == ncclInProgress ? ended : result;
  });
}

std::string NcclRank::problem() noexcept {
  try {
    State& state = *state_;
    const std::lock_guard lock(state.mutex);
    if (state.comm == nullptr) {
      return {};
    }
    ncclResult_t found = ncclSuccess;
    const ncclResult_t asked = state.nccl.async_error(state.comm, &found);
    const ncclResult_t result = asked != ncclSuccess ? asked : found;
    const bool good = result == ncclSuccess || result == ncclInProgress;
    return good ? std::string() : std::string("NCCL: ") + state.nccl.error_string(result);
  } catch (...) {
    return {};  // for want of memory; the next call finds it
  }
}

void NcclRank::abort() noexcept {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (state.comm != nullptr) {
    state.nccl.abort(std::exchange(state.comm, nullptr));
  }
}

}  // namespace sparsellm
