// Paged causal attention on tensor cores: against its CPU twin, and its promises about bits, NaNs
// and padding.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Heads {
  int64_t heads;
  int64_t kv_heads;
};

using Pages = std::vector<int32_t>;

// The keys or the values of a pool of pages on the host. What no token uses is NaN.
class Pool {
 public:
  Pool(int64_t pages, int64_t kv_heads, int64_t head_dim)
      : pages_(pages),
        kv_heads_(kv_heads),
        head_dim_(head_dim),
        values_(static_cast<size_t>(pages * kv_heads * kPageSize * head_dim), kNan) {}

  double& at(const Pages& pages, int64_t token, int64_t head, int64_t i) {
    const int64_t page = pages.at(static_cast<size_t>(token / kPageSize));
    return values_.at(static_cast<size_t>(
        ((page * kv_heads_ + head) * kPageSize + token % kPageSize) * head_dim_ + i));
  }

  void fill(const Pages& pages, int64_t length, Random& random) {
    for_each(length, [&](int64_t token, int64_t head, int64_t i) {
      at(pages, token, head, i) = random.uniform(-1.0, 1.0);
    });
  }

  void copy(const Pages& from, const Pages& to, int64_t length) {
    for_each(length, [&](int64_t token, int64_t head, int64_t i) {
      at(to, token, head, i) = at(from, token, head, i);
    });
  }

  GuardedTensor upload(DType dtype) const {
    GuardedTensor tensor(dtype, {pages_, kv_heads_, kPageSize, head_dim_}, Layout::contiguous,
                         kGpu);
    set_values(tensor.view(), values_);
    return tensor;
  }

 private:
  template <class Body>
  void for_each(int64_t length, Body&& body) const {
    for (int64_t token = 0; token < length; ++token) {
      for (int64_t head = 0; head < kv_heads_; ++head) {
        for (int64_t i = 0; i < head_dim_; ++i) {
          body(token, head, i);
        }
      }
    }
  }

  int64_t pages_;
  int64_t kv_heads_;
  int64_t head_dim_;
  std::vector<double> values_;
};

// Keys and values of sequences whose pages are taken in random order.
struct Cache {
  Cache(int64_t pages, int64_t kv_heads, int64_t head_dim, Random& generator)
      : random(generator),
        k(pages, kv_heads, head_dim),
        v(pages, kv_heads, head_dim),
        free(generator.permutation(static_cast<int32_t>(pages))) {}

  Pages take(int64_t length) {
    const auto count = static_cast<std::ptrdiff_t>(pages_for(length));
    Pages pages(free.end() - count, free.end());
    free.erase(free.end() - count, free.end());
    return pages;
  }

  Pages add(int64_t length) {
    Pages pages = take(length);
    k.fill(pages, length, random);
    v.fill(pages, length, random);
    return pages;
  }

  Random& random;
  Pool k;
  Pool v;
  Pages free;
};

StepRequest request(const Pages& pages, int64_t kv_length, int64_t rows) {
  const auto count = static_cast<std::ptrdiff_t>(pages_for(kv_length));
  return {.pages = {pages.begin(), pages.begin() + count}, .kv_length = kv_length, .rows = rows};
}

float scale_of(int64_t head_dim) { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }

class AttentionPrefill : public GpuTest {
 protected:
  GuardedTensor on_gpu(int64_t rows, int64_t features, const std::vector<double>& values) const {
    GuardedTensor tensor(GetParam(), {rows, features}, Layout::contiguous, kGpu);
    set_values(tensor.view(), values);
    return tensor;
  }

  // The result of `requests` on the GPU, for queries q.
  GuardedTensor attend(const Cache& cache, const std::vector<StepRequest>& requests, int64_t rows,
                       int64_t features, const std::vector<double>& q, float scale) const {
    const GuardedTensor k = cache.k.upload(GetParam());
    const GuardedTensor v = cache.v.upload(GetParam());
    const PagedStep step(requests, kGpu);
    GuardedTensor y(GetParam(), {rows, features}, Layout::contiguous, kGpu);
    attention(on_gpu(rows, features, q).view(), {.k = k.view(), .v = v.view()}, step.batch(), scale,
              y.view(), gpu->exec);
    EXPECT_TRUE(y.guards_intact());
    return y;
  }

  // Compares with attention() in f32 on the CPU, for values of at most 1.
  //
  // Both sum up the same products of rounded numbers; the GPU rounds the weights p in [0, 1] to the
  // dtype before it multiplies them. With unit roundoff u each changes by u * p at most, or by
  // 2^-25 where it is subnormal in f16, and sum p |v| / sum p <= 1 and sum p >= 1; so the result
  // changes by u + 2^-25 * keys at most, before it is rounded itself. A quarter more is for the
  // errors of the scores and of exp2, some 2^-20 of a weight, and for rounding a changed result.
  void expect_twin(const GuardedTensor& y, const Tensor& q, const KvLayer& kv,
                   const std::vector<StepRequest>& requests, float scale) {
    const GuardedTensor k_twin = cpu_twin(kv.k);
    const GuardedTensor v_twin = cpu_twin(kv.v);
    const GuardedTensor y_twin(DType::f32, {q.size(0), q.size(1)});
    const PagedStep step(requests);
    attention(cpu_twin(q).view(), {.k = k_twin.view(), .v = v_twin.view()}, step.batch(), scale,
              y_twin.view(), cpu.exec);
    int64_t keys = 0;
    for (const StepRequest& each : requests) {
      keys = std::max(keys, each.kv_length);
    }
    const double error =
        GetParam() == DType::f16 ? 0x1p-11 + 0x1p-25 * static_cast<double>(keys) : 0x1p-8;
    Expected expected{.values = values_of(y_twin.view()), .magnitudes = {}};
    expected.magnitudes.assign(expected.values.size(), error / 0x1p-23);
    EXPECT_TRUE(all_close(y.view(), expected, 1.25));
    EXPECT_TRUE(y.guards_intact());
  }

  Random random{91};
};
INSTANTIATE_TEST_SUITE_P(Gpu, AttentionPrefill, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(AttentionPrefill, PromptsAndChunksOfSeveralRequests) {
  struct Part {
    int64_t kv_length;
    int64_t rows;
  };
  constexpr Part kParts[] = {{1, 1},     {33, 0},   {16, 16}, {17, 17}, {300, 300},
                             {300, 45},  {33, 33},  {130, 1}, {17, 0},  {130, 130},
                             {129, 128}, {257, 66}, {64, 64}, {65, 2},  {33, 0}};
  int combination = 0;
  for (const Heads& shape : {Heads{4, 4}, Heads{8, 2}, Heads{6, 1}}) {
    for (int64_t head_dim : {8, 64, 80, 96, 128, 256}) {
      SCOPED_TRACE(fmt::format("{} heads on {} of {}", shape.heads, shape.kv_heads, head_dim));
      Cache cache(120, shape.kv_heads, head_dim, random);
      std::vector<StepRequest> requests;
      int64_t rows = 0;
      for (const Part& part : kParts) {
        requests.push_back(request(cache.add(part.kv_length), part.kv_length, part.rows));
        rows += part.rows;
      }
      const GuardedTensor k = cache.k.upload(GetParam());
      const GuardedTensor v = cache.v.upload(GetParam());
      const KvLayer kv{.k = k.view(), .v = v.view()};
      const PagedStep step(requests, kGpu);

      // Rows of q: on their own, at odd places, and between others at places that are multiples of
      // 16 bytes; rows of y: on their own and at odd places.
      const int64_t features = shape.heads * head_dim;
      const Layout q_layout = combination % 3 == 1 ? Layout::strided : Layout::contiguous;
      const Layout y_layout = combination % 2 == 1 ? Layout::strided : Layout::contiguous;
      const int64_t before = combination % 3 == 2 ? 8 : 0;
      ++combination;
      const GuardedTensor wide(GetParam(), {rows, before + features + before}, q_layout, kGpu);
      const Tensor q = wide.view().columns(before, features);
      random.fill(q, -3.0, 3.0);
      const GuardedTensor y(GetParam(), {rows, features}, y_layout, kGpu);
      attention(q, kv, step.batch(), scale_of(head_dim), y.view(), gpu->exec);
      expect_twin(y, q, kv, requests, scale_of(head_dim));
    }
  }
}

TEST_P(AttentionPrefill, ALongPrompt) {
  constexpr int64_t kTokens = 2000;
  Cache cache(150, 1, 128, random);
  const std::vector<StepRequest> requests{request(cache.add(kTokens), kTokens, kTokens)};
  const GuardedTensor k = cache.k.upload(GetParam());
  const GuardedTensor v = cache.v.upload(GetParam());
  const KvLayer kv{.k = k.view(), .v = v.view()};
  const PagedStep step(requests, kGpu);
  const GuardedTensor q =
      random.tensor(GetParam(), {kTokens, 256}, Layout::contiguous, -3.0, 3.0, kGpu);
  const GuardedTensor y(GetParam(), {kTokens, 256}, Layout::contiguous, kGpu);
  attention(q.view(), kv, step.batch(), scale_of(128), y.view(), gpu->exec);
  expect_twin(y, q.view(), kv, requests, scale_of(128));
}

// Some thousand requests, most of them with no row or one.
TEST_P(AttentionPrefill, ManyRequests) {
  for (int64_t count : {1, 31, 32, 33, 3000}) {
    Cache cache(40, 1, 8, random);
    const Pages sequences[] = {cache.add(40), cache.add(100), cache.add(70)};
    std::vector<StepRequest> requests;
    int64_t rows = 0;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t own = r % 997 == 0 ? 35 : random.below(3);
      requests.push_back(
          request(sequences[r % 3], own + random.below(40 - own) + (own == 0 ? 1 : 0), own));
      rows += own;
    }
    const GuardedTensor k = cache.k.upload(GetParam());
    const GuardedTensor v = cache.v.upload(GetParam());
    const KvLayer kv{.k = k.view(), .v = v.view()};
    const PagedStep step(requests, kGpu);
    const GuardedTensor q =
        random.tensor(GetParam(), {rows, 24}, Layout::contiguous, -3.0, 3.0, kGpu);
    const GuardedTensor y(GetParam(), {rows, 24}, Layout::contiguous, kGpu);
    attention(q.view(), kv, step.batch(), scale_of(8), y.view(), gpu->exec);
    expect_twin(y, q.view(), kv, requests, scale_of(8));
  }
}

// A prompt in chunks, in other pages, with the rows of others before, between and after.
TEST_P(AttentionPrefill, ARowDependsOnItsOwnRequestAlone) {
  constexpr int64_t kTokens = 130;
  for (const Heads& shape : {Heads{3, 3}, Heads{6, 2}}) {
    for (int64_t head_dim : {8, 64, 80, 96, 128, 256}) {
      SCOPED_TRACE(fmt::format("{} heads on {} of {}", shape.heads, shape.kv_heads, head_dim));
      const int64_t features = shape.heads * head_dim;
      Cache cache(40, shape.kv_heads, head_dim, random);
      const Pages pages = cache.add(kTokens);
      const Pages copy = cache.take(kTokens);
      cache.k.copy(pages, copy, kTokens);
      cache.v.copy(pages, copy, kTokens);
      const Pages company = cache.add(90);
      std::vector<double> q;
      for (int64_t i = 0; i < kTokens * features; ++i) {
        q.push_back(random.uniform(-3.0, 3.0));
      }
      const GuardedTensor whole = attend(cache, {request(pages, kTokens, kTokens)}, kTokens,
                                         features, q, scale_of(head_dim));
      for (int64_t chunk : {1, 7, 16, 30, 75, 130}) {
        std::vector<StepRequest> requests;
        std::vector<double> queries;
        std::vector<int64_t> places;  // of the chunks' first rows
        int64_t rows = 0;
        for (int64_t first = 0; first < kTokens; first += chunk) {
          const int64_t others = first * 11 % (chunk < 16 ? 5 : 83);
          requests.push_back(request(company, 90, others));
          for (int64_t i = 0; i < others * features; ++i) {
            queries.push_back(random.uniform(-3.0, 3.0));
          }
          const int64_t own = std::min(chunk, kTokens - first);
          requests.push_back(request(copy, first + own, own));
          queries.insert(queries.end(), q.begin() + first * features,
                         q.begin() + (first + own) * features);
          places.push_back(rows + others);
          rows += others + own;
        }
        const GuardedTensor y =
            attend(cache, requests, rows, features, queries, scale_of(head_dim));
        for (size_t i = 0; i < places.size(); ++i) {
          const int64_t first = static_cast<int64_t>(i) * chunk;
          const int64_t own = std::min(chunk, kTokens - first);
          EXPECT_TRUE(same_bits(y.view().rows(places[i], own), whole.view().rows(first, own)))
              << "chunk of " << chunk << " from " << first;
        }
      }
    }
  }
}

// So many rows that other tiles pay: the same bits, infinities and NaNs included.
TEST_P(AttentionPrefill, ALargeLaunchHasTheSameBits) {
  constexpr int64_t kTokens = 130;
  constexpr int64_t kCopies = 24;
  for (int64_t head_dim : {64, 80, 128}) {
    SCOPED_TRACE(fmt::format("heads of {}", head_dim));
    const int64_t features = 8 * head_dim;
    Cache cache(20, 4, head_dim, random);
    const Pages pages = cache.add(kTokens);
    cache.k.at(pages, 120, 0, 1) = kNan;
    cache.v.at(pages, 50, 1, 3) = kNan;
    cache.v.at(pages, 77, 2, 7) = std::numeric_limits<double>::infinity();
    cache.v.at(pages, 5, 3, 5) = -std::numeric_limits<double>::infinity();
    std::vector<double> q;
    for (int64_t i = 0; i < kTokens * features; ++i) {
      q.push_back(random.uniform(-3.0, 3.0));
    }
    const GuardedTensor one =
        attend(cache, {request(pages, kTokens, kTokens)}, kTokens, features, q, scale_of(head_dim));
    std::vector<StepRequest> requests;
    std::vector<double> queries;
    for (int64_t i = 0; i < kCopies; ++i) {
      requests.push_back(request(pages, kTokens, kTokens));
      queries.insert(queries.end(), q.begin(), q.end());
    }
    const GuardedTensor many =
        attend(cache, requests, kCopies * kTokens, features, queries, scale_of(head_dim));
    for (int64_t i = 0; i < kCopies; ++i) {
      EXPECT_TRUE(same_bits(many.view().rows(i * kTokens, kTokens), one.view())) << "copy " << i;
    }
  }
}

// Rows of a decode step have the bits that they have in a prompt; padding rows become 0.
TEST_P(AttentionPrefill, DecodeWithPadding) {
  gpu->exec.sums = Sums::batch_invariant;
  for (const Heads& shape : {Heads{2, 2}, Heads{8, 2}, Heads{70, 1}}) {
    constexpr int64_t kLengths[] = {0, 1, 16, 17, 0, 33, 64, 65, 130, 300, 0};
    constexpr int64_t kHeadDim = 64;
    const int64_t features = shape.heads * kHeadDim;
    const auto rows = static_cast<int64_t>(std::size(kLengths));
    Cache cache(60, shape.kv_heads, kHeadDim, random);
    const Pages pages = cache.add(300);
    std::vector<double> prompt;
    for (int64_t i = 0; i < 300 * features; ++i) {
      prompt.push_back(random.uniform(-3.0, 3.0));
    }
    const GuardedTensor whole =
        attend(cache, {request(pages, 300, 300)}, 300, features, prompt, scale_of(kHeadDim));

    std::vector<StepRequest> requests;
    std::vector<double> queries;
    for (int64_t length : kLengths) {
      requests.push_back(request(pages, length, 1));
      const auto from = prompt.begin() + std::max<int64_t>(length - 1, 0) * features;
      queries.insert(queries.end(), from, from + features);
    }
    const PagedStep step(requests, kGpu);
    PagedBatch batch = step.batch();
    batch.decode = true;
    const GuardedTensor k = cache.k.upload(GetParam());
    const GuardedTensor v = cache.v.upload(GetParam());
    const GuardedTensor q = on_gpu(rows, features, queries);
    const GuardedTensor y(GetParam(), {rows, features}, Layout::contiguous, kGpu);
    attention(q.view(), {.k = k.view(), .v = v.view()}, batch, scale_of(kHeadDim), y.view(),
              gpu->exec);
    EXPECT_TRUE(y.guards_intact());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t length = kLengths[row];
      if (length == 0) {
        EXPECT_EQ(values_of(y.view().rows(row, 1)),
                  std::vector<double>(static_cast<size_t>(features), 0.0));
      } else {
        EXPECT_TRUE(same_bits(y.view().rows(row, 1), whole.view().rows(length - 1, 1))) << length;
      }
    }
  }
}

// Whatever is not finite reaches the rows that see it, in the heads and elements that it belongs
// to, and changes no other bit.
TEST_P(AttentionPrefill, NanStaysWhereItIsSeen) {
  constexpr int64_t kTokens = 140;
  constexpr int64_t kHeads = 4;
  constexpr int64_t kHeadDim = 24;
  constexpr int64_t kFeatures = kHeads * kHeadDim;
  enum class Place { q, k, v };
  Cache cache(30, 2, kHeadDim, random);
  const Pages sick = cache.add(kTokens);
  const Pages healthy = cache.add(20);
  const std::vector<StepRequest> requests{request(sick, kTokens, kTokens), request(healthy, 20, 3)};
  constexpr int64_t kRows = kTokens + 3;
  std::vector<double> q;
  for (int64_t i = 0; i < kRows * kFeatures; ++i) {
    q.push_back(random.uniform(-1.0, 1.0));
  }
  const std::vector<double> clean =
      values_of(attend(cache, requests, kRows, kFeatures, q, 0.2f).view());
  struct Case {
    Place place;
    double value;
  };
  for (const Case& each : {Case{Place::q, kNan}, Case{Place::k, kNan}, Case{Place::v, kNan},
                           Case{Place::v, std::numeric_limits<double>::infinity()}}) {
    for (int64_t token : {0, 18, 63, 64, 100, 139}) {
      constexpr int64_t kHead = 1;  // as a head of keys and values: that of queries 2 and 3
      constexpr int64_t kElement = 13;
      std::vector<double> queries = q;
      Cache changed = cache;
      if (each.place == Place::q) {
        queries.at(static_cast<size_t>(token * kFeatures + kHead * kHeadDim + kElement)) =
            each.value;
      } else {
        Pool& pool = each.place == Place::k ? changed.k : changed.v;
        pool.at(sick, token, kHead, kElement) = each.value;
      }
      const std::vector<double> got =
          values_of(attend(changed, requests, kRows, kFeatures, queries, 0.2f).view());
      int64_t failures = 0;
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t i = 0; i < kFeatures; ++i) {
          const bool seen = row >= token && row < kTokens && i / kHeadDim >= 2;
          const bool hit = each.place == Place::q   ? row == token && i / kHeadDim == kHead
                           : each.place == Place::k ? seen
                                                    : seen && i % kHeadDim == kElement;
          const auto at = static_cast<size_t>(row * kFeatures + i);
          const double expected = hit ? each.value : clean[at];
          failures += got[at] == expected || (std::isnan(got[at]) && std::isnan(expected)) ? 0 : 1;
        }
      }
      EXPECT_EQ(failures, 0) << "place " << static_cast<int>(each.place) << ", value " << each.value
                             << ", token " << token;
    }
  }
  for (double value : clean) {
    ASSERT_TRUE(std::isfinite(value));
  }
}

// Scores near +-20,000 that are whole numbers, so that their differences are exact.
TEST_P(AttentionPrefill, LargeScores) {
  constexpr int64_t kTokens = 140;
  for (double offset : {0.0, -20000.0, 20000.0}) {
    Cache cache(10, 1, 64, random);
    const Pages pages = cache.add(kTokens);
    for (int64_t token = 0; token < kTokens; ++token) {
      for (int64_t i = 0; i < 64; ++i) {
        cache.k.at(pages, token, 0, i) = 0.0;
      }
      cache.k.at(pages, token, 0, 0) = offset;
      cache.k.at(pages, token, 0, 63) = static_cast<double>(random.below(9)) - 4.0;
    }
    const std::vector<StepRequest> requests{request(pages, kTokens, kTokens)};
    const std::vector<double> q(kTokens * 64, 1.0);
    const GuardedTensor y = attend(cache, requests, kTokens, 64, q, 1.0f);
    const GuardedTensor k = cache.k.upload(GetParam());
    const GuardedTensor v = cache.v.upload(GetParam());
    expect_twin(y, on_gpu(kTokens, 64, q).view(), {.k = k.view(), .v = v.view()}, requests, 1.0f);
  }
}

TEST_P(AttentionPrefill, OneScoreFarAboveTheOthersPicksItsValue) {
  const double most = GetParam() == DType::f16 ? 3e4 : 1e15;
  for (int64_t winner : {0, 15, 16, 63, 64, 129}) {
    Cache cache(10, 1, 64, random);
    const Pages pages = cache.add(130);
    std::vector<double> q;
    for (int64_t i = 0; i < 64; ++i) {
      cache.k.at(pages, winner, 0, i) = most;
      q.push_back(random.uniform(1.0, most));
    }
    const GuardedTensor v = cache.v.upload(GetParam());
    const GuardedTensor y = attend(cache, {request(pages, 130, 1)}, 1, 64, q, 1.0f);
    const Tensor page = v.view().rows(pages[static_cast<size_t>(winner / kPageSize)], 1);
    const std::vector<double> values = values_of(page);
    const auto first = values.begin() + winner % kPageSize * 64;
    EXPECT_TRUE(
        all_close(y.view(), std::vector<double>(first, first + 64), std::vector<double>(64, 1e-30)))
        << winner;
  }
}

TEST_P(AttentionPrefill, RefusesAScaleThatIsNotPositive) {
  Cache cache(2, 1, 8, random);
  const Pages pages = cache.add(3);
  for (float scale : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(throws_error(
        [&] { attend(cache, {request(pages, 3, 1)}, 1, 8, std::vector<double>(8, 1.0), scale); },
        "is not positive"));
  }
}

}  // namespace
}  // namespace sparsellm
