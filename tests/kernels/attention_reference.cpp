#include "tests/kernels/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace sparsellm::testing {
namespace {

constexpr int32_t kNoPage = 1 << 30;

// Where a row's token is in its page.
float* head_of_token(const Sequence& sequence, const Tensor& pool, int64_t token, int64_t head) {
  return pool.row<float>(sequence.pages[static_cast<size_t>(token / kPageSize)]) +
         (head * kPageSize + token % kPageSize) * pool.size(3);
}

void store(const Tensor& rows, const Sequence& sequence, const Tensor& pool) {
  const int64_t head_dim = pool.size(3);
  for (int64_t i = 0; i < rows.size(0); ++i) {
    for (int64_t head = 0; head < pool.size(1); ++head) {
      std::copy_n(rows.row<float>(i) + head * head_dim, head_dim,
                  head_of_token(sequence, pool, i, head));
    }
  }
}

}  // namespace

int64_t first_seen(int64_t kv_length, int64_t rows, int64_t window) {
  return window == 0 ? 0 : std::max<int64_t>(kv_length - rows - window + 1, 0);
}

StepRequest Sequence::request(int64_t kv_length, int64_t rows, int64_t window) const {
  const auto count = static_cast<std::ptrdiff_t>(pages_for(kv_length));
  StepRequest request{
      .pages = {pages.begin(), pages.begin() + count}, .kv_length = kv_length, .rows = rows};
  std::fill_n(request.pages.begin(),
              std::min<int64_t>(first_seen(kv_length, rows, window) / kPageSize, count), kNoPage);
  return request;
}

SequencePool::SequencePool(int64_t pages, int64_t kv_heads, int64_t head_dim, Random& random)
    : random_(random),
      k_(DType::f32, {pages, kv_heads, kPageSize, head_dim}),
      v_(DType::f32, {pages, kv_heads, kPageSize, head_dim}),
      free_(random.permutation(static_cast<int32_t>(pages))) {}

Sequence SequencePool::add(int64_t length) {
  const int64_t features = k_.view().size(1) * k_.view().size(3);
  return add(random_.tensor(DType::f32, {length, features}),
             random_.tensor(DType::f32, {length, features}));
}

Sequence SequencePool::add(GuardedTensor k, GuardedTensor v) {
  Sequence sequence{.k = std::move(k), .v = std::move(v), .pages = {}};
  for (int64_t i = 0; i < pages_for(sequence.length()); ++i) {
    sequence.pages.push_back(free_.back());
    free_.pop_back();
  }
  store(sequence.k.view(), sequence, k_.view());
  store(sequence.v.view(), sequence, v_.view());
  return sequence;
}

void SequencePool::poison(const Sequence& sequence, int64_t first_token) {
  for (const Tensor& pool : {k_.view(), v_.view()}) {
    for (int64_t token = 0; token < first_token; ++token) {
      for (int64_t head = 0; head < pool.size(1); ++head) {
        std::fill_n(head_of_token(sequence, pool, token, head), pool.size(3),
                    std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
}

void append_row(const float* q, int64_t heads, const Sequence& sequence, int64_t kv_heads,
                int64_t position, const AttentionParams& params, Expected& expected) {
  const int64_t head_dim = sequence.k.view().size(1) / kv_heads;
  const int64_t first = first_seen(position + 1, 1, params.window);
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t column = head / (heads / kv_heads) * head_dim;
    std::vector<double> weights;
    double largest = -std::numeric_limits<double>::infinity();
    double score_magnitude = 0.0;
    for (int64_t j = first; j <= position; ++j) {
      double score = 0.0;
      double magnitude = 0.0;
      for (int64_t d = 0; d < head_dim; ++d) {
        const double product = double{q[head * head_dim + d]} *
                               double{sequence.k.view().row<float>(j)[column + d]} *
                               double{params.scale};
        score += product;
        magnitude += std::abs(product);
      }
      weights.push_back(score);
      largest = std::max(largest, score);
      score_magnitude = std::max(score_magnitude, magnitude);
    }
    double total = 0.0;
    for (double& weight : weights) {
      weight = std::exp(weight - largest);
      total += weight;
    }
    for (int64_t d = 0; d < head_dim; ++d) {
      double value = 0.0;
      double magnitude = 0.0;
      for (int64_t j = first; j <= position; ++j) {
        const double part = weights[static_cast<size_t>(j - first)] / total *
                            double{sequence.v.view().row<float>(j)[column + d]};
        value += part;
        magnitude += std::abs(part);
      }
      expected.values.push_back(value);
      expected.magnitudes.push_back(magnitude * (1.0 + 2.0 * score_magnitude));
    }
  }
}

}  // namespace sparsellm::testing
