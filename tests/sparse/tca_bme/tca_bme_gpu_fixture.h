#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "sparse/tca_bme/tca_bme.h"
#include "tests/sparse/gpu_weight_test.h"
#include "tests/testing/wait_for_device.h"

namespace sparsellm::testing {

// Weights in the format tca_bme on CUDA, against the CPU's encodings and a product in double.
class GpuTcaBme : public GpuWeightTest {
 protected:
  std::unique_ptr<WeightMatrix> load(const Tensor& w, LayoutFor goal = LayoutFor::speed) {
    return tca_bme_format().load(tca_bme_format().encode(w, goal, cpu.threads), kGpu);
  }

  static std::vector<std::byte> bytes_of_buffer(const Buffer& buffer) {
    std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes()));
    wait_for_device(buffer.device());
    copy_bytes({}, bytes.data(), buffer.device(), buffer.data(), buffer.bytes());
    return bytes;
  }
};

}  // namespace sparsellm::testing
