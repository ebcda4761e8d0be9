#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/activation.h"
#include "kernels/append_attention.h"
#include "kernels/attention.h"
#include "kernels/base/cuda_graph.h"
#include "kernels/embedding.h"
#include "kernels/gemm_stream_cuda.h"
#include "kernels/norm.h"
#include "tests/kernels/overlapping_chain_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

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
    const PagedBatch batch = step.decode_batch();
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
      rms_norm(x.view(), norm, normed.view(), exec);
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
                           {.scale = kHeads.scale()}, mixed.view(), exec);
        } else {
          append(kv.view(), batch, cache.layer(), exec);
          called(exec);
          if (order == 1) {
            product(normed, w_q, q);
          }
          attention(q.view(), cache.layer(), batch, {.scale = kHeads.scale()}, mixed.view(), exec);
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
        const PagedBatch batch = steps[static_cast<size_t>(i)].decode_batch();
        const auto of_step = [&](const GuardedTensor& all) {
          return all.view().rows(i * rows, rows);
        };
        // Between the tokens of two steps is an ordinary launch (kernels/paged_kv.h).
        activate({.kind = Activation::Kind::relu}, many.view(), ordinary);
        called(exec);
        append(of_step(kv), batch, cache.layer(), exec);
        called(exec);
        attention(of_step(q), cache.layer(), batch, {.scale = heads.scale()}, of_step(y), exec);
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

}  // namespace
}  // namespace sparsellm
