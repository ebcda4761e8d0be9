#pragma once

#include <vector>

#include "sparse/tca_bme/cuda/record_multistage_cuda.h"
#include "tests/sparse/tca_bme/gpu_record_test.h"

namespace sparsellm::testing {

// The multistage kernel over tca_bme records, against a product in double.
class GpuRecordMultistage : public GpuRecordTest {
 protected:
  void SetUp() override;

  void multiply(const RecordMatrix& matrix, const Tensor& x, const Tensor& y,
                const MultistageDevice& device, const Epilogue& epilogue = {});

  static RecordMatrix on(RecordMatrix matrix, const MultistageDevice& device);

  std::vector<MultistageDevice> devices;  // the first has all of the GPU's shared memory
};

}  // namespace sparsellm::testing
