#include "tests/kernels/attention_decode_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, AttentionDecode, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(AttentionDecode, LongContext) {
  const Pool pool(GetParam(), 1, 64, random);
  // The twin adds all weights up one after another, and the same ones hundreds of times.
  expect_twin(pool, {131072, 100001}, 2, 128.0);
}

}  // namespace
}  // namespace sparsellm
