#include "tests/kernels/append_attention_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, AppendingRows, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// For tools that take long with each launch.
TEST_P(AppendingRows, InFewSteps) {
  expect_same_as_two_ops({{4, 2, 128}, true, {15, kPadding, 200}, 2});
  expect_same_as_two_ops({{4, 2, 128}, true, {15, kPadding, 200}, 2, true, 20});
}

}  // namespace
}  // namespace sparsellm
