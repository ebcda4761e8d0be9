#include "tests/sparse/tca_bme/record_multistage_gpu_fixture.h"

#include <algorithm>

namespace sparsellm::testing {

void GpuRecordMultistage::SetUp() {
  GpuRecordTest::SetUp();
  if (IsSkipped()) {
    return;
  }
  const MultistageDevice whole = multistage_device(kGpu);
  if (whole.multiprocessors == 0) {
    GTEST_SKIP() << "the device has no compute capability 8.0";
  }
  // Other shares of shared memory have other numbers of warps, stages and passes; and both kinds
  // of products that count bits run on every device.
  for (const bool byte_products : {false, true}) {
    const auto part = [&](int multiprocessors, int shared_kib) {
      return MultistageDevice{.multiprocessors = multiprocessors,
                              .shared_bytes = std::min(whole.shared_bytes, shared_kib << 10),
                              .byte_products = byte_products};
    };
    for (const MultistageDevice& device :
         {part(whole.multiprocessors, whole.shared_bytes >> 10), part(108, 163), part(1, 163),
          part(84, 99), part(1, 99), part(2, 64)}) {
      devices.push_back(device);
    }
  }
}

void GpuRecordMultistage::multiply(const RecordMatrix& matrix, const Tensor& x, const Tensor& y,
                                   const MultistageDevice& device, const Epilogue& epilogue) {
  record_multistage_cuda(on(matrix, device),
                         {.x = x.raw(),
                          .x_stride = x.row_stride(),
                          .y = y.raw(),
                          .y_stride = y.row_stride(),
                          .bias = epilogue.bias.raw(),
                          .relu = epilogue.activation.kind == Activation::Kind::relu,
                          .tokens = x.size(0),
                          .dtype = x.dtype()},
                         *exec);
}

RecordMatrix GpuRecordMultistage::on(RecordMatrix matrix, const MultistageDevice& device) {
  matrix.multistage = device;
  return matrix;
}

}  // namespace sparsellm::testing
