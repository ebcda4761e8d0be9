#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/attention_prefill_gpu_fixture.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

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
      const AttentionParams params{.scale = scale_of(head_dim)};
      attention(q, kv, step.batch(), params, y.view(), gpu->exec);
      expect_twin(y, q, kv, requests, params);
    }
  }
}

// Of one token, of less than a page, of a page, around the blocks of 64 keys that a kernel takes,
// and of more than all tokens. Tokens that no row sees are NaN, and their pages out of range where
// no row sees any token of them.
TEST_P(AttentionPrefill, Windows) {
  struct Part {
    int64_t kv_length;
    int64_t rows;
  };
  constexpr Part kParts[] = {{1, 1},  {33, 0},  {16, 16},   {300, 300}, {300, 45}, {130, 1},
                             {17, 0}, {200, 7}, {130, 130}, {129, 64},  {257, 66}, {65, 2}};
  const std::vector<int64_t> all = {1, 5, 16, 17, 63, 64, 65, 100, 128, 200, 1000};
  const std::vector<int64_t> some = {5, 64, 100};
  for (const Heads& shape : {Heads{4, 4}, Heads{6, 1}}) {
    for (int64_t head_dim : {8, 64, 80, 128, 256}) {
      for (int64_t window : head_dim == 80 ? all : some) {
        SCOPED_TRACE(fmt::format("{} heads on {} of {}, window {}", shape.heads, shape.kv_heads,
                                 head_dim, window));
        Cache cache(120, shape.kv_heads, head_dim, random);
        std::vector<StepRequest> requests;
        int64_t rows = 0;
        for (const Part& part : kParts) {
          const Pages pages = cache.add(part.kv_length);
          const int64_t first = first_seen(part.kv_length, part.rows, window);
          cache.k.poison(pages, std::min(first, part.kv_length));
          cache.v.poison(pages, std::min(first, part.kv_length));
          requests.push_back(request(pages, part.kv_length, part.rows, window));
          rows += part.rows;
        }
        const GuardedTensor k = cache.k.upload(GetParam());
        const GuardedTensor v = cache.v.upload(GetParam());
        const KvLayer kv{.k = k.view(), .v = v.view()};
        const PagedStep step(requests, kGpu);
        const int64_t features = shape.heads * head_dim;
        const GuardedTensor q =
            random.tensor(GetParam(), {rows, features}, Layout::contiguous, -3.0, 3.0, kGpu);
        const GuardedTensor y(GetParam(), {rows, features}, Layout::contiguous, kGpu);
        const AttentionParams params{.scale = scale_of(head_dim), .window = window};
        attention(q.view(), kv, step.batch(), params, y.view(), gpu->exec);
        expect_twin(y, q.view(), kv, requests, params);
      }
    }
  }
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
    const AttentionParams params{.scale = scale_of(8)};
    attention(q.view(), kv, step.batch(), params, y.view(), gpu->exec);
    expect_twin(y, q.view(), kv, requests, params);
  }
}

// A prompt in chunks, in other pages, with the rows of others before, between and after, with a
// window and without.
TEST_P(AttentionPrefill, ARowDependsOnItsOwnRequestAlone) {
  constexpr int64_t kTokens = 130;
  const std::vector<int64_t> all = {0, 1, 23, 64, 90};
  const std::vector<int64_t> some = {0, 23};
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
      for (int64_t window : head_dim == 64 ? all : some) {
        const AttentionParams params{.scale = scale_of(head_dim), .window = window};
        const GuardedTensor whole =
            attend(cache, {request(pages, kTokens, kTokens)}, kTokens, features, q, params);
        for (int64_t chunk : {1, 7, 16, 30, 75, 130}) {
          std::vector<StepRequest> requests;
          std::vector<double> queries;
          std::vector<int64_t> places;  // of the chunks' first rows
          int64_t rows = 0;
          for (int64_t first = 0; first < kTokens; first += chunk) {
            const int64_t others = first * 11 % (chunk < 16 ? 5 : 83);
            requests.push_back(request(company, 90, others, window));
            for (int64_t i = 0; i < others * features; ++i) {
              queries.push_back(random.uniform(-3.0, 3.0));
            }
            const int64_t own = std::min(chunk, kTokens - first);
            requests.push_back(request(copy, first + own, own, window));
            queries.insert(queries.end(), q.begin() + first * features,
                           q.begin() + (first + own) * features);
            places.push_back(rows + others);
            rows += others + own;
          }
          const GuardedTensor y = attend(cache, requests, rows, features, queries, params);
          for (size_t i = 0; i < places.size(); ++i) {
            const int64_t first = static_cast<int64_t>(i) * chunk;
            const int64_t own = std::min(chunk, kTokens - first);
            EXPECT_TRUE(same_bits(y.view().rows(places[i], own), whole.view().rows(first, own)))
                << "window " << window << ", chunk of " << chunk << " from " << first;
          }
        }
      }
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
    for (int64_t window : {0, 1, 20, 100}) {
      const AttentionParams params{.scale = scale_of(kHeadDim), .window = window};
      const GuardedTensor whole =
          attend(cache, {request(pages, 300, 300)}, 300, features, prompt, params);

      std::vector<StepRequest> requests;
      std::vector<double> queries;
      for (int64_t length : kLengths) {
        requests.push_back(request(pages, length, 1, window));
        const auto from = prompt.begin() + std::max<int64_t>(length - 1, 0) * features;
        queries.insert(queries.end(), from, from + features);
      }
      const PagedStep step(requests, kGpu);
      const PagedBatch batch = step.decode_batch();
      const GuardedTensor k = cache.k.upload(GetParam());
      const GuardedTensor v = cache.v.upload(GetParam());
      const GuardedTensor q = on_gpu(rows, features, queries);
      const GuardedTensor y(GetParam(), {rows, features}, Layout::contiguous, kGpu);
      attention(q.view(), {.k = k.view(), .v = v.view()}, batch, params, y.view(), gpu->exec);
      EXPECT_TRUE(y.guards_intact());
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t length = kLengths[row];
        if (length == 0) {
          EXPECT_EQ(values_of(y.view().rows(row, 1)),
                    std::vector<double>(static_cast<size_t>(features), 0.0));
        } else {
          EXPECT_TRUE(same_bits(y.view().rows(row, 1), whole.view().rows(length - 1, 1)))
              << length << ", window " << window;
        }
      }
    }
  }
}

TEST_P(AttentionPrefill, RefusesAScaleThatIsNotPositive) {
  Cache cache(2, 1, 8, random);
  const Pages pages = cache.add(3);
  for (float scale : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(throws_error(
        [&] {
          attend(cache, {request(pages, 3, 1)}, 1, 8, std::vector<double>(8, 1.0),
                 {.scale = scale});
        },
        "is not positive"));
  }
}

}  // namespace
}  // namespace sparsellm
