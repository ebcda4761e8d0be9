#include <cublasLt.h>

#include "kernels/base/cuda_state.cuh"
#include "kernels/tune/cuda_meter.cuh"
#include "kernels/tune/make_meter.h"

namespace sparsellm {

std::unique_ptr<TuneMeter> make_cuda_meter(ExecContext& ctx) {
  return std::make_unique<CudaMeter>(ctx);
}

std::string cuda_device_key(Device device) {
  cudaDeviceProp properties{};
  int runtime = 0;
  check_cuda(cudaGetDeviceProperties(&properties, device.index));
  check_cuda(cudaRuntimeGetVersion(&runtime));
  return fmt::format("{}, CUDA {}, cuBLASLt {}", properties.name, runtime, cublasLtGetVersion());
}

std::string CudaMeter::device_key() {
  if (device_key_.empty()) {
    device_key_ = cuda_device_key(cuda_state(ctx_).device);
  }
  return device_key_;
}

void CudaMeter::poison(const Tensor& y) {
  constexpr int kOnes = 0xff;  // all ones are NaN in every dtype
  const auto element = static_cast<size_t>(size_of(y.dtype()));
  check_cuda(cudaMemset2DAsync(y.raw(), static_cast<size_t>(y.row_stride()) * element, kOnes,
                               static_cast<size_t>(y.size(1)) * element,
                               static_cast<size_t>(y.size(0)), cuda_queue(ctx_).stream));
}

TuneMeter::Largest CudaMeter::compare(const Tensor& a, const Tensor& b) {
  if (!comparison_) {
    comparison_.emplace(ctx_);
  }
  comparison_->add(a, b);
  return comparison_->take();
}

std::optional<double> CudaMeter::seconds(const Call& call, double best) {
  if (!timer_) {
    timer_.emplace(ctx_);
  }
  return timer_->median(call, best);
}

}  // namespace sparsellm
