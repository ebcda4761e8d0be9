#include "tests/kernels/overlapping_chain_gpu_fixture.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "kernels/base/cuda_state.cuh"
#include "kernels/kv_append.h"

namespace sparsellm::testing {

OverlappingChain::Requests::Requests(std::vector<int64_t> lengths, int64_t steps, Random& random)
    : lengths_(std::move(lengths)),
      most_pages_(pages_for(*std::max_element(lengths_.begin(), lengths_.end()) + steps)) {
  constexpr int64_t kOthers = 5;
  const int64_t pages = std::ssize(lengths_) * most_pages_ + kOthers;
  pages_ = random.permutation(static_cast<int32_t>(pages));
}

std::vector<StepRequest> OverlappingChain::Requests::prompts() const {
  std::vector<StepRequest> all;
  for (int64_t i = 0; i < std::ssize(lengths_); ++i) {
    const int64_t length = std::max<int64_t>(length_of(i), 0);
    all.push_back({.pages = pages_of(i, length), .kv_length = length, .rows = length});
  }
  return all;
}

std::vector<StepRequest> OverlappingChain::Requests::step(int64_t number, int64_t window) const {
  constexpr int32_t kNoPage = 1 << 30;
  std::vector<StepRequest> all;
  for (int64_t i = 0; i < std::ssize(lengths_); ++i) {
    const int64_t length = length_of(i) == kPadding ? 0 : length_of(i) + number + 1;
    all.push_back({.pages = pages_of(i, length), .kv_length = length, .rows = 1});
    const int64_t first_seen = window == 0 ? 0 : std::max<int64_t>(length - window, 0);
    std::fill_n(all.back().pages.begin(), first_seen / kPageSize, kNoPage);
  }
  return all;
}

std::vector<int32_t> OverlappingChain::Requests::pages_of(int64_t request, int64_t length) const {
  const auto first = pages_.begin() + request * most_pages_;
  return {first, first + pages_for(length)};
}

void OverlappingChain::append(const Tensor& kv, const PagedBatch& batch, const KvLayer& to,
                              ExecContext& exec) {
  const int64_t features = kv.size(1) / 2;
  kv_append(kv.columns(0, features), kv.columns(features, features), batch, to, exec);
}

bool OverlappingChain::has_nan(const Tensor& x) {
  return std::ranges::any_of(values_of(x), [](double value) { return std::isnan(value); });
}

GuardedTensor OverlappingChain::on_gpu(std::initializer_list<int64_t> sizes, double most) {
  return random.tensor(GetParam(), sizes, Layout::contiguous, -most, most, kGpu);
}

GuardedTensor OverlappingChain::result(DType dtype, int64_t rows, int64_t columns) {
  return {dtype, {rows, columns}, Layout::contiguous, kGpu};
}

ExecContext OverlappingChain::context(Workspace& workspace, Launches launches) {
  return {.device = kGpu,
          .workspace = workspace,
          .threads = gpu->threads,
          .cuda = &gpu->cuda,
          .launches = launches};
}

void OverlappingChain::called(const ExecContext& exec) const {
  if (exec.launches == Launches::ordinary) {
    gpu->cuda.synchronize();
  }
}

void OverlappingChain::expect_counters_of_zero() const {
  constexpr int64_t kCounters = 2 * CudaQueue::kCounters;
  const Tensor counters(gpu->cuda.state().counters.data(), DType::i32, {kCounters}, kGpu);
  EXPECT_EQ(values_of(counters), std::vector<double>(kCounters, 0.0));
}

}  // namespace sparsellm::testing
