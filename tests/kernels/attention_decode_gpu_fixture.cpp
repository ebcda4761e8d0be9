#include "tests/kernels/attention_decode_gpu_fixture.h"

#include <algorithm>
#include <cmath>

namespace sparsellm::testing {
namespace {

constexpr int32_t kNoPage = 1 << 30;

}  // namespace

AttentionDecode::Pool::Pool(DType dtype, int64_t kv_heads, int64_t head_dim, Random& random)
    : k_(dtype, {kPages, kv_heads, kPageSize, head_dim}, Layout::contiguous, kGpu),
      v_(dtype, {kPages, kv_heads, kPageSize, head_dim}, Layout::contiguous, kGpu),
      k_twin_(DType::f32, {kPages, kv_heads, kPageSize, head_dim}),
      v_twin_(DType::f32, {kPages, kv_heads, kPageSize, head_dim}) {
  for (int64_t page = 0; page < kPages; ++page) {
    const int64_t begin = page < kFirstBorder ? 0 : page - kFirstBorder + 1;
    const int64_t end =
        page < kFullPages || page >= kFirstBorder ? kPageSize : page - kFullPages + 1;
    for (int64_t i = 0; i < kv_heads * kPageSize * head_dim; ++i) {
      const int64_t slot = i / head_dim % kPageSize;
      const bool used = slot >= begin && slot < end;
      k.push_back(used ? random.uniform(-1.0, 1.0) : kNan);
      v.push_back(used ? random.uniform(-1.0, 1.0) : kNan);
    }
  }
  upload();
}

void AttentionDecode::Pool::upload() {
  set_values(k_.view(), k);
  set_values(v_.view(), v);
  set_values(k_twin_.view(), values_of(k_.view()));
  set_values(v_twin_.view(), values_of(v_.view()));
}

size_t AttentionDecode::Pool::index(int64_t page, int64_t kv_head, int64_t slot,
                                    int64_t dim) const {
  const Tensor& pages = k_.view();
  return static_cast<size_t>(((page * pages.size(1) + kv_head) * kPageSize + slot) * pages.size(3) +
                             dim);
}

StepRequest AttentionDecode::Pool::request(int64_t kv_length, Random& random, int64_t window) {
  StepRequest request{.pages = {}, .kv_length = kv_length, .rows = 1};
  for (int64_t i = 0; i < kv_length / kPageSize; ++i) {
    request.pages.push_back(static_cast<int32_t>(random.below(kFullPages)));
  }
  if (kv_length % kPageSize != 0) {
    request.pages.push_back(static_cast<int32_t>(kFullPages + kv_length % kPageSize - 1));
  }
  const int64_t first_seen = window == 0 ? 0 : std::max<int64_t>(kv_length - window, 0);
  const int64_t border = first_seen / kPageSize;
  std::fill_n(request.pages.begin(), border, kNoPage);
  // A last page that is not full has no NaN before the window.
  if (first_seen % kPageSize != 0 && border < kv_length / kPageSize) {
    request.pages[static_cast<size_t>(border)] =
        static_cast<int32_t>(kFirstBorder + first_seen % kPageSize - 1);
  }
  return request;
}

std::vector<StepRequest> AttentionDecode::Pool::requests(const std::vector<int64_t>& kv_lengths,
                                                         Random& random, int64_t window) {
  std::vector<StepRequest> all;
  for (int64_t kv_length : kv_lengths) {
    all.push_back(request(kv_length, random, window));
  }
  return all;
}

void AttentionDecode::decode(const Tensor& q, const KvLayer& kv,
                             const std::vector<StepRequest>& requests,
                             const AttentionParams& params, const Tensor& y) {
  const PagedStep step(requests, kGpu);
  const PagedBatch batch = step.decode_batch();
  const int64_t head_dim = kv.k.size(3);
  Workspace workspace(
      kGpu, attention_workspace_bytes(kGpu, q.size(1) / head_dim, kv.k.size(1), head_dim));
  ExecContext exec{
      .device = kGpu, .workspace = workspace, .threads = gpu->threads, .cuda = &gpu->cuda};
  attention(q, kv, batch, params, y, exec);
  gpu->cuda.synchronize();
}

Expected AttentionDecode::twin(const Tensor& q, const KvLayer& kv,
                               const std::vector<StepRequest>& requests,
                               const AttentionParams& params) {
  std::vector<StepRequest> real;
  for (const StepRequest& request : requests) {
    if (request.kv_length > 0) {
      real.push_back(request);
    }
  }
  const int64_t features = q.size(1);
  const auto rows = static_cast<int64_t>(real.size());
  const GuardedTensor q_twin = cpu_twin(q);
  const GuardedTensor q_real(DType::f32, {rows, features});
  const GuardedTensor y(DType::f32, {rows, features});
  int64_t row = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].kv_length > 0) {
      set_values(q_real.view().rows(row++, 1),
                 values_of(q_twin.view().rows(static_cast<int64_t>(i), 1)));
    }
  }
  const PagedStep step(real);
  attention(q_real.view(), kv, step.batch(), params, y.view(), cpu.exec);

  Expected expected;
  row = 0;
  for (const StepRequest& request : requests) {
    const bool padding = request.kv_length == 0;
    for (int64_t i = 0; i < features; ++i) {
      const double value = padding ? 0.0 : double{y.view().row<float>(row)[i]};
      expected.values.push_back(value);
      expected.magnitudes.push_back(padding ? 0.0 : std::abs(value) + 4.0);
    }
    row += padding ? 0 : 1;
  }
  return expected;
}

void AttentionDecode::expect_twin(const Pool& pool, const std::vector<StepRequest>& requests,
                                  const GuardedTensor& q, const AttentionParams& params,
                                  double factor) {
  const auto rows = static_cast<int64_t>(requests.size());
  const int64_t features = q.view().size(1);
  const GuardedTensor y(GetParam(), {rows, features}, next_layout(), kGpu);
  const GuardedTensor again(GetParam(), {rows, features}, Layout::contiguous, kGpu);
  decode(q.view(), pool.gpu(), requests, params, y.view());
  decode(q.view(), pool.gpu(), requests, params, again.view());
  EXPECT_TRUE(all_close(y.view(), twin(q.view(), pool.twin(), requests, params), factor));
  EXPECT_TRUE(y.guards_intact());
  EXPECT_TRUE(same_bits(again.view(), y.view()));
}

void AttentionDecode::expect_twin(const Pool& pool, const std::vector<int64_t>& kv_lengths,
                                  int64_t heads, double factor, int64_t window) {
  const int64_t head_dim = pool.gpu().k.size(3);
  const auto rows = static_cast<int64_t>(kv_lengths.size());
  SCOPED_TRACE(
      fmt::format("head_dim {}, {} heads, {} key/value heads, {} rows, kv_length {}, window {}",
                  head_dim, heads, pool.gpu().k.size(1), rows, kv_lengths[0], window));
  const std::vector<StepRequest> requests = Pool::requests(kv_lengths, random, window);
  const GuardedTensor q =
      random.tensor(GetParam(), {rows, heads * head_dim}, next_layout(), -3.0, 3.0, kGpu);
  expect_twin(pool, requests, q,
              {.scale = 1.0f / std::sqrt(static_cast<float>(head_dim)), .window = window}, factor);
}

std::vector<int64_t> AttentionDecode::mixed_lengths(int64_t rows) {
  constexpr int64_t kLengths[] = {1, 15, 0, 16, 17, 33};
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < rows; ++i) {
    lengths.push_back(i % 100 == 5 ? 3000 : i % 20 == 7 ? 300 : kLengths[i % 6]);
  }
  return lengths;
}

Layout AttentionDecode::next_layout() {
  return ++layouts_ % 3 == 0 ? Layout::contiguous : Layout::strided;
}

}  // namespace sparsellm::testing
