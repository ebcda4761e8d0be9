// The text of plans and the keys of choices, which need no GPU.

#include "kernels/gemm_plan.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <variant>

#include "kernels/gemm_plans.cuh"

namespace sparsellm {
namespace {

BlasPlan some_algorithm() {
  BlasPlan plan;
  for (size_t i = 0; i < std::size(plan.algorithm.data); ++i) {
    plan.algorithm.data[i] = 0xfedcba9876543210u >> i;
  }
  return plan;
}

bool same_algorithm(const BlasPlan& a, const BlasPlan& b) {
  return std::equal(std::begin(a.algorithm.data), std::end(a.algorithm.data),
                    std::begin(b.algorithm.data));
}

TEST(GemmPlan, TextSaysWhatItWas) {
  const BlasPlan algorithm = some_algorithm();
  const std::string text = to_text(GemmPlan(algorithm));
  EXPECT_TRUE(text.starts_with("cublaslt fedcba9876543210")) << text;
  const std::optional<GemmPlan> back = gemm_plan_from(text);
  ASSERT_TRUE(back && std::holds_alternative<BlasPlan>(*back));
  EXPECT_TRUE(same_algorithm(std::get<BlasPlan>(*back), algorithm));

  const std::string each = to_text(GemmPlan(TokenwiseBlasPlan{algorithm}));
  EXPECT_TRUE(each.starts_with("cublaslt each token fedcba")) << each;
  const std::optional<GemmPlan> each_back = gemm_plan_from(each);
  ASSERT_TRUE(each_back && std::holds_alternative<TokenwiseBlasPlan>(*each_back));
  EXPECT_TRUE(same_algorithm(std::get<TokenwiseBlasPlan>(*each_back).token, algorithm));

  for (const StreamMemory memory : {StreamMemory::half, StreamMemory::whole}) {
    const std::string stream = to_text(GemmPlan(StreamPlan{memory}));
    EXPECT_EQ(stream, memory == StreamMemory::half ? "stream half" : "stream whole");
    const std::optional<GemmPlan> stream_back = gemm_plan_from(stream);
    ASSERT_TRUE(stream_back && std::holds_alternative<StreamPlan>(*stream_back));
    EXPECT_EQ(std::get<StreamPlan>(*stream_back).memory, memory);
  }
}

TEST(GemmPlan, OtherTextIsNoPlan) {
  const std::string text = to_text(GemmPlan(some_algorithm()));
  std::string upper = text;
  upper.back() = 'F';
  for (const std::string& other :
       {std::string(), std::string("stream"), std::string("stream quarter"), text + "0",
        text.substr(0, text.size() - 1), upper, " " + text, "zzz " + text,
        std::string("cublaslt each token"), std::string("cublaslt each token 12")}) {
    EXPECT_FALSE(gemm_plan_from(other)) << other;
  }
}

// A square weight and its transpose take different algorithms.
TEST(GemmKey, SaysHowTheWeightIsStored) {
  const Device cuda{Device::Kind::cuda, 0};
  float memory[8];
  GemmOperands operands{.x = {memory, DType::f16, {1, 2}, cuda},
                        .w = {memory + 2, DType::f16, {2, 3}, cuda},
                        .order = WeightOrder::in_out,
                        .bias = {},
                        .y = {memory + 6, DType::f16, {1, 3}, cuda}};
  const GemmKey transposed = GemmKey::exact(operands, Launches::overlapping);
  EXPECT_EQ(transposed.out, 3);
  EXPECT_EQ(transposed.in, 2);
  EXPECT_EQ(transposed.w_stride, 3);
  EXPECT_TRUE(transposed.text().starts_with("3 x 2, f16 to f16, transposed, aligned"))
      << transposed.text();
  EXPECT_EQ(GemmKey::batch_invariant(operands).order, WeightOrder::in_out);

  GemmKey stored = transposed;
  stored.order = WeightOrder::out_in;
  EXPECT_FALSE(stored == transposed);
  EXPECT_TRUE(stored.text().starts_with("3 x 2, f16 to f16, aligned")) << stored.text();
}

}  // namespace
}  // namespace sparsellm
