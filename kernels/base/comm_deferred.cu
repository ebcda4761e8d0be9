#include <cuda.h>

#include <bit>

#include "kernels/base/comm_deferred.h"
#include "kernels/base/comm_numbers.cuh"
#include "kernels/base/comm_transport.cuh"
#include "kernels/base/cuda_state.cuh"
#include "kernels/base/driver_function.cuh"
#include "kernels/base/launch.cuh"

namespace sparsellm {
namespace {

constexpr int kThreads = 256;
constexpr int kVectors = 4;  // of a thread
constexpr int64_t kVectorBytes = sizeof(uint4);

// One thread waits, so that the multiprocessors are free for what else may run: ranks of a test may
// share a GPU.
__global__ void wait_for_part_kernel(const uint32_t* arrived, uint32_t number,
                                     const uint32_t* abort_word) {
  // If everything has ended, there is no result.
  poll_until(abort_word, [&] { return load_acquire(arrived) == number; });
}

// y += part, in f32: of two ranks either order has the same bits. Each thread has kVectors vectors,
// a block's width apart.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_part_kernel(uint4* y, const uint4* part, int64_t vectors) {
  launch_dependents();
  wait_on_dependencies();
  const int64_t first = int64_t{blockIdx.x} * kThreads * kVectors + threadIdx.x;
  uint4 own[kVectors];
  uint4 theirs[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (first + i * kThreads < vectors) {
      own[i] = y[first + i * kThreads];
      theirs[i] = part[first + i * kThreads];
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (first + i * kThreads < vectors) {
      constexpr int kCount = Numbers<T>::kCount;
      float sums[kCount];
      float numbers[kCount];
      Numbers<T>::unpack(own[i], sums);
      Numbers<T>::unpack(theirs[i], numbers);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        sums[j] += numbers[j];
      }
      y[first + i * kThreads] = Numbers<T>::pack(sums);
    }
  }
}

using AddKernel = void (*)(uint4*, const uint4*, int64_t);

AddKernel add_kernel(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return add_part_kernel<float>;
    case DType::f16:
      return add_part_kernel<__half>;
    case DType::bf16:
      return add_part_kernel<__nv_bfloat16>;
    default:
      fail("ranks cannot add up {}", name_of(dtype));
  }
}

// The first launch of a kernel may wait for all that runs on the device.
void load_kernels() {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, wait_for_part_kernel));
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    check_cuda(cudaFuncGetAttributes(&attributes, add_kernel(dtype)));
  }
}

// Writes a word after all copies of the queue before it, as all devices see it.
void write_word(cudaStream_t stream, const void* to, uint32_t value) {
  static const auto write =
      driver_function<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32", 12000);
  const CUresult status = write(stream, std::bit_cast<CUdeviceptr>(to), value, 0);
  require(status == CUDA_SUCCESS, "a word for another rank cannot be written: CUDA error {}",
          static_cast<int>(status));
}

int slot_of(int64_t number) { return static_cast<int>(number % CommLayout::kDeferredSlots); }
// What says that the sum is there; memory is 0 at first.
uint32_t word_of(int64_t number) { return static_cast<uint32_t>(number) + 1; }

}  // namespace

// The copies are in a queue of their own: the side queue expands weights meanwhile.
struct DeferredCopies::Queue {
  explicit Queue(int device_index) : device(device_index) {}
  void create() {
    check_cuda(cudaSetDevice(device));
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (cudaEvent_t* event : {&computed, &sent[0], &sent[1]}) {
      check_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    }
  }
  ~Queue() {
    cudaSetDevice(device);
    if (stream != nullptr) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
    for (cudaEvent_t event : {computed, sent[0], sent[1]}) {
      if (event != nullptr) {
        cudaEventDestroy(event);
      }
    }
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  int device;
  cudaStream_t stream = nullptr;
  cudaEvent_t computed = nullptr;  // the part that is sent next
  std::array<cudaEvent_t, kMost> sent{};
};

DeferredCopies::DeferredCopies(const CommWorld& world, const CudaContext& cuda)
    : world_(world), queue_(std::make_unique<Queue>(cuda.state().device.index)) {
  require(world_.ranks == 2 && world_.layout.deferred_bytes > 0, "sums of {} ranks are deferred",
          world_.ranks);
  queue_->create();
  load_kernels();
}

DeferredCopies::~DeferredCopies() = default;

bool DeferredCopies::takes(const CommWorld& world, const Tensor& y) {
  return y.contiguous() && y.bytes() <= world.layout.deferred_bytes &&
         y.bytes() % kVectorBytes == 0 && std::bit_cast<uintptr_t>(y.raw()) % kVectorBytes == 0;
}

void DeferredCopies::begin(const Tensor& y, const ExecContext& ctx) {
  require(takes(world_, y), "a sum of {} {} cannot be deferred", name_of(y.dtype()),
          y.shape_string());
  require(begun_ - ended_ < kMost, "more than {} sums are under way", kMost);
  std::byte* const other = world_.memory[static_cast<size_t>(1 - world_.rank)];
  const int slot = slot_of(begun_);
  check_cuda(cudaEventRecord(queue_->computed, cuda_queue(ctx).stream));
  check_cuda(cudaStreamWaitEvent(queue_->stream, queue_->computed));
  check_cuda(
      cudaMemcpyAsync(other + world_.layout.deferred_offset + slot * world_.layout.deferred_bytes,
                      y.raw(), static_cast<size_t>(y.bytes()), cudaMemcpyDefault, queue_->stream));
  const auto place = slot * static_cast<int64_t>(sizeof(uint32_t));
  write_word(queue_->stream, other + CommLayout::kArrivedOffset + place, word_of(begun_));
  check_cuda(cudaEventRecord(queue_->sent[static_cast<size_t>(begun_ % kMost)], queue_->stream));
  under_way_[static_cast<size_t>(begun_ % kMost)] = y.raw();
  ++begun_;
}

void DeferredCopies::end(const Tensor& y, const ExecContext& ctx) {
  const auto at = static_cast<size_t>(ended_ % kMost);
  require(ended_ < begun_ && under_way_[at] == y.raw(),
          "the sum that ends is not the first of those under way");
  const std::byte* const own = world_.memory[static_cast<size_t>(world_.rank)];
  const int slot = slot_of(ended_);
  // The other rank's part has come, and y has been sent.
  launch(ctx, wait_for_part_kernel, {.blocks = 1, .threads = 1},
         reinterpret_cast<const uint32_t*>(own + CommLayout::kArrivedOffset) + slot,
         word_of(ended_), world_.abort_word);
  check_cuda(cudaStreamWaitEvent(cuda_queue(ctx).stream, queue_->sent[at]));
  const int64_t vectors = y.bytes() / kVectorBytes;
  constexpr int64_t kOfBlock = int64_t{kThreads} * kVectors;
  launch(ctx, add_kernel(y.dtype()),
         {.blocks = static_cast<unsigned>((vectors + kOfBlock - 1) / kOfBlock),
          .threads = kThreads,
          .pdl = true},
         static_cast<uint4*>(y.raw()),
         reinterpret_cast<const uint4*>(own + world_.layout.deferred_offset +
                                        slot * world_.layout.deferred_bytes),
         vectors);
  ++ended_;
}

}  // namespace sparsellm
