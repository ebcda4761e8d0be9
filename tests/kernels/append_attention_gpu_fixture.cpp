#include "tests/kernels/append_attention_gpu_fixture.h"

#include <algorithm>
#include <iterator>

#include "kernels/activation.h"
#include "kernels/append_attention.h"
#include "kernels/kv_append.h"
#include "kernels/norm.h"

namespace sparsellm::testing {

void AppendingRows::expect_same_as_two_ops(const AppendingCase& c) {
  SCOPED_TRACE(fmt::format("{} heads, {} key/value heads, head_dim {}, {} requests{}{}, window {}",
                           c.heads.query, c.heads.kv, c.heads.dim, c.lengths.size(),
                           c.rotates ? ", rotated" : "", c.norms ? ", with norms" : "", c.window));
  const int64_t rows = std::ssize(c.lengths);
  const int64_t features = c.heads.query_features() + 2 * c.heads.kv_features();
  const Requests requests(c.lengths, c.steps, random);
  const PagedStep prompts(requests.prompts(), kGpu);
  std::vector<PagedStep> steps;
  for (int64_t i = 0; i < c.steps; ++i) {
    steps.emplace_back(requests.step(i, c.window), kGpu);
  }
  const GuardedTensor prompts_kv =
      on_gpu({std::max<int64_t>(prompts.batch().tokens(), 1), 2 * c.heads.kv_features()});
  const GuardedTensor x =
      random.tensor(DType::f32, {c.steps * rows, features}, Layout::contiguous, -1.0, 1.0, kGpu);
  const GuardedTensor norm_weight = on_gpu({features}, 3.0);
  const GuardedTensor angles = random.tensor(DType::f32, {c.steps * rows, c.heads.dim + 8},
                                             Layout::contiguous, -1.0, 1.0, kGpu);
  const GuardedTensor q_norm = on_gpu({c.heads.dim}, 2.0);
  const GuardedTensor k_norm = on_gpu({c.heads.dim}, 2.0);
  const HeadNorms norms =
      c.norms ? HeadNorms{.q = q_norm.view(), .k = k_norm.view(), .epsilon = 1e-2f} : HeadNorms{};
  const AttentionParams params{.scale = c.heads.scale(), .window = c.window};
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
      const PagedBatch batch = steps[static_cast<size_t>(i)].decode_batch();
      const QkTransform transform{
          .cos_sin = c.rotates ? of_step(angles.view()).columns(0, c.heads.dim) : Tensor(),
          .norms = norms};
      const Tensor row = of_step(joined.view());
      const QkvRows qkv{.q = row.columns(0, c.heads.query_features()),
                        .k = row.columns(c.heads.query_features(), c.heads.kv_features()),
                        .v = row.columns(features - c.heads.kv_features(), c.heads.kv_features())};
      activate({.kind = Activation::Kind::relu}, slow.view(), ordinary);
      called(exec);
      rms_norm(of_step(x.view()), {.weight = norm_weight.view(), .bias = {}, .epsilon = 1e-5f}, row,
               exec);
      called(exec);
      if (in_one) {
        append_attention(transform, qkv, batch, cache.layer(), params, of_step(y.view()), exec);
        continue;
      }
      if (transform.empty()) {
        kv_append(qkv.k, qkv.v, batch, cache.layer(), exec);
      } else {
        rope_kv_append(transform, qkv, batch, cache.layer(), exec);
      }
      called(exec);
      attention(qkv.q, cache.layer(), batch, params, of_step(y.view()), exec);
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

}  // namespace sparsellm::testing
