#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/device.h"

namespace sparsellm {

// What ops need of a CUDA device besides memory: the stream on which all of them run in order, and
// the libraries' handles. The streams are not ordered with any other stream, not even the legacy
// stream (cudaStreamNonBlocking): several contexts of a device, each used by one thread at a time,
// neither wait for each other nor break each other's captures. Ops see what is in it through
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

  // Waits until all that was enqueued is done, on both streams (OnSideStream). Throws Error for a
  // kernel that failed.
  void synchronize() const;
  // The same without errors, for callers that are about to free memory which is in use. Returns at
  // once if the device is lost.
  void wait() const noexcept;

  // Enqueues a copy between any two places; memory of the host is that of a PinnedBuffer, and stays
  // as it is until the copy is done.
  void copy_async(void* destination, const void* source, int64_t bytes) const;
  // The same for the first `width` bytes of each of `rows` rows; pitches in bytes.
  void copy_rows_async(void* destination, int64_t destination_pitch, const void* source,
                       int64_t source_pitch, int64_t width, int64_t rows) const;
  // Copies behind all that was enqueued; complete on return. Memory of the host is any.
  void copy(void* destination, const void* source, int64_t bytes) const;

 private:
  std::unique_ptr<State> state_;
};

// Sends what is enqueued in a context to a second stream, as long as the object lives; one at a
// time. The streams overlap, but for what a StreamFence orders. So the libraries have a workspace
// of their own there: CudaContext::kWorkspaceBytes from an address aligned to 256 bytes.
class OnSideStream {
 public:
  OnSideStream(const CudaContext& context, void* workspace);
  ~OnSideStream();
  OnSideStream(const OnSideStream&) = delete;
  OnSideStream& operator=(const OnSideStream&) = delete;

 private:
  const CudaContext& context_;
  void* own_workspace_;  // the context's
};

// What is enqueued after wait() on one stream of a context runs after what was enqueued before the
// latest set() on the other. Also while a graph is captured, which has to end with all that was
// enqueued on the side stream waited for.
class StreamFence {
 public:
  explicit StreamFence(const CudaContext& context);
  ~StreamFence();
  StreamFence(const StreamFence&) = delete;
  StreamFence& operator=(const StreamFence&) = delete;

  void set();
  void wait() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A place in a context's stream.
class CudaEvent {
 public:
  enum class Timing : uint8_t { no, yes };
  explicit CudaEvent(const CudaContext& context, Timing timing = Timing::no);
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept;
  CudaEvent& operator=(CudaEvent&& other) noexcept;

  // Also while a graph is captured: every launch of it then records the event anew.
  void record();
  // Waits until the stream is past the event. Throws Error for a kernel that failed before.
  void synchronize() const;
  // Both have Timing::yes and are past.
  double seconds_since(const CudaEvent& earlier) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
