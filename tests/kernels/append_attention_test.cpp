#include "kernels/append_attention.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/attention.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr int64_t kHeadDim = 16;
constexpr int64_t kQSize = 6 * kHeadDim;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kKvSize = kKvHeads * kHeadDim;
constexpr int64_t kPool = 8;
constexpr float kScale = 0.25f;

// What a step reads and writes: rows of q, k and v side by side, pages of k and then of v, and the
// result.
struct Operands {
  explicit Operands(const Tensor& qkv)
      : joined(DType::f32, {qkv.size(0), qkv.size(1)}),
        pages(DType::f32, {2 * kPool, kKvHeads, kPageSize, kHeadDim}),
        y(DType::f32, {qkv.size(0), kQSize}) {
    set_values(joined.view(), values_of(qkv));
    const std::vector<double> zeros(static_cast<size_t>(pages.view().element_count()), 0.0);
    set_values(pages.view(), zeros);
  }

  QkvRows rows() const {
    return {.q = joined.view().columns(0, kQSize),
            .k = joined.view().columns(kQSize, kKvSize),
            .v = joined.view().columns(kQSize + kKvSize, kKvSize)};
  }
  KvLayer layer() const {
    return {.k = pages.view().rows(0, kPool), .v = pages.view().rows(kPool, kPool)};
  }

  GuardedTensor joined;
  GuardedTensor pages;
  GuardedTensor y;
};

class AppendAttention : public ::testing::Test {
 protected:
  Random random{44};
  CpuContext cpu{2};
  PagedStep step{{{.pages = {3}, .kv_length = 3, .rows = 3},
                  {.pages = {1, 7, 0}, .kv_length = 33, .rows = 33},
                  {.pages = {5}, .kv_length = 1, .rows = 1}}};
  int64_t tokens = step.batch().tokens();
  GuardedTensor qkv = random.tensor(DType::f32, {tokens, kQSize + 2 * kKvSize});
  GuardedTensor angles = random.tensor(DType::f32, {tokens, kHeadDim});
  GuardedTensor q_norm = random.tensor(DType::bf16, {kHeadDim});
  GuardedTensor k_norm = random.tensor(DType::bf16, {kHeadDim});
};

TEST_F(AppendAttention, IsBothOps) {
  const HeadNorms norms{.q = q_norm.view(), .k = k_norm.view(), .epsilon = 1e-6f};
  for (const QkTransform& transform :
       {QkTransform{}, QkTransform{.cos_sin = angles.view()}, QkTransform{.norms = norms},
        QkTransform{.cos_sin = angles.view(), .norms = norms}}) {
    for (int64_t window : {0, 7}) {
      const AttentionParams params{.scale = kScale, .window = window};
      const Operands expected(qkv.view());
      if (transform.empty()) {
        kv_append(expected.rows().k, expected.rows().v, step.batch(), expected.layer(), cpu.exec);
      } else {
        rope_kv_append(transform, expected.rows(), step.batch(), expected.layer(), cpu.exec);
      }
      attention(expected.rows().q, expected.layer(), step.batch(), params, expected.y.view(),
                cpu.exec);
      const Operands one(qkv.view());
      append_attention(transform, one.rows(), step.batch(), one.layer(), params, one.y.view(),
                       cpu.exec);
      EXPECT_TRUE(same_bits(one.y.view(), expected.y.view()));
      EXPECT_TRUE(same_bits(one.pages.view(), expected.pages.view()));
      EXPECT_TRUE(one.y.guards_intact() && one.pages.guards_intact());
    }
  }
}

TEST_F(AppendAttention, RefusesWhatEitherRefusesAndResultsOverTheRows) {
  const Operands one(qkv.view());
  const auto refused = [&](const Tensor& cos_sin, float scale, const Tensor& y,
                           std::string_view part) {
    return throws_error(
        [&] {
          append_attention({.cos_sin = cos_sin}, one.rows(), step.batch(), one.layer(),
                           {.scale = scale}, y, cpu.exec);
        },
        part);
  };
  EXPECT_TRUE(refused({}, 0.0f, one.y.view(), "scale"));
  EXPECT_TRUE(refused(angles.view().columns(0, 8), kScale, one.y.view(), "cos_sin"));
  EXPECT_TRUE(refused({}, kScale, one.rows().q, "q and y"));
  const Tensor over_k = one.joined.view().columns(kKvSize, kQSize);
  EXPECT_TRUE(refused({}, kScale, over_k, "and y"));
  const Tensor y = one.y.view();
  EXPECT_TRUE(refused(y.columns(0, kHeadDim), kScale, y, "cos_sin and y"));
}

}  // namespace
}  // namespace sparsellm
