// The device's sampler against the engine's: the same token, for every row.

#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "engine/sampler.h"
#include "kernels/base/cuda_graph.h"
#include "kernels/sample.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kUntouched = -77;

GuardedTensor upload(DType dtype, std::initializer_list<int64_t> sizes, const void* values) {
  GuardedTensor tensor(dtype, sizes, Layout::contiguous, kGpu);
  copy_bytes(kGpu, tensor.view().raw(), {}, values, tensor.view().bytes());
  return tensor;
}

std::vector<int32_t> download(const Tensor& x) {
  const std::vector<std::byte> bytes = bytes_of(x);
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// How the logits of a row are distributed.
struct Shape {
  std::string_view name;
  float (*logit)(Random& random, int64_t id);
};

float normal(Random& random) {  // roughly
  double sum = 0.0;
  for (int i = 0; i < 6; ++i) {
    sum += random.uniform(-1.0, 1.0);
  }
  return static_cast<float>(sum / std::sqrt(2.0));
}

const Shape kShapes[] = {
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

std::vector<float> random_logits(const Shape& shape, int64_t rows, int64_t vocabulary,
                                 Random& random) {
  std::vector<float> logits(static_cast<size_t>(rows * vocabulary));
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = shape.logit(random, static_cast<int64_t>(i) % vocabulary);
  }
  return logits;
}

// Every combination of these, with other seeds and indices in each row.
std::vector<SampleRow> all_parameters(int32_t vocabulary, Random& random) {
  std::vector<SampleRow> rows;
  for (float temperature : {0.0f, 1e-3f, 0.7f, 1.0f, 2.0f, 100.0f}) {
    for (int32_t top_k : {0, 1, 2, 40, vocabulary + 5}) {
      for (float top_p : {1.0f, 0.999f, 0.9f, 0.5f, 1e-6f}) {
        for (float min_p : {0.0f, 0.05f, 1.0f}) {
          rows.push_back({.slot = static_cast<int32_t>(rows.size()),
                          .temperature = temperature,
                          .top_k = top_k,
                          .top_p = top_p,
                          .min_p = min_p,
                          .use_banned = static_cast<int32_t>(random.below(2)),
                          .seed = static_cast<uint64_t>(random.below(int64_t{1} << 62)),
                          .index = random.below(10000)});
        }
      }
    }
  }
  return rows;
}

int32_t token_of_the_engine(std::span<const float> logits, const SampleRow& row,
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

class Sample : public GpuTest {
 protected:
  // The tokens of all slots.
  std::vector<int32_t> sample_on_gpu(std::span<const float> logits, std::span<const SampleRow> rows,
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

  // Compares with the engine's tokens; row i has slot i.
  void expect_engines(std::string_view what, std::span<const float> logits,
                      std::span<const SampleRow> rows, std::span<const int32_t> banned) {
    const std::vector<int32_t> got = sample_on_gpu(logits, rows, banned, std::ssize(rows));
    const size_t vocabulary = logits.size() / rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
      const SampleRow& row = rows[i];
      ASSERT_EQ(got[i],
                token_of_the_engine(logits.subspan(i * vocabulary, vocabulary), row, banned))
          << what << ", vocabulary " << vocabulary << ", row " << i << ": temperature "
          << row.temperature << ", top_k " << row.top_k << ", top_p " << row.top_p << ", min_p "
          << row.min_p << ", use_banned " << row.use_banned << ", seed " << row.seed << ", index "
          << row.index;
    }
  }

  Random random{99};
};

TEST_F(Sample, AllParametersOnAllShapes) {
  for (int32_t vocabulary : {1, 2, 7, 100, 1000}) {
    const std::vector<int32_t> banned{vocabulary / 2, 3, 95};
    for (const Shape& shape : kShapes) {
      const std::vector<SampleRow> rows = all_parameters(vocabulary, random);
      const std::vector<float> logits = random_logits(shape, std::ssize(rows), vocabulary, random);
      expect_engines(shape.name, logits, rows, banned);
    }
  }
}

TEST_F(Sample, LargeVocabularies) {
  for (int32_t vocabulary : {50272, 50273, 128256}) {
    const std::vector<int32_t> banned{2, 50271, 128001};
    const std::vector<SampleRow> choices = all_parameters(vocabulary, random);
    for (const Shape& shape : kShapes) {
      std::vector<SampleRow> rows;
      for (int32_t slot = 0; slot < 6; ++slot) {
        rows.push_back(choices[static_cast<size_t>(random.below(std::ssize(choices)))]);
        rows.back().slot = slot;
      }
      // What costs the most passes.
      rows[0].temperature = rows[1].temperature = rows[2].temperature = 1.0f;
      rows[0].top_k = rows[1].top_k = 0;
      rows[0].top_p = 1.0f;
      rows[1].top_p = rows[2].top_p = 0.95f;
      rows[2].top_k = 5000;
      rows[0].min_p = rows[1].min_p = rows[2].min_p = 0.0f;
      const std::vector<float> logits = random_logits(shape, std::ssize(rows), vocabulary, random);
      expect_engines(shape.name, logits, rows, banned);
    }
  }
}

TEST_F(Sample, ManyTopKs) {
  constexpr int32_t kVocabulary = 5000;
  for (const Shape& shape : kShapes) {
    std::vector<SampleRow> rows;
    for (int32_t top_k : {3, 31, 300, 1023, 1024, 1025, 2500, 4998, 4999, 5000}) {
      for (float top_p : {1.0f, 0.8f}) {
        rows.push_back({.slot = static_cast<int32_t>(rows.size()),
                        .temperature = 1.5f,
                        .top_k = top_k,
                        .top_p = top_p,
                        .use_banned = top_p < 1.0f ? 1 : 0,
                        .seed = 5,
                        .index = top_k});
      }
    }
    const std::vector<float> logits = random_logits(shape, std::ssize(rows), kVocabulary, random);
    expect_engines(shape.name, logits, rows, std::vector<int32_t>{4999, 17, 0});
  }
}

TEST_F(Sample, BannedIds) {
  constexpr int32_t kVocabulary = 40;
  std::vector<int32_t> all;
  for (int32_t id = 0; id < kVocabulary; ++id) {
    all.push_back(kVocabulary - 1 - id);
  }
  std::vector<int32_t> all_but_one = all;
  all_but_one.erase(all_but_one.begin() + 7);
  const std::vector<std::vector<int32_t>> lists{
      {},
      {0},
      {39},
      {5, 5, 5},
      {-1, 40, 41, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()},
      {-1, 12, 40, 13, 14},
      all,
      all_but_one};
  for (const std::vector<int32_t>& banned : lists) {
    for (const Shape& shape : kShapes) {
      const std::vector<SampleRow> rows = all_parameters(kVocabulary, random);
      const std::vector<float> logits = random_logits(shape, std::ssize(rows), kVocabulary, random);
      expect_engines(shape.name, logits, rows, banned);
    }
  }
}

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

TEST_F(Sample, RowsWithANanOrAnInfinity) {
  for (int64_t vocabulary : {1, 2, 7, 1000, 4099}) {
    for (float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
      for (int64_t at : {int64_t{0}, vocabulary / 2, vocabulary - 1}) {
        for (float temperature : {0.0f, 1.0f}) {
          std::vector<SampleRow> rows;
          for (int32_t slot = 0; slot < 5; ++slot) {
            rows.push_back({.slot = slot, .temperature = temperature, .use_banned = 1});
          }
          std::vector<float> logits =
              random_logits(kShapes[1], std::ssize(rows), vocabulary, random);
          logits[static_cast<size_t>(3 * vocabulary + at)] = bad;
          const std::vector<int32_t> banned{static_cast<int32_t>(vocabulary / 2)};
          const std::vector<int32_t> got = sample_on_gpu(logits, rows, banned, 5);
          EXPECT_EQ(got[3], kNoToken) << "vocabulary " << vocabulary << ", " << bad << " at " << at;
          expect_engines("a NaN or an infinity", logits, rows, banned);
        }
      }
    }
  }
}

TEST_F(Sample, SlotsInAnyOrderAndRowsPassedOver) {
  constexpr int32_t kRows = 300;
  constexpr int64_t kVocabulary = 333;
  constexpr int64_t kSlots = 400;
  const std::vector<float> logits = random_logits(kShapes[1], kRows, kVocabulary, random);
  const std::vector<int32_t> slots = random.permutation(kSlots);
  std::vector<SampleRow> rows;
  std::vector<int32_t> expected(kSlots, kUntouched);
  for (int32_t i = 0; i < kRows; ++i) {
    const auto row = static_cast<size_t>(i);
    rows.push_back({.slot = i % 3 == 1 ? -1 : slots[row],
                    .temperature = static_cast<float>(i % 4),
                    .seed = 3,
                    .index = i});
    if (rows[row].slot >= 0) {
      expected[static_cast<size_t>(rows[row].slot)] = token_of_the_engine(
          std::span(logits).subspan(row * kVocabulary, kVocabulary), rows[row], {});
    }
  }
  const std::vector<int32_t> got = sample_on_gpu(logits, rows, {}, kSlots);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(sample_on_gpu(logits, rows, {}, kSlots), got);
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

TEST(SampleOnCpu, IsTheEngines) {
  CpuContext cpu;
  const GuardedTensor logits(DType::f32, {1, 4});
  const GuardedTensor rows(DType::i32, {1, kSampleRowWords});
  const GuardedTensor tokens(DType::i32, {1});
  EXPECT_TRUE(throws_error(
      [&] { sample(logits.view(), rows.view(), Tensor(), tokens.view(), cpu.exec); }, "engine"));
}

}  // namespace
}  // namespace sparsellm
