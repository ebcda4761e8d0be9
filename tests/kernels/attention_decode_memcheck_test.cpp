#include <vector>

#include "tests/kernels/attention_decode_gpu_fixture.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, AttentionDecode, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(AttentionDecode, FewRowsInSplits) {
  const std::vector<Heads> all = {{4, 4}, {8, 2}, {6, 1}, {32, 8}, {40, 1}};
  const std::vector<Heads> some = {{4, 4}, {6, 1}};
  for (int64_t head_dim : {8, 64, 80, 96, 128, 192, 256}) {
    for (const Heads& heads : head_dim == 64 || head_dim == 128 ? all : some) {
      const Pool pool(GetParam(), heads.kv, head_dim, random);
      for (int64_t kv_length : {1, 15, 16, 17, 33, 300, 3000}) {
        expect_twin(pool, {kv_length}, heads.query);
      }
      expect_twin(pool, {300, 0, 17}, heads.query);
      expect_twin(pool, mixed_lengths(64), heads.query);
    }
  }
}

TEST_P(AttentionDecode, ManyRowsWithoutSplits) {
  for (int64_t head_dim : {64, 128, 256}) {
    for (const Heads& heads : {Heads{4, 4}, Heads{10, 1}}) {
      const Pool pool(GetParam(), heads.kv, head_dim, random);
      expect_twin(pool, mixed_lengths(300), heads.query);
    }
  }
}

// Of one token, of less than a page, of a page, of several splits, and of more than all tokens.
TEST_P(AttentionDecode, WindowsOfFewRowsInSplits) {
  const std::vector<int64_t> all = {1, 5, 16, 17, 250, 1000, 4096};
  const std::vector<int64_t> some = {5, 17, 1000};
  for (int64_t head_dim : {8, 64, 80, 128, 256}) {
    for (const Heads& heads : {Heads{4, 4}, Heads{10, 1}}) {
      const Pool pool(GetParam(), heads.kv, head_dim, random);
      for (int64_t window : head_dim == 128 ? all : some) {
        for (int64_t kv_length : {1, 16, 33, 300, 3000}) {
          expect_twin(pool, {kv_length}, heads.query, 16.0, window);
        }
        expect_twin(pool, {300, 0, 17}, heads.query, 16.0, window);
      }
      expect_twin(pool, mixed_lengths(64), heads.query, 16.0, 40);
    }
  }
}

TEST_P(AttentionDecode, WindowsOfManyRowsWithoutSplits) {
  for (int64_t head_dim : {64, 128, 256}) {
    const Pool pool(GetParam(), 4, head_dim, random);
    for (int64_t window : {1, 20, 1000}) {
      expect_twin(pool, mixed_lengths(300), 4, 16.0, window);
    }
  }
}

TEST_P(AttentionDecode, PaddingAlone) {
  const Pool pool(GetParam(), 2, 64, random);
  for (int64_t rows : {1, 2, 600}) {
    const std::vector<StepRequest> padding(static_cast<size_t>(rows),
                                           {.pages = {}, .kv_length = 0, .rows = 1});
    const GuardedTensor q = random.tensor(GetParam(), {rows, 256}, Layout::strided, -1, 1, kGpu);
    const GuardedTensor y(GetParam(), {rows, 256}, Layout::strided, kGpu);
    const std::vector<double> zeros(static_cast<size_t>(rows * 256), 0.0);
    for (int64_t window : {0, 5}) {
      decode(q.view(), pool.gpu(), padding, {.scale = 1.0f, .window = window}, y.view());
      EXPECT_TRUE(all_close(y.view(), zeros, zeros)) << rows << ", window " << window;
    }
  }
}

TEST_P(AttentionDecode, RefusesRowsThatAreNotOneARequest) {
  const Pool pool(GetParam(), 1, 64, random);
  const GuardedTensor q = random.tensor(GetParam(), {2, 64}, Layout::contiguous, -1.0, 1.0, kGpu);
  const GuardedTensor y(GetParam(), {2, 64}, Layout::contiguous, kGpu);
  const StepRequest two_rows{.pages = {0}, .kv_length = 16, .rows = 2};
  EXPECT_TRUE(
      throws_error([&] { decode(q.view(), pool.gpu(), {two_rows}, {.scale = 1.0f}, y.view()); },
                   "2 rows for 1 requests"));
}

}  // namespace
}  // namespace sparsellm
