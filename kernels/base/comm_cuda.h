#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/comm.h"
#include "kernels/base/comm_plan.h"
#include "kernels/base/device.h"

namespace sparsellm {

class CudaContext;

struct CudaCommOptions {
  enum class Nccl : uint8_t {
    if_needed,  // where the GPUs do not reach each other's memory
    also,       // beside own kernels, for messages from CommLimits::nccl_from on; if it is there
  };
  Nccl nccl = Nccl::if_needed;
  // Thread blocks of a kernel at most: fewer leave room for what runs beside it, or for the kernels
  // of other ranks on the same GPU.
  int max_blocks = CommLayout::kMaxBlocks;
  bool own_kernels = true;                // false: NCCL alone, as it is between hosts
  std::optional<CommLimits> limits = {};  // nothing: CommLimits::of()
  // How long a rank waits for its device, which may wait for the others (DeviceWait).
  std::chrono::milliseconds timeout{60000};
  // Whether ranks meet on the host before and after each op (Communicator::meet()). Needed if there
  // are other calls of CUDA between ops, which may load kernels or allocate memory.
  bool hosts_meet = false;
};

// Communicator of ranks with a CUDA device each.
//
// On one host whose GPUs reach each other's memory (peer access) own kernels do everything, or
// everything below CommLimits::nccl_from; contexts with Sums::batch_invariant, and graphs, use them
// for all sizes. Elsewhere NCCL does, with two differences: the order of a sum and when it is
// rounded are NCCL's, and with more than two ranks may depend on the size; and a graph holds NCCL's
// kernels, which may hang where several GPUs belong to one process.
//
// Tensors may lie anywhere on the device. Ops run in the order in which they are called, also on
// the device: where queues change, a StreamFence says so. An op waits for the others without a
// limit; who waits for the device says so (DeviceWait), and abort() ends it: then all that is
// enqueued here ends within milliseconds, without a result, and check() throws. A device that goes
// on all the same for kGrace ends the process, with a line: what it holds cannot be given back, and
// calls of CUDA may wait for it forever.
//
// All ranks destroy theirs, or one aborts. The context and `host` outlive it.
class CudaCommunicator : public Communicator {
 public:
  // Whether sums can be made that way.
  virtual bool has(CommWay way) const = 0;
  // How a sum of this many bytes is computed, outside of graphs.
  virtual CommWay way_of(int64_t bytes) const = 0;
  // For measurements: the one way of all sums from now on, of those that has() knows; nothing: by
  // size. The same on all ranks.
  virtual void use_only(std::optional<CommWay> way) = 0;
  // One line: why there are no own kernels, or no NCCL; empty: there are, or nobody has asked.
  virtual std::string why_no_own_kernels() const = 0;
  virtual std::string why_no_nccl() const = 0;
  // Calls launch(), which launches a graph that contains ops, as if it were one op.
  virtual void launch_together(const std::function<void()>& launch) = 0;

  static constexpr std::chrono::seconds kGrace{10};

 protected:
  friend class DeviceWait;
  virtual void begin_wait() noexcept = 0;
  virtual void end_wait() noexcept = 0;
  using Communicator::Communicator;
};

// While it lives, a rank waits for its device: not for longer than CudaCommOptions::timeout, or
// everything ends. One at a time; nullptr: there is one rank, which may wait.
class DeviceWait {
 public:
  explicit DeviceWait(CudaCommunicator* comm) : comm_(comm) {
    if (comm_ != nullptr) {
      comm_->begin_wait();
    }
  }
  ~DeviceWait() {
    if (comm_ != nullptr) {
      comm_->end_wait();
    }
  }
  DeviceWait(const DeviceWait&) = delete;
  DeviceWait& operator=(const DeviceWait&) = delete;

 private:
  CudaCommunicator* comm_;
};

// `host` joins the ranks' threads or processes, and does what needs no device; its names of devices
// are kept. All ranks call this, each with its own context. Throws Error, on all of them: of the
// first that failed, or if there is neither peer access nor NCCL. Own kernels take
// CommLayout::of(ranks).bytes of each GPU's memory.
std::unique_ptr<CudaCommunicator> make_cuda_communicator(Communicator& host,
                                                         const CudaContext& cuda,
                                                         const CudaCommOptions& options = {});

}  // namespace sparsellm
