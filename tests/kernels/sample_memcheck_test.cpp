#include <limits>
#include <string_view>
#include <vector>

#include "kernels/base/cuda_graph.h"
#include "tests/kernels/sample_gpu_fixture.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// Ids that agree with a banned one in their lower bits are not banned.
TEST_F(Sample, IdsFarFromABannedOne) {
  constexpr int32_t kVocabulary = 140000;
  constexpr int32_t kBanned = 5;
  for (int32_t distance : {32, 1024, 32768, 65536, 131072}) {
    std::vector<float> logits(kVocabulary, 0.0f);
    logits[kBanned] = 9.0f;
    logits[static_cast<size_t>(kBanned + distance)] = 5.0f;
    for (float temperature : {0.0f, 0.01f}) {
      const SampleRow row{.slot = 0, .temperature = temperature, .use_banned = 1};
      EXPECT_EQ(sample_on_gpu(logits, {&row, 1}, std::vector<int32_t>{kBanned}, 1).front(),
                kBanned + distance);
    }
  }
}

TEST_F(Sample, SeedsAndIndices) {
  constexpr int64_t kVocabulary = 1000;
  std::vector<SampleRow> rows;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63,
                        std::numeric_limits<uint64_t>::max(), uint64_t{0x9e3779b97f4a7c15}}) {
    for (int64_t index :
         {int64_t{0}, int64_t{1}, int64_t{-1}, int64_t{1} << 40,
          std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
      rows.push_back({.slot = static_cast<int32_t>(rows.size()),
                      .temperature = 1.0f,
                      .seed = seed,
                      .index = index});
    }
  }
  const std::vector<float> logits =
      random_logits(kShapes[0], std::ssize(rows), kVocabulary, random);
  expect_engines("seeds", logits, rows, {});
}

TEST_F(Sample, NoRows) {
  EXPECT_EQ(sample_on_gpu({}, {}, {}, 2), (std::vector<int32_t>{kUntouched, kUntouched}));
}

// A captured launch goes by what lies in memory when it runs.
TEST_F(Sample, InAGraph) {
  constexpr int32_t kRows = 4;
  constexpr int64_t kVocabulary = 2000;
  const GuardedTensor logits(DType::f32, {kRows, kVocabulary}, Layout::contiguous, kGpu);
  const GuardedTensor rows(DType::i32, {kRows, kSampleRowWords}, Layout::contiguous, kGpu);
  const GuardedTensor tokens(DType::i32, {kRows}, Layout::contiguous, kGpu);
  const CudaGraph graph(
      gpu->cuda, [&] { sample(logits.view(), rows.view(), Tensor(), tokens.view(), gpu->exec); });
  for (int64_t step = 0; step < 6; ++step) {
    const std::vector<float> values = random_logits(kShapes[1], kRows, kVocabulary, random);
    std::vector<SampleRow> params;
    std::vector<int32_t> expected;
    for (int32_t i = 0; i < kRows; ++i) {
      params.push_back({.slot = i,
                        .temperature = static_cast<float>((step + i) % 3),
                        .top_k = static_cast<int32_t>(step % 2) * 20,
                        .top_p = i % 2 == 0 ? 1.0f : 0.9f,
                        .seed = 8,
                        .index = step});
      expected.push_back(token_of_the_engine(
          std::span(values).subspan(static_cast<size_t>(i * kVocabulary), kVocabulary),
          params.back(), {}));
    }
    copy_bytes(kGpu, logits.view().raw(), {}, values.data(), logits.view().bytes());
    copy_bytes(kGpu, rows.view().raw(), {}, params.data(), rows.view().bytes());
    graph.launch();
    gpu->cuda.synchronize();
    EXPECT_EQ(download(tokens.view()), expected) << "step " << step;
  }
}

TEST_F(Sample, RefusesOtherOperands) {
  const auto tensor = [](DType dtype, std::initializer_list<int64_t> sizes) {
    return GuardedTensor(dtype, sizes, Layout::contiguous, kGpu);
  };
  const GuardedTensor logits = tensor(DType::f32, {3, 10});
  const GuardedTensor rows = tensor(DType::i32, {3, kSampleRowWords});
  const GuardedTensor tokens = tensor(DType::i32, {3});
  const auto refused = [&](const Tensor& l, const Tensor& r, const Tensor& b, const Tensor& t,
                           std::string_view why) {
    EXPECT_TRUE(throws_error([&] { sample(l, r, b, t, gpu->exec); }, why));
  };
  refused(tensor(DType::f16, {3, 10}).view(), rows.view(), {}, tokens.view(), "logits");
  refused(tensor(DType::f32, {2, 10}).view(), rows.view(), {}, tokens.view(), "rows");
  refused(tensor(DType::f32, {3, 0}).view(), rows.view(), {}, tokens.view(), "a vocabulary of 0");
  refused(logits.view().columns(1, 4), rows.view(), {}, tokens.view(), "row stride 10");
  refused(logits.view(), tensor(DType::i32, {3, 9}).view(), {}, tokens.view(), "rows");
  const GuardedTensor wide = tensor(DType::i32, {3, kSampleRowWords + 1});
  refused(logits.view(), wide.view().columns(0, kSampleRowWords), {}, tokens.view(), "row stride");
  refused(logits.view().rows(0, 1), wide.view().rows(0, 1).columns(1, kSampleRowWords), {},
          tokens.view(), "aligned");
  refused(logits.view(), rows.view(), logits.view(), tokens.view(), "banned");
  refused(logits.view(), rows.view(), {}, rows.view(), "tokens");
  refused(logits.view(), rows.view(), tokens.view(), tokens.view(), "overlap");
}

}  // namespace
}  // namespace sparsellm
