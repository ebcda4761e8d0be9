#include <cstdint>
#include <vector>

#include "tests/kernels/append_attention_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, AppendingRows, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(AppendingRows, OfAFewRequests) {
  constexpr int64_t kSteps = 20;  // every request begins a page
  for (const Heads& heads : {Heads{4, 2, 40}, Heads{4, 4, 64}, Heads{6, 2, 80}, Heads{4, 4, 128},
                             Heads{20, 2, 128}, Heads{2, 1, 256}}) {
    for (const bool rotates : {false, true}) {
      expect_same_as_two_ops({heads, rotates, {1000}, kSteps});
      expect_same_as_two_ops({heads, rotates, {0, 14, kPadding, 15, 16, 333, 1000}, kSteps});
    }
  }
}

TEST_P(AppendingRows, WithNormsAndWindows) {
  constexpr int64_t kSteps = 20;
  for (const Heads& heads : {Heads{4, 2, 40}, Heads{4, 4, 64}, Heads{14, 2, 80}, Heads{16, 8, 128},
                             Heads{20, 2, 128}, Heads{2, 1, 256}, Heads{8, 1, 256}}) {
    for (const bool rotates : {false, true}) {
      expect_same_as_two_ops({heads, rotates, {0, 1000}, kSteps, true});
    }
    for (int64_t window : {1, 7, 16, 100}) {
      const bool norms = window != 7;
      expect_same_as_two_ops(
          {heads, true, {0, 14, kPadding, 15, 16, 333, 1000}, kSteps, norms, window});
    }
  }
}

// So many that two kernels are faster, on any GPU.
TEST_P(AppendingRows, OfManyRequests) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 300; ++i) {
    lengths.push_back(i % 40);
  }
  expect_same_as_two_ops({{8, 8, 64}, true, lengths, 2});
  expect_same_as_two_ops({{8, 8, 64}, true, lengths, 2, true, 20});
}

}  // namespace
}  // namespace sparsellm
