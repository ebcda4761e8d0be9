#include "tests/kernels/sample_gpu_fixture.h"

#include <cmath>
#include <cstring>

#include "engine/sampler.h"

namespace sparsellm::testing {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();

float normal(Random& random) {  // roughly
  double sum = 0.0;
  for (int i = 0; i < 6; ++i) {
    sum += random.uniform(-1.0, 1.0);
  }
  return static_cast<float>(sum / std::sqrt(2.0));
}

}  // namespace

const Sample::Shape Sample::kShapes[] = {
    {"flat", [](Random& r, int64_t) { return static_cast<float>(r.uniform(-0.01, 0.01)); }},
    {"normal", [](Random& r, int64_t) { return 3.0f * normal(r); }},
    {"negative", [](Random& r, int64_t) { return -9.0f + normal(r); }},
    {"peaked", [](Random& r, int64_t id) { return normal(r) + (id % 61 == 5 ? 12.0f : 0.0f); }},
    {"ties", [](Random& r, int64_t) { return static_cast<float>(r.below(7)) * 0.5f - 1.0f; }},
    {"equal", [](Random&, int64_t) { return -1.25f; }},
    {"zeros of both signs", [](Random& r, int64_t) { return r.below(2) == 0 ? 0.0f : -0.0f; }},
    {"subnormal", [](Random& r, int64_t) { return static_cast<float>(r.below(9) - 4) * 1e-43f; }},
    {"tiny and huge",
     [](Random& r, int64_t) { return std::exp(static_cast<float>(r.uniform(-80, 80))); }},
    {"half lowest", [](Random& r, int64_t) { return r.below(2) == 0 ? -kMax : normal(r); }},
    {"all lowest", [](Random&, int64_t) { return -kMax; }},
    {"some largest", [](Random& r, int64_t id) { return id % 5 == 1 ? kMax : normal(r); }},
    {"both", [](Random& r, int64_t) { return r.below(2) == 0 ? -kMax : kMax; }},
};

GuardedTensor Sample::upload(DType dtype, std::initializer_list<int64_t> sizes,
                             const void* values) {
  GuardedTensor tensor(dtype, sizes, Layout::contiguous, kGpu);
  copy_bytes(kGpu, tensor.view().raw(), {}, values, tensor.view().bytes());
  return tensor;
}

std::vector<float> Sample::random_logits(const Shape& shape, int64_t rows, int64_t vocabulary,
                                         Random& random) {
  std::vector<float> logits(static_cast<size_t>(rows * vocabulary));
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = shape.logit(random, static_cast<int64_t>(i) % vocabulary);
  }
  return logits;
}

int32_t Sample::token_of_the_engine(std::span<const float> logits, const SampleRow& row,
                                    std::span<const int32_t> banned) {
  SamplingParams params;
  params.temperature = row.temperature;
  params.top_k = row.top_k;
  params.top_p = row.top_p;
  params.min_p = row.min_p;
  try {
    return sample_token(logits, params, {},
                        row.use_banned != 0 ? banned : std::span<const int32_t>(), row.seed,
                        row.index);
  } catch (const Error&) {
    return kNoToken;
  }
}

std::vector<int32_t> Sample::download(const Tensor& x) {
  const std::vector<std::byte> bytes = bytes_of(x);
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<int32_t> Sample::sample_on_gpu(std::span<const float> logits,
                                           std::span<const SampleRow> rows,
                                           std::span<const int32_t> banned, int64_t slots) {
  const auto n = std::ssize(rows);
  const int64_t vocabulary = n == 0 ? 1 : std::ssize(logits) / n;
  const GuardedTensor logits_gpu = upload(DType::f32, {n, vocabulary}, logits.data());
  const GuardedTensor rows_gpu = upload(DType::i32, {n, kSampleRowWords}, rows.data());
  const GuardedTensor banned_gpu = i32_tensor(banned, kGpu);
  const std::vector<int32_t> untouched(static_cast<size_t>(slots), kUntouched);
  const GuardedTensor tokens = i32_tensor(untouched, kGpu);
  sample(logits_gpu.view(), rows_gpu.view(), banned.empty() ? Tensor() : banned_gpu.view(),
         tokens.view(), gpu->exec);
  gpu->cuda.synchronize();
  EXPECT_TRUE(tokens.guards_intact());
  return download(tokens.view());
}

void Sample::expect_engines(std::string_view what, std::span<const float> logits,
                            std::span<const SampleRow> rows, std::span<const int32_t> banned) {
  const std::vector<int32_t> got = sample_on_gpu(logits, rows, banned, std::ssize(rows));
  const size_t vocabulary = logits.size() / rows.size();
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleRow& row = rows[i];
    ASSERT_EQ(got[i], token_of_the_engine(logits.subspan(i * vocabulary, vocabulary), row, banned))
        << what << ", vocabulary " << vocabulary << ", row " << i << ": temperature "
        << row.temperature << ", top_k " << row.top_k << ", top_p " << row.top_p << ", min_p "
        << row.min_p << ", use_banned " << row.use_banned << ", seed " << row.seed << ", index "
        << row.index;
  }
}

}  // namespace sparsellm::testing
