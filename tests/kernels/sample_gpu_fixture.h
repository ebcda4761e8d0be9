#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/sample.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"

namespace sparsellm::testing {

// The device's sampler against the engine's: the same token, for every row.
class Sample : public GpuTest {
 protected:
  static constexpr int32_t kUntouched = -77;

  // How the logits of a row are distributed.
  struct Shape {
    std::string_view name;
    float (*logit)(Random& random, int64_t id);
  };
  static const Shape kShapes[13];

  // f32 [rows, vocabulary].
  static std::vector<float> random_logits(const Shape& shape, int64_t rows, int64_t vocabulary,
                                          Random& random);

  // kNoToken if the engine refuses the logits.
  static int32_t token_of_the_engine(std::span<const float> logits, const SampleRow& row,
                                     std::span<const int32_t> banned);

  static GuardedTensor upload(DType dtype, std::initializer_list<int64_t> sizes,
                              const void* values);
  static std::vector<int32_t> download(const Tensor& x);

  // The tokens of all slots.
  std::vector<int32_t> sample_on_gpu(std::span<const float> logits, std::span<const SampleRow> rows,
                                     std::span<const int32_t> banned, int64_t slots);

  // Compares with the engine's tokens; row i has slot i.
  void expect_engines(std::string_view what, std::span<const float> logits,
                      std::span<const SampleRow> rows, std::span<const int32_t> banned);

  Random random{99};
};

}  // namespace sparsellm::testing
