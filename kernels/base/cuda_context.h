#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/cuda_queue.h"
#include "kernels/base/device.h"

namespace sparsellm {

// What ops need of a CUDA device besides memory: the libraries' handles, and two queues, the main
// one in which all ops run in order except for those that are given the other (ExecContext::queue).
// Their streams are not ordered with any other stream, not even the legacy stream
// (cudaStreamNonBlocking): several contexts of a device, each used by one thread at a time, neither
// wait for each other nor break each other's captures. Ops see what is in it through
// kernels/base/cuda_state.cuh. In a CPU-only build the constructor throws.
class CudaContext {
 public:
  // What a context holds of the device's memory for the libraries: as much as cuBLAS recommends for
  // Hopper, more than older GPUs need.
  static constexpr int64_t kWorkspaceBytes = 32 << 20;

  explicit CudaContext(Device device);  // throws Error
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  struct State;
  State& state() const { return *state_; }

  // Makes the device the calling thread's, which everything that is enqueued needs.
  void make_current() const;

  // The second queue, with this workspace (CudaQueue::workspace). It overlaps the main one, except
  // for what a StreamFence orders.
  CudaQueue side_queue(void* workspace) const;

  // Waits until all that was enqueued is done, in both queues. Throws Error for a kernel that
  // failed.
  void synchronize() const;
  // The same without errors, for callers that are about to free memory which is in use. Returns at
  // once if the device is lost.
  void wait() const noexcept;

  // What follows enqueues in a queue of this context; nullptr: the main one.

  // A copy between any two places; memory of the host is that of a PinnedBuffer, and stays as it is
  // until the copy is done.
  void copy_async(void* destination, const void* source, int64_t bytes,
                  const CudaQueue* queue = nullptr) const;
  // The same for the first `width` bytes of each of `rows` rows; pitches in bytes.
  void copy_rows_async(void* destination, int64_t destination_pitch, const void* source,
                       int64_t source_pitch, int64_t width, int64_t rows) const;
  // Copies after all that was enqueued; complete on return. Memory of the host is any.
  void copy(void* destination, const void* source, int64_t bytes,
            const CudaQueue* queue = nullptr) const;

 private:
  std::unique_ptr<State> state_;
};

// What is enqueued in one queue of a context after wait() runs after what was enqueued in another
// before the latest set(); nullptr: the main queue. Also while a graph is captured, which has to
// end with all that was enqueued in the side queue waited for.
class StreamFence {
 public:
  explicit StreamFence(const CudaContext& context);
  ~StreamFence();
  StreamFence(const StreamFence&) = delete;
  StreamFence& operator=(const StreamFence&) = delete;

  void set(const CudaQueue* queue);
  void wait(const CudaQueue* queue) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A place in a queue of a context; nullptr: the main one.
class CudaEvent {
 public:
  enum class Timing : uint8_t { no, yes };
  explicit CudaEvent(const CudaContext& context, Timing timing = Timing::no,
                     const CudaQueue* queue = nullptr);
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept;
  CudaEvent& operator=(CudaEvent&& other) noexcept;

  // Also while a graph is captured: every launch of it then records the event anew.
  void record();
  // Waits until the queue is past the event. Throws Error for a kernel that failed before.
  void synchronize() const;
  // Both have Timing::yes and are past.
  double seconds_since(const CudaEvent& earlier) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
