#include "tests/kernels/attention_prefill_gpu_fixture.h"

#include <algorithm>
#include <cmath>

namespace sparsellm::testing {
namespace {

constexpr int32_t kNoPage = 1 << 30;

}  // namespace

AttentionPrefill::Pool::Pool(int64_t pages, int64_t kv_heads, int64_t head_dim)
    : pages_(pages),
      kv_heads_(kv_heads),
      head_dim_(head_dim),
      values_(static_cast<size_t>(pages * kv_heads * kPageSize * head_dim), kNan) {}

double& AttentionPrefill::Pool::at(const Pages& pages, int64_t token, int64_t head, int64_t i) {
  const int64_t page = pages.at(static_cast<size_t>(token / kPageSize));
  return values_.at(static_cast<size_t>(
      ((page * kv_heads_ + head) * kPageSize + token % kPageSize) * head_dim_ + i));
}

void AttentionPrefill::Pool::fill(const Pages& pages, int64_t length, Random& random) {
  for_each(length, [&](int64_t token, int64_t head, int64_t i) {
    at(pages, token, head, i) = random.uniform(-1.0, 1.0);
  });
}

void AttentionPrefill::Pool::copy(const Pages& from, const Pages& to, int64_t length) {
  for_each(length, [&](int64_t token, int64_t head, int64_t i) {
    at(to, token, head, i) = at(from, token, head, i);
  });
}

void AttentionPrefill::Pool::poison(const Pages& pages, int64_t length) {
  for_each(length,
           [&](int64_t token, int64_t head, int64_t i) { at(pages, token, head, i) = kNan; });
}

GuardedTensor AttentionPrefill::Pool::upload(DType dtype) const {
  GuardedTensor tensor(dtype, {pages_, kv_heads_, kPageSize, head_dim_}, Layout::contiguous, kGpu);
  set_values(tensor.view(), values_);
  return tensor;
}

AttentionPrefill::Cache::Cache(int64_t pages, int64_t kv_heads, int64_t head_dim, Random& generator)
    : random(generator),
      k(pages, kv_heads, head_dim),
      v(pages, kv_heads, head_dim),
      free(generator.permutation(static_cast<int32_t>(pages))) {}

AttentionPrefill::Pages AttentionPrefill::Cache::take(int64_t length) {
  const auto count = static_cast<std::ptrdiff_t>(pages_for(length));
  Pages pages(free.end() - count, free.end());
  free.erase(free.end() - count, free.end());
  return pages;
}

AttentionPrefill::Pages AttentionPrefill::Cache::add(int64_t length) {
  Pages pages = take(length);
  k.fill(pages, length, random);
  v.fill(pages, length, random);
  return pages;
}

StepRequest AttentionPrefill::request(const Pages& pages, int64_t kv_length, int64_t rows,
                                      int64_t window) {
  const auto count = static_cast<std::ptrdiff_t>(pages_for(kv_length));
  StepRequest request{
      .pages = {pages.begin(), pages.begin() + count}, .kv_length = kv_length, .rows = rows};
  std::fill_n(request.pages.begin(),
              std::min<int64_t>(first_seen(kv_length, rows, window) / kPageSize, count), kNoPage);
  return request;
}

int64_t AttentionPrefill::first_seen(int64_t kv_length, int64_t rows, int64_t window) {
  return window == 0 ? 0 : std::max<int64_t>(kv_length - rows - window + 1, 0);
}

float AttentionPrefill::scale_of(int64_t head_dim) {
  return 1.0f / std::sqrt(static_cast<float>(head_dim));
}

GuardedTensor AttentionPrefill::on_gpu(int64_t rows, int64_t features,
                                       const std::vector<double>& values) const {
  GuardedTensor tensor(GetParam(), {rows, features}, Layout::contiguous, kGpu);
  set_values(tensor.view(), values);
  return tensor;
}

GuardedTensor AttentionPrefill::attend(const Cache& cache, const std::vector<StepRequest>& requests,
                                       int64_t rows, int64_t features, const std::vector<double>& q,
                                       const AttentionParams& params) const {
  const GuardedTensor k = cache.k.upload(GetParam());
  const GuardedTensor v = cache.v.upload(GetParam());
  const PagedStep step(requests, kGpu);
  GuardedTensor y(GetParam(), {rows, features}, Layout::contiguous, kGpu);
  attention(on_gpu(rows, features, q).view(), {.k = k.view(), .v = v.view()}, step.batch(), params,
            y.view(), gpu->exec);
  EXPECT_TRUE(y.guards_intact());
  return y;
}

// Both sides sum up the same products of rounded numbers; the GPU rounds the weights p in [0, 1] to
// the dtype before it multiplies them. With unit roundoff u each changes by u * p at most, or by
// 2^-25 where it is subnormal in f16, and sum p |v| / sum p <= 1 and sum p >= 1; so the result
// changes by u + 2^-25 * keys at most, before it is rounded itself. A quarter more is for the
// errors of the scores and of exp2, some 2^-20 of a weight, and for rounding a changed result.
void AttentionPrefill::expect_twin(const GuardedTensor& y, const Tensor& q, const KvLayer& kv,
                                   const std::vector<StepRequest>& requests,
                                   const AttentionParams& params) {
  const GuardedTensor k_twin = cpu_twin(kv.k);
  const GuardedTensor v_twin = cpu_twin(kv.v);
  const GuardedTensor y_twin(DType::f32, {q.size(0), q.size(1)});
  const PagedStep step(requests);
  attention(cpu_twin(q).view(), {.k = k_twin.view(), .v = v_twin.view()}, step.batch(), params,
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

}  // namespace sparsellm::testing
