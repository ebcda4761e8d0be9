#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <array>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/device_info.h"

namespace sparsellm {
namespace {

// NVIDIA's management library, which comes with the driver and not with the toolkit: the few
// functions that are used here, by the signatures of its stable C interface. All results are
// nothing where the library, a function of it or the permission is missing.
class Nvml {
 public:
  enum class Clock : int { sm = 1, memory = 2 };  // NVML_CLOCK_SM, NVML_CLOCK_MEM

  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    const auto init = function<int()>("nvmlInit_v2");
    initialised_ = init != nullptr && init() == kSuccess;
  }
  ~Nvml() {
    const auto shutdown = function<int()>("nvmlShutdown");
    if (initialised_ && shutdown != nullptr) {
      shutdown();
    }
    if (library_ != nullptr) {
      dlclose(library_);
    }
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::optional<std::string> driver_version() const {
    std::array<char, 96> version{};
    const auto get = function<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
    if (!initialised_ || get == nullptr ||
        get(version.data(), static_cast<unsigned>(version.size())) != kSuccess) {
      return std::nullopt;
    }
    return version.data();
  }

  // By the bus id, since NVML numbers devices without CUDA_VISIBLE_DEVICES.
  void* find(const char* bus_id) const {
    void* device = nullptr;
    const auto get = function<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    return initialised_ && get != nullptr && get(bus_id, &device) == kSuccess ? device : nullptr;
  }

  std::optional<int64_t> clock(void* device, Clock clock) const {
    return read_clock("nvmlDeviceGetClockInfo", device, clock);
  }
  std::optional<int64_t> max_clock(void* device, Clock clock) const {
    return read_clock("nvmlDeviceGetMaxClockInfo", device, clock);
  }

 private:
  static constexpr int kSuccess = 0;

  template <class Signature>
  Signature* function(const char* name) const {
    return library_ == nullptr ? nullptr : reinterpret_cast<Signature*>(dlsym(library_, name));
  }

  std::optional<int64_t> read_clock(const char* name, void* device, Clock clock) const {
    unsigned megahertz = 0;
    const auto get = function<int(void*, int, unsigned*)>(name);
    if (device == nullptr || get == nullptr ||
        get(device, static_cast<int>(clock), &megahertz) != kSuccess) {
      return std::nullopt;
    }
    return megahertz;
  }

  void* library_;
  bool initialised_ = false;
};

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

// CUDA says 13000 for 13.0.
std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The library says 130100 for 13.1.0.
std::string cublas_version(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

GpuInfo query_gpu(int index) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index));
  GpuInfo info;
  info.name = properties.name;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.l2_bytes = properties.l2CacheSize;
  info.multiprocessors = properties.multiProcessorCount;
  info.compute_capability = 10 * properties.major + properties.minor;

  std::array<char, 32> bus_id{};
  check_cuda(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), index));
  const Nvml nvml;
  void* const device = nvml.find(bus_id.data());
  constexpr int kKilo = 1000;  // CUDA counts in kHz
  info.sm_clock = nvml.clock(device, Nvml::Clock::sm);
  info.sm_clock_max = nvml.max_clock(device, Nvml::Clock::sm)
                          .value_or(attribute(cudaDevAttrClockRate, index) / kKilo);
  info.memory_clock = nvml.clock(device, Nvml::Clock::memory);
  info.memory_clock_max = nvml.max_clock(device, Nvml::Clock::memory)
                              .value_or(attribute(cudaDevAttrMemoryClockRate, index) / kKilo);
  info.driver = nvml.driver_version();

  int version = 0;
  check_cuda(cudaDriverGetVersion(&version));
  info.cuda_driver = cuda_version(version);
  check_cuda(cudaRuntimeGetVersion(&version));
  info.cuda_runtime = cuda_version(version);
  info.cublas = cublas_version(cublasLtGetVersion());
  return info;
}

}  // namespace sparsellm
