#pragma once

#include <memory>
#include <span>

#include "sparse/tca_bme/tca_bme.h"
#include "tests/sparse/gpu_weight_test.h"

namespace sparsellm::testing {

// Weights in the format tca_bme on CUDA, against the CPU's encodings and a product in double.
class GpuTcaBme : public GpuWeightTest {
 protected:
  std::unique_ptr<WeightMatrix> load(const Tensor& w, LayoutFor goal = LayoutFor::speed) {
    return tca_bme_format().load(tca_bme_format().encode(w, {.goal = goal}, cpu.threads),
                                 load_context());
  }
  std::unique_ptr<WeightMatrix> join(std::span<EncodedWeight> parts) {
    return GpuWeightTest::load(tca_bme_format(), parts);
  }

  // All of its rows.
  void expect_expands_to(const WeightMatrix& weight, const Tensor& w) {
    const GuardedTensor dense(GetParam(), {w.size(0), w.size(1)}, Layout::contiguous, kGpu);
    weight.expand({.begin = 0, .count = w.size(0)}, dense.view(), *exec);
    EXPECT_TRUE(same_bits(dense.view(), w));
  }
};

}  // namespace sparsellm::testing
