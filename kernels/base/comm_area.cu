#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/base/comm_area.h"
#include "kernels/base/cuda_state.cuh"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// Number of the first call. Packets bear its lower half, which soon begins anew: what happens then
// happens in every run, and not after hours.
constexpr uint64_t kFirstCall = (uint64_t{1} << 32) - 1000;

using Text = std::array<char, 80>;

Text text_of(std::string_view text) {
  Text result{};
  std::copy_n(text.begin(), std::min(text.size(), result.size() - 1), result.begin());
  return result;
}

// Where cudaIpc works: between processes under one kernel.
std::string host_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

// Where an address means the same.
std::string process_id() {
  std::array<char, 64> space{};
  if (readlink("/proc/self/ns/pid", space.data(), space.size() - 1) < 0) {
    space = {};
  }
  return fmt::format("{} {}", space.data(), getpid());
}

}  // namespace

std::string first_of_ranks(Communicator& host, std::string_view text) {
  const auto texts = host.gather_bytes(std::as_bytes(std::span(text)), Patience::while_alive);
  std::vector<std::byte> first;
  for (const std::vector<std::byte>& one : texts) {
    if (first.empty()) {
      first = one;
    }
  }
  host.broadcast_bytes(first, 0, Patience::while_alive);
  return {reinterpret_cast<const char*>(first.data()), first.size()};
}

// What a rank tells the others; all ranks are the same program.
struct CommArea::Told {
  Text host{};
  Text process{};
  Text problem{};                                   // why there is no handle
  const std::shared_ptr<Memory>* memory = nullptr;  // of its process
  cudaIpcMemHandle_t handle{};
  int device = 0;
  int multiprocessors = 0;
};

class CommArea::Memory {
 public:
  Memory(int device, const CommLayout& layout) : device_(device) {
    const cudaError_t status = cudaMalloc(&data_, static_cast<size_t>(layout.bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw OutOfMemory(fmt::format("not enough memory on cuda:{} for {} bytes of communication",
                                    device, layout.bytes));
    }
    check_cuda(status);
  }
  ~Memory() {
    cudaSetDevice(device_);
    cudaFree(data_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

  // As the first call expects it: packets bear numbers of calls of the other turn, and flags none.
  void clear(const CommLayout& layout, int ranks) const {
    check_cuda(cudaMemsetAsync(data_, 0, static_cast<size_t>(layout.bytes), cudaStreamPerThread));
    const int64_t turn_bytes = (ranks - 1) * layout.packets.slot_bytes;
    check_cuda(cudaMemsetAsync(data() + layout.packets.offset, 0xff,
                               static_cast<size_t>(turn_bytes), cudaStreamPerThread));
    std::array<uint64_t, CommLayout::kMaxBlocks> numbers{};
    numbers.fill(kFirstCall);
    check_cuda(cudaMemcpyAsync(data_, numbers.data(), sizeof(numbers), cudaMemcpyHostToDevice,
                               cudaStreamPerThread));
    check_cuda(cudaStreamSynchronize(cudaStreamPerThread));
  }

 private:
  int device_;
  void* data_ = nullptr;
};

CommArea::CommArea(Communicator& host, Device device) : host_(host), device_(device) {
  world_.rank = host.rank();
  world_.ranks = host.size();
}

std::vector<CommArea::Told> CommArea::tell(const std::shared_ptr<Memory>* own) {
  Told told;
  told.host = text_of(host_id());
  told.process = text_of(process_id());
  told.memory = own;
  told.device = device_.index;
  check_cuda(
      cudaDeviceGetAttribute(&told.multiprocessors, cudaDevAttrMultiProcessorCount, device_.index));
  const cudaError_t status = cudaIpcGetMemHandle(&told.handle, (*own)->data());
  if (status != cudaSuccess) {
    cudaGetLastError();
    told.problem = text_of(cudaGetErrorString(status));
  }
  const auto all = host_.gather_bytes(std::as_bytes(std::span(&told, 1)), Patience::while_alive);
  std::vector<std::byte> joined;
  for (const std::vector<std::byte>& one : all) {
    joined.insert(joined.end(), one.begin(), one.end());
  }
  host_.broadcast_bytes(joined, 0, Patience::while_alive);
  require(joined.size() == static_cast<size_t>(host_.size()) * sizeof(Told),
          "ranks are not the same program");
  std::vector<Told> result(static_cast<size_t>(host_.size()));
  std::memcpy(result.data(), joined.data(), joined.size());
  return result;
}

// The memory of another rank becomes that of world_. Throws Error with the reason why not.
void CommArea::reach(const Told& other, int rank) {
  const auto at = static_cast<size_t>(rank);
  require(other.host == text_of(host_id()), "it is on another host");
  if (other.process == text_of(process_id())) {
    if (other.device != device_.index) {
      int can = 0;
      check_cuda(cudaDeviceCanAccessPeer(&can, device_.index, other.device));
      require(can != 0, "there is no peer access");
      const cudaError_t status = cudaDeviceEnablePeerAccess(other.device, 0);
      if (status == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
      } else {
        check_cuda(status);
      }
    }
    memory_.push_back(*other.memory);
    world_.memory[at] = memory_.back()->data();
    return;
  }
  require(other.problem == Text{}, "{}", other.problem.data());
  void* data = nullptr;
  const cudaError_t status =
      cudaIpcOpenMemHandle(&data, other.handle, cudaIpcMemLazyEnablePeerAccess);
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail("{}", cudaGetErrorString(status));
  }
  mapped_.push_back(data);
  world_.memory[at] = static_cast<std::byte*>(data);
}

std::unique_ptr<CommArea> CommArea::make(Communicator& host, Device device, std::string& why_not) {
  if (host.size() > CommLayout::kMaxRanks) {
    why_not = fmt::format("{} ranks are more than {}", host.size(), CommLayout::kMaxRanks);
    return nullptr;
  }
  std::unique_ptr<CommArea> area(new CommArea(host, device));
  // Others of this process read it, until all have said that they are done.
  std::unique_ptr<std::shared_ptr<Memory>> own;
  std::string problem;
  try {
    check_cuda(cudaSetDevice(device.index));
    load_comm_kernels();
    area->world_.layout = CommLayout::of(host.size());
    own = std::make_unique<std::shared_ptr<Memory>>(
        std::make_shared<Memory>(device.index, area->world_.layout));
    (*own)->clear(area->world_.layout, host.size());
    area->memory_.push_back(*own);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  host.agree(problem, Patience::while_alive);
  try {
    const std::vector<Told> told = area->tell(own.get());
    area->has_processes_ = std::any_of(told.begin(), told.end(), [&](const Told& one) {
      return one.host != told.front().host || one.process != told.front().process;
    });
    for (int rank = 0; rank < host.size(); ++rank) {
      const Told& one = told[static_cast<size_t>(rank)];
      area->max_blocks_ = std::min(area->max_blocks_, one.multiprocessors);
      if (rank == host.rank()) {
        area->world_.memory[static_cast<size_t>(rank)] = (*own)->data();
        continue;
      }
      try {
        area->reach(one, rank);
      } catch (const DeviceLost&) {
        throw;
      } catch (const std::exception& error) {
        problem = fmt::format("{} does not reach the memory of {}: {}", host.name(host.rank()),
                              host.name(rank), error.what());
        break;
      }
    }
    why_not = first_of_ranks(host, problem);
  } catch (...) {
    // Another thread may be reading it, and its kernels may write to the memory later.
    static_cast<void>(own.release());
    throw;
  }
  return why_not.empty() ? std::move(area) : nullptr;
}

CommArea::~CommArea() {
  cudaSetDevice(device_.index);
  for (void* data : mapped_) {
    if (cudaIpcCloseMemHandle(data) != cudaSuccess) {
      cudaGetLastError();
    }
  }
  if (!has_processes_) {
    return;  // the last of those that have memory of this process frees it
  }
  try {
    host_.gather_bytes({}, Patience::timeout);
    std::vector<std::byte> none;
    host_.broadcast_bytes(none, 0, Patience::timeout);
  } catch (const std::exception&) {
    // Others may still write to it; it is freed when the process ends.
    static_cast<void>(new std::shared_ptr<Memory>(memory_.front()));
  }
}

}  // namespace sparsellm
