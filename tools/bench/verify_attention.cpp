#include "tools/bench/verify_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/base/convert.h"
#include "kernels/base/error.h"
#include "tools/bench/verify_product_device.h"

namespace sparsellm {
namespace {

// Elements of a contiguous tensor, the first of which is number `begin`.
std::vector<float> read_floats(const Tensor& x, int64_t begin, int64_t count) {
  const int64_t size = size_of(x.dtype());
  std::vector<std::byte> bytes(static_cast<size_t>(count * size));
  copy_bytes({}, bytes.data(), x.device(), static_cast<const std::byte*>(x.raw()) + begin * size,
             count * size);
  std::vector<float> values(static_cast<size_t>(count));
  convert(x.dtype(), bytes.data(), DType::f32, reinterpret_cast<std::byte*>(values.data()), count);
  return values;
}

std::vector<int32_t> read_indices(const Tensor& x) {
  require(x.contiguous(), "the reference of attention: a table {} with gaps", x.shape_string());
  std::vector<int32_t> values(static_cast<size_t>(x.element_count()));
  copy_bytes({}, values.data(), x.device(), x.data<int32_t>(), x.bytes());
  return values;
}

// Of a head's first `tokens` tokens: [tokens, head_dim].
std::vector<float> read_pages(const Tensor& pool, std::span<const int32_t> pages, int64_t tokens,
                              int64_t kv_head) {
  const int64_t head_dim = pool.size(3);
  std::vector<float> values;
  for (int64_t first = 0; first < tokens; first += kPageSize) {
    const int64_t page = pages[static_cast<size_t>(first / kPageSize)];
    const std::vector<float> part =
        read_floats(pool, (page * pool.size(1) + kv_head) * kPageSize * head_dim,
                    std::min(kPageSize, tokens - first) * head_dim);
    values.insert(values.end(), part.begin(), part.end());
  }
  return values;
}

// softmax(scale * q K^T) V, and what its error may be.
void attend(std::span<const float> q, std::span<const float> k, std::span<const float> v,
            double scale, const Rounding& rounding, std::vector<double>& values,
            std::vector<double>& tolerances) {
  const size_t head_dim = q.size();
  const size_t tokens = k.size() / head_dim;
  std::vector<double> weights(tokens);
  double score_magnitude = 0.0;  // the largest scale * sum |q||k|
  for (size_t t = 0; t < tokens; ++t) {
    double magnitude = 0.0;
    for (size_t i = 0; i < head_dim; ++i) {
      const double product = scale * double{q[i]} * double{k[t * head_dim + i]};
      weights[t] += product;
      magnitude += std::abs(product);
    }
    score_magnitude = std::max(score_magnitude, magnitude);
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double weight_sum = 0.0;
  values.assign(head_dim, 0.0);
  std::vector<double> magnitudes(head_dim);  // sums of weight * |v|
  std::vector<double> unweighted(head_dim);  // sums of |v|
  for (size_t t = 0; t < tokens; ++t) {
    const double weight = std::exp(weights[t] - largest);
    weight_sum += weight;
    for (size_t i = 0; i < head_dim; ++i) {
      const double element = v[t * head_dim + i];
      values[i] += weight * element;
      magnitudes[i] += weight * std::abs(element);
      unweighted[i] += std::abs(element);
    }
  }
  // A weight is off by the error of its score, as is the sum that divides it, and by its rounding,
  // which is an absolute error below the normal numbers of the dtype; then come the errors of the
  // sums.
  const double relative = rounding.relative + 2.0 * double{kSumTolerance} * (1.0 + score_magnitude);
  for (size_t i = 0; i < head_dim; ++i) {
    values[i] /= weight_sum;
    tolerances.push_back((relative * magnitudes[i] + rounding.absolute * unweighted[i]) /
                             weight_sum +
                         rounding.relative * std::abs(values[i]) + rounding.absolute);
  }
}

}  // namespace

AttentionReference::AttentionReference(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
                                       const AttentionParams& params,
                                       std::span<const AttentionPlace> places) {
  require(q.contiguous() && kv.k.contiguous() && kv.v.contiguous(),
          "the reference of attention: q {} or the pages {} have gaps", q.shape_string(),
          kv.k.shape_string());
  const int64_t head_dim = kv.k.size(3);
  const int64_t group = q.size(1) / head_dim / kv.k.size(1);
  const std::vector<int32_t> query_start = read_indices(batch.query_start);
  const std::vector<int32_t> kv_length = read_indices(batch.kv_length);
  const std::vector<int32_t> page_table = read_indices(batch.page_table);
  const auto table_pages = static_cast<size_t>(batch.page_table.size(1));
  for (const AttentionPlace& place : places) {
    const auto request = static_cast<size_t>(place.request);
    Result& result = results_.emplace_back();
    result.row = query_start[request] + place.row;
    result.column = place.head * head_dim;
    const int64_t rows = query_start[request + 1] - query_start[request];
    const int64_t tokens = kv_length[request] - rows + place.row + 1;  // that the row sees
    const int64_t first = params.window > 0 ? std::max<int64_t>(tokens - params.window, 0) : 0;
    const auto pages = std::span(page_table).subspan(request * table_pages, table_pages);
    const std::vector<float> k = read_pages(kv.k, pages, tokens, place.head / group);
    const std::vector<float> v = read_pages(kv.v, pages, tokens, place.head / group);
    const auto unseen = static_cast<size_t>(first * head_dim);
    attend(read_floats(q, result.row * q.size(1) + result.column, head_dim),
           std::span(k).subspan(unseen), std::span(v).subspan(unseen), params.scale,
           rounding_of(q.dtype()), result.values, result.tolerances);
  }
}

double AttentionReference::worst_error(const Tensor& y) const {
  require(y.contiguous(), "the reference of attention: y {} has gaps", y.shape_string());
  double worst = 0.0;
  for (const Result& result : results_) {
    const std::vector<float> values =
        read_floats(y, result.row * y.size(1) + result.column, std::ssize(result.values));
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = std::abs(values[i] - result.values[i]) / result.tolerances[i];
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
  }
  return worst;
}

}  // namespace sparsellm
