// Calls whose kernels begin early, as those of a decode step do, against the same calls one by one.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/append_attention.h"
#include "kernels/attention.h"
#include "kernels/base/cuda_graph.h"
#include "kernels/embedding.h"
#include "kernels/gemm_stream_cuda.h"
#include "kernels/kv_append.h"
#include "kernels/norm.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr int64_t kPadding = -1;  // in the place of a number of tokens

struct Heads {
  int64_t query;
  int64_t kv;
  int64_t dim;

  constexpr int64_t query_features() const { return query * dim; }
  constexpr int64_t kv_features() const { return kv * dim; }
  int64_t workspace_bytes() const { return attention_workspace_bytes(kGpu, query, kv, dim); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(dim)); }
};

// Requests with so many tokens, or padding, that get one more in each step. Their pages lie in any
// order in a pool, some of which belong to no request.
class Requests {
 public:
  Requests(std::vector<int64_t> lengths, int64_t steps, Random& random)
      : lengths_(std::move(lengths)),
        most_pages_(pages_for(*std::max_element(lengths_.begin(), lengths_.end()) + steps)) {
    constexpr int64_t kOthers = 5;
    const int64_t pages = std::ssize(lengths_) * most_pages_ + kOthers;
    pages_ = random.permutation(static_cast<int32_t>(pages));
  }

  int64_t pool_pages() const { return std::ssize(pages_); }

  // What they have before the first step.
  std::vector<StepRequest> prompts() const {
    std::vector<StepRequest> all;
    for (int64_t i = 0; i < std::ssize(lengths_); ++i) {
      const int64_t length = std::max<int64_t>(length_of(i), 0);
      all.push_back({.pages = pages_of(i, length), .kv_length = length, .rows = length});
    }
    return all;
  }
  // Steps count from 0.
  std::vector<StepRequest> step(int64_t number) const {
    std::vector<StepRequest> all;
    for (int64_t i = 0; i < std::ssize(lengths_); ++i) {
      const int64_t length = length_of(i) == kPadding ? 0 : length_of(i) + number + 1;
      all.push_back({.pages = pages_of(i, length), .kv_length = length, .rows = 1});
    }
    return all;
  }

 private:
  int64_t length_of(int64_t request) const { return lengths_[static_cast<size_t>(request)]; }
  std::vector<int32_t> pages_of(int64_t request, int64_t length) const {
    const auto first = pages_.begin() + request * most_pages_;
    return {first, first + pages_for(length)};
  }

  std::vector<int64_t> lengths_;
  int64_t most_pages_;  // of a request
  std::vector<int32_t> pages_;
};

// All of it NaN at first.
struct Cache {
  Cache(DType dtype, int64_t pages, const Heads& heads)
      : k(dtype, {pages, heads.kv, kPageSize, heads.dim}, Layout::contiguous, kGpu),
        v(dtype, {pages, heads.kv, kPageSize, heads.dim}, Layout::contiguous, kGpu) {}

  KvLayer layer() const { return {.k = k.view(), .v = v.view()}; }

  GuardedTensor k;
  GuardedTensor v;
};

// Of rows with keys, and values after them.
void append(const Tensor& kv, const PagedBatch& batch, const KvLayer& to, ExecContext& exec) {
  const int64_t features = kv.size(1) / 2;
  kv_append(kv.columns(0, features), kv.columns(features, features), batch, to, exec);
}

PagedBatch decode_batch(const PagedStep& step) {
  PagedBatch batch = step.batch();
  batch.decode = true;
  return batch;
}

bool has_nan(const Tensor& x) {
  return std::ranges::any_of(values_of(x), [](double value) { return std::isnan(value); });
}

class OverlappingChain : public GpuTest {
 protected:
  GuardedTensor on_gpu(std::initializer_list<int64_t> sizes, double most = 1.0) {
    return random.tensor(GetParam(), sizes, Layout::contiguous, -most, most, kGpu);
  }
  GuardedTensor result(DType dtype, int64_t rows, int64_t columns) {
    return {dtype, {rows, columns}, Layout::contiguous, kGpu};
  }
  ExecContext context(Workspace& workspace, Launches launches) {
    return {.device = kGpu,
            .workspace = workspace,
            .threads = gpu->threads,
            .cuda = &gpu->cuda,
            .launches = launches};
  }
  // Behind every call: ordinary launches are those that overlapping ones are compared with.
  void called(const ExecContext& exec) const {
    if (exec.launches == Launches::ordinary) {
      gpu->cuda.synchronize();
    }
  }
  // Of both streams.
  void expect_counters_of_zero() const {
    constexpr int64_t kCounters = 2 * CudaQueue::kCounters;
    const Tensor counters(gpu->cuda.state().counters.data(), DType::i32, {kCounters}, kGpu);
    EXPECT_EQ(values_of(counters), std::vector<double>(kCounters, 0.0));
  }

  Random random{83};
};
INSTANTIATE_TEST_SUITE_P(Gpu, OverlappingChain, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// The attention of many layers, which have the same weights and pages. A row block of a weight has
// 18 steps and a thread block of a product 4 or 5 (on 132 multiprocessors): row blocks are shared,
// each at other places. Requests are split over their pages. So products and attention use the same
// counters by turns.
TEST_P(OverlappingChain, LayersGiveTheSameBits) {
  constexpr int kLayers = 36;
  constexpr int kRuns = 8;
  constexpr Heads kHeads{.query = 18, .kv = 3, .dim = 128};
  constexpr int64_t kHidden = kHeads.query_features();
  constexpr StreamMemory kMemories[] = {StreamMemory::half, StreamMemory::whole};
  const std::vector<int64_t> lengths{1200, 31, kPadding, 500, 0, 15, 700, 63};
  const GuardedTensor w_q = on_gpu({kHidden, kHidden}, 0.04);
  const GuardedTensor w_kv = on_gpu({2 * kHeads.kv_features(), kHidden}, 0.04);
  const GuardedTensor w_out = on_gpu({kHidden, kHidden}, 0.04);
  const GuardedTensor w_norm = on_gpu({kHidden});
  const Tensor row = w_out.view().rows(0, 1);
  if (!gemm_stream_takes(gpu->cuda.state(), {.x = row, .w = w_q.view(), .bias = {}, .y = row})) {
    GTEST_SKIP() << "streamed products are for compute capability 9.0";
  }
  Workspace workspace(kGpu, kHeads.workspace_bytes());
  ExecContext overlapping = context(workspace, Launches::overlapping);
  ExecContext ordinary = context(workspace, Launches::ordinary);

  for (int64_t rows = 1; rows <= std::ssize(lengths); ++rows) {
    SCOPED_TRACE(fmt::format("{} rows", rows));
    const Requests requests({lengths.begin(), lengths.begin() + rows}, 1, random);
    const PagedStep prompts(requests.prompts(), kGpu);
    const Cache cache(GetParam(), requests.pool_pages(), kHeads);
    const GuardedTensor prompts_kv = on_gpu({prompts.batch().tokens(), 2 * kHeads.kv_features()});
    append(prompts_kv.view(), prompts.batch(), cache.layer(), ordinary);

    const PagedStep step(requests.step(0), kGpu);
    const PagedBatch batch = decode_batch(step);
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    std::iota(ids.begin(), ids.end(), 0);
    const GuardedTensor gpu_ids = i32_tensor(ids, kGpu);
    const GuardedTensor table = on_gpu({rows, kHidden});
    const GuardedTensor x = result(DType::f32, rows, kHidden);  // the residual stream
    const GuardedTensor unwritten = result(DType::f32, rows, kHidden);
    const GuardedTensor normed = result(GetParam(), rows, kHidden);
    const GuardedTensor q = result(GetParam(), rows, kHidden);
    const GuardedTensor kv = result(GetParam(), rows, 2 * kHeads.kv_features());
    const Tensor keys = kv.view().columns(0, kHeads.kv_features());
    const Tensor values = kv.view().columns(kHeads.kv_features(), kHeads.kv_features());
    const GuardedTensor mixed = result(GetParam(), rows, kHidden);
    const GuardedTensor out = result(GetParam(), rows, kHidden);
    const NormParams norm{.weight = w_norm.view(), .bias = {}, .epsilon = 1e-5f};

    const auto run = [&](ExecContext& exec) {
      int products = 0;
      const auto product = [&](const GuardedTensor& from, const GuardedTensor& w,
                               const GuardedTensor& to) {
        gemm_stream_cuda({.x = from.view(), .w = w.view(), .bias = {}, .y = to.view()},
                         kMemories[products++ / 2 % 2], exec);
        called(exec);
      };
      embedding(gpu_ids.view(), {}, {.tokens = table.view(), .positions = {}}, x.view(), exec);
      called(exec);
      rms_norm(x.view(), norm.weight, norm.epsilon, normed.view(), exec);
      called(exec);
      for (int layer = 0; layer < kLayers; ++layer) {
        // By turns attention is right after the appended token, right after a product, and
        // appends by itself.
        const int order = layer % 3;
        if (order != 1) {
          product(normed, w_q, q);
        }
        product(normed, w_kv, kv);
        if (order == 2) {
          append_attention({}, {.q = q.view(), .k = keys, .v = values}, batch, cache.layer(),
                           kHeads.scale(), mixed.view(), exec);
        } else {
          append(kv.view(), batch, cache.layer(), exec);
          called(exec);
          if (order == 1) {
            product(normed, w_q, q);
          }
          attention(q.view(), cache.layer(), batch, kHeads.scale(), mixed.view(), exec);
        }
        called(exec);
        product(mixed, w_out, out);
        add_rms_norm(out.view(), x.view(), norm, normed.view(), exec);
        called(exec);
      }
    };
    run(ordinary);
    ASSERT_FALSE(has_nan(x.view()));
    const std::vector<std::byte> expected = bytes_of(x.view());
    const auto expect_same = [&](const char* how, const auto& enqueue) {
      for (int i = 0; i < kRuns; ++i) {
        gpu->cuda.copy_async(x.view().raw(), unwritten.view().raw(), x.view().bytes());
        enqueue();
        gpu->cuda.synchronize();
        ASSERT_EQ(bytes_of(x.view()), expected) << how << ", run " << i;
      }
      expect_counters_of_zero();
    };
    expect_same("launched", [&] { run(overlapping); });
    const CudaGraph graph(gpu->cuda, [&] { run(overlapping); });
    expect_same("replayed", [&] { graph.launch(); });
  }
}

// Attention may read all pages of keys but the last before kv_append has ended, which itself waits
// long here. Slots without a token hold NaN, and so do pages that belong to no request.
TEST_P(OverlappingChain, AppendedTokensAreSeen) {
  constexpr int64_t kSteps = 36;  // every request begins at least two pages
  constexpr int kRuns = 5;
  const std::vector<int64_t> lengths{0, 14, kPadding, 15, 16, 333, 1000};
  const int64_t rows = std::ssize(lengths);
  // Its activation takes long, and lets the next kernel begin at once. NaN stays NaN.
  const GuardedTensor many = result(GetParam(), 2, 1 << 20);
  for (const Heads& heads :
       {Heads{4, 4, 64}, Heads{8, 2, 64}, Heads{4, 4, 128}, Heads{8, 2, 128}, Heads{20, 2, 128}}) {
    SCOPED_TRACE(
        fmt::format("{} heads, {} key/value heads, head_dim {}", heads.query, heads.kv, heads.dim));
    const Requests requests(lengths, kSteps, random);
    const PagedStep prompts(requests.prompts(), kGpu);
    std::vector<PagedStep> steps;
    for (int64_t i = 0; i < kSteps; ++i) {
      steps.emplace_back(requests.step(i), kGpu);
    }
    const GuardedTensor prompts_kv = on_gpu({prompts.batch().tokens(), 2 * heads.kv_features()});
    const GuardedTensor q = on_gpu({kSteps * rows, heads.query_features()}, 3.0);
    const GuardedTensor kv = on_gpu({kSteps * rows, 2 * heads.kv_features()});
    Workspace workspace(kGpu, heads.workspace_bytes());
    ExecContext ordinary = context(workspace, Launches::ordinary);

    const auto decode = [&](Launches launches) {
      const Cache cache(GetParam(), requests.pool_pages(), heads);
      GuardedTensor y = result(GetParam(), kSteps * rows, heads.query_features());
      ExecContext exec = context(workspace, launches);
      append(prompts_kv.view(), prompts.batch(), cache.layer(), ordinary);
      for (int64_t i = 0; i < kSteps; ++i) {
        const PagedBatch batch = decode_batch(steps[static_cast<size_t>(i)]);
        const auto of_step = [&](const GuardedTensor& all) {
          return all.view().rows(i * rows, rows);
        };
        // Between the tokens of two steps is an ordinary launch (kernels/paged_kv.h).
        activate({.kind = Activation::Kind::relu}, many.view(), ordinary);
        called(exec);
        append(of_step(kv), batch, cache.layer(), exec);
        called(exec);
        attention(of_step(q), cache.layer(), batch, heads.scale(), of_step(y), exec);
        called(exec);
      }
      gpu->cuda.synchronize();
      return y;
    };
    const GuardedTensor expected = decode(Launches::ordinary);
    ASSERT_FALSE(has_nan(expected.view()));
    for (int i = 0; i < kRuns; ++i) {
      ASSERT_TRUE(same_bits(decode(Launches::overlapping).view(), expected.view())) << "run " << i;
    }
    expect_counters_of_zero();
  }
}

struct AppendingCase {
  Heads heads;
  bool rotates = false;
  std::vector<int64_t> lengths;
  int64_t steps = 0;
};

// Decode rows by one op, step after step, as in a layer: their q, k and v come from a kernel that
// itself waits long and lets the next begin at once, where NaN was before. Slots without a token
// hold NaN too.
class AppendingRows : public OverlappingChain {
 protected:
  void expect_same_as_two_ops(const AppendingCase& c) {
    SCOPED_TRACE(fmt::format("{} heads, {} key/value heads, head_dim {}, {} requests{}",
                             c.heads.query, c.heads.kv, c.heads.dim, c.lengths.size(),
                             c.rotates ? ", rotated" : ""));
    const int64_t rows = std::ssize(c.lengths);
    const int64_t features = c.heads.query_features() + 2 * c.heads.kv_features();
    const Requests requests(c.lengths, c.steps, random);
    const PagedStep prompts(requests.prompts(), kGpu);
    std::vector<PagedStep> steps;
    for (int64_t i = 0; i < c.steps; ++i) {
      steps.emplace_back(requests.step(i), kGpu);
    }
    const GuardedTensor prompts_kv =
        on_gpu({std::max<int64_t>(prompts.batch().tokens(), 1), 2 * c.heads.kv_features()});
    const GuardedTensor x =
        random.tensor(DType::f32, {c.steps * rows, features}, Layout::contiguous, -1.0, 1.0, kGpu);
    const GuardedTensor norm_weight = on_gpu({features}, 3.0);
    const GuardedTensor angles = random.tensor(DType::f32, {c.steps * rows, c.heads.dim + 8},
                                               Layout::contiguous, -1.0, 1.0, kGpu);
    const GuardedTensor slow = result(GetParam(), 2, 1 << 20);
    Workspace workspace(kGpu, c.heads.workspace_bytes());
    ExecContext ordinary = context(workspace, Launches::ordinary);

    const auto decode = [&](const Cache& cache, bool in_one) {
      GuardedTensor y = result(GetParam(), c.steps * rows, c.heads.query_features());
      // NaN, until the norm writes it.
      const GuardedTensor joined = result(GetParam(), c.steps * rows, features);
      append(prompts_kv.view().rows(0, prompts.batch().tokens()), prompts.batch(), cache.layer(),
             ordinary);
      ExecContext exec = context(workspace, in_one ? Launches::overlapping : Launches::ordinary);
      for (int64_t i = 0; i < c.steps; ++i) {
        const auto of_step = [&](const Tensor& all) { return all.rows(i * rows, rows); };
        const PagedBatch batch = decode_batch(steps[static_cast<size_t>(i)]);
        const Tensor cos_sin =
            c.rotates ? of_step(angles.view()).columns(0, c.heads.dim) : Tensor();
        const Tensor row = of_step(joined.view());
        const QkvRows qkv{
            .q = row.columns(0, c.heads.query_features()),
            .k = row.columns(c.heads.query_features(), c.heads.kv_features()),
            .v = row.columns(features - c.heads.kv_features(), c.heads.kv_features())};
        activate({.kind = Activation::Kind::relu}, slow.view(), ordinary);
        called(exec);
        rms_norm(of_step(x.view()), norm_weight.view(), 1e-5f, row, exec);
        called(exec);
        if (in_one) {
          append_attention(cos_sin, qkv, batch, cache.layer(), c.heads.scale(), of_step(y.view()),
                           exec);
          continue;
        }
        if (c.rotates) {
          rope_kv_append(cos_sin, qkv, batch, cache.layer(), exec);
        } else {
          kv_append(qkv.k, qkv.v, batch, cache.layer(), exec);
        }
        called(exec);
        attention(qkv.q, cache.layer(), batch, c.heads.scale(), of_step(y.view()), exec);
        called(exec);
      }
      gpu->cuda.synchronize();
      return y;
    };
    const Cache expected_cache(GetParam(), requests.pool_pages(), c.heads);
    const Cache cache(GetParam(), requests.pool_pages(), c.heads);
    const GuardedTensor expected = decode(expected_cache, false);
    const GuardedTensor y = decode(cache, true);
    ASSERT_FALSE(has_nan(expected.view()));
    EXPECT_TRUE(same_bits(y.view(), expected.view()));
    EXPECT_EQ(bytes_of(cache.k.view()), bytes_of(expected_cache.k.view()));
    EXPECT_EQ(bytes_of(cache.v.view()), bytes_of(expected_cache.v.view()));
    EXPECT_TRUE(y.guards_intact());
    expect_counters_of_zero();
  }
};
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

// So many that two kernels are faster, on any GPU.
TEST_P(AppendingRows, OfManyRequests) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 300; ++i) {
    lengths.push_back(i % 40);
  }
  expect_same_as_two_ops({{8, 8, 64}, true, lengths, 2});
}

// For tools that take long with each launch.
TEST_P(AppendingRows, InFewSteps) {
  expect_same_as_two_ops({{4, 2, 128}, true, {15, kPadding, 200}, 2});
}

}  // namespace
}  // namespace sparsellm
