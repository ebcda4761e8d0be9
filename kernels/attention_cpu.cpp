#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/attention_device.h"
#include "kernels/base/simd.h"

namespace sparsellm {
namespace {

static_assert(kPageSize % F32x8::kWidth == 0);

// Positions times head_dim that are worth the attention of another thread.
constexpr int64_t kMinWorkPerRange = 16 << 10;

// Softmax-weighted sum of values, kept up to date page by page (online softmax, Milakov and
// Gimelshein 2018): `values` and `weight` are relative to the largest score so far.
struct RunningSum {
  float largest = -std::numeric_limits<float>::infinity();
  float weight = 0.0f;
  F32x8 values[kMaxHeadDim / F32x8::kWidth];
};

// Tokens [begin, end) of a request or of a page. A page but the first of a window begins with the
// first of its tokens: known at compile time, this is worth a quarter of the time.
template <class Begin>
struct SeenTokens {
  Begin begin;
  int64_t end;
};
using FromFirst = std::integral_constant<int64_t, 0>;

// Scores of the first `count` tokens of a page; the rest become -infinity.
template <class T>
void page_scores(const float* q, const T* keys, int64_t head_dim, int64_t count, float scale,
                 float (&scores)[kPageSize]) {
  for (int64_t j = 0; j < count; j += 4) {
    // Rows beyond `count` may hold anything; their scores are replaced below.
    const T* rows = keys + j * head_dim;
    F32x8 sums[4] = {F32x8::zero(), F32x8::zero(), F32x8::zero(), F32x8::zero()};
    for (int64_t i = 0; i < head_dim; i += F32x8::kWidth) {
      const F32x8 qs = F32x8::load(q + i);
      for (int r = 0; r < 4; ++r) {
        sums[r] = fma(qs, F32x8::load(rows + r * head_dim + i), sums[r]);
      }
    }
    sum4(sums[0], sums[1], sums[2], sums[3], scores + j);
  }
  for (int64_t j = 0; j < kPageSize; ++j) {
    scores[j] = j < count ? scores[j] * scale : -std::numeric_limits<float>::infinity();
  }
}

// A page of one head is 2 KiB or more, and the next one is elsewhere: the hardware does not
// prefetch across its border.
template <class T>
void prefetch_page(const T* page, int64_t head_dim) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < kPageSize * head_dim; i += kLine) {
    __builtin_prefetch(page + i);
  }
}

template <class T, class Begin>
void add_page(const float* q, const T* keys, const T* values, int64_t head_dim,
              const SeenTokens<Begin>& seen, float scale, RunningSum& sum) {
  float scores[kPageSize];
  page_scores(q, keys, head_dim, seen.end, scale, scores);
  std::fill_n(scores, int64_t{seen.begin}, -std::numeric_limits<float>::infinity());

  const float page_largest =
      max_element(max(F32x8::load(scores), F32x8::load(scores + F32x8::kWidth)));
  // A NaN among the scores must not get lost in the comparison: it stays in its weight below.
  const float largest = std::max(sum.largest, page_largest);
  if (largest > sum.largest) {
    const float before =
        sum.weight == 0.0f ? 0.0f : max_element(exp(F32x8::all(sum.largest - largest)));
    sum.weight *= before;
    for (int64_t i = 0; i < head_dim / F32x8::kWidth; ++i) {
      sum.values[i] = sum.values[i] * F32x8::all(before);
    }
    sum.largest = largest;
  }
  for (int64_t j = 0; j < kPageSize; j += F32x8::kWidth) {
    exp(F32x8::load(scores + j) - F32x8::all(largest)).store(scores + j);
  }
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    sum.weight += scores[j];
  }
  for (int64_t i = 0; i < head_dim / F32x8::kWidth; ++i) {
    F32x8 total = sum.values[i];
    for (int64_t j = seen.begin; j < seen.end; ++j) {
      const F32x8 value = F32x8::load(values + j * head_dim + i * F32x8::kWidth);
      total = fma(F32x8::all(scores[j]), value, total);
    }
    sum.values[i] = total;
  }
}

// One row and one query head: `pages` names the request's pages, `seen` the tokens that the row
// sees.
template <class T>
void attend(const float* q, const KvLayer& kv, const int32_t* pages, int64_t kv_head,
            const SeenTokens<int64_t>& seen, float scale, float* y) {
  const int64_t head_dim = kv.k.size(3);
  RunningSum sum;
  std::fill_n(sum.values, head_dim / F32x8::kWidth, F32x8::zero());
  const int64_t head_offset = kv_head * kPageSize * head_dim;
  const auto page_of = [&](const Tensor& pool, int64_t first) {
    return pool.row<T>(pages[first / kPageSize]) + head_offset;
  };
  int64_t first = seen.begin / kPageSize * kPageSize;
  if (seen.begin > first) {
    const SeenTokens<int64_t> border{seen.begin - first, std::min(kPageSize, seen.end - first)};
    add_page(q, page_of(kv.k, first), page_of(kv.v, first), head_dim, border, scale, sum);
    first += kPageSize;
  }
  for (; first < seen.end; first += kPageSize) {
    if (first + kPageSize < seen.end) {
      prefetch_page(page_of(kv.k, first + kPageSize), head_dim);
      prefetch_page(page_of(kv.v, first + kPageSize), head_dim);
    }
    const SeenTokens<FromFirst> page{{}, std::min(kPageSize, seen.end - first)};
    add_page(q, page_of(kv.k, first), page_of(kv.v, first), head_dim, page, scale, sum);
  }
  const F32x8 weight = F32x8::all(sum.weight);
  for (int64_t i = 0; i < head_dim / F32x8::kWidth; ++i) {
    (sum.values[i] / weight).store(y + i * F32x8::kWidth);
  }
}

SeenTokens<int64_t> seen_from(int64_t position, int64_t window) {
  return {.begin = window == 0 ? 0 : std::max<int64_t>(position - window + 1, 0),
          .end = position + 1};
}

// The request that a row belongs to: the last r with query_start[r] <= row.
int64_t request_of_row(const PagedBatch& batch, int64_t row) {
  const int32_t* begin = batch.query_start.data<int32_t>();
  const int32_t* end = begin + batch.query_start.size(0);
  return std::upper_bound(begin, end, static_cast<int32_t>(row)) - begin - 1;
}

}  // namespace

void attention_cpu(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
                   const AttentionParams& params, Tensor y, ExecContext& ctx) {
  const int64_t kv_heads = kv.k.size(1);
  const int64_t head_dim = kv.k.size(3);
  const int64_t heads = q.size(1) / head_dim;
  const int64_t queries_per_kv_head = heads / kv_heads;
  const int32_t* positions = batch.positions.data<int32_t>();
  const int32_t* kv_lengths = batch.kv_length.data<int32_t>();
  const int64_t longest = *std::max_element(kv_lengths, kv_lengths + batch.requests());
  const SeenTokens<int64_t> most = seen_from(longest - 1, params.window);
  const int64_t grain =
      kMinWorkPerRange / std::max<int64_t>((most.end - most.begin) * head_dim, 1) + 1;
  visit_float(kv.k.dtype(), [&]<class T>(T) {
    ctx.threads.parallel_for(batch.tokens() * heads, grain, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t row = item / heads;
        const int64_t head = item % heads;
        attend<T>(q.row<float>(row) + head * head_dim, kv,
                  batch.page_table.row<int32_t>(request_of_row(batch, row)),
                  head / queries_per_kv_head, seen_from(positions[row], params.window),
                  params.scale, y.row<float>(row) + head * head_dim);
      }
    });
  });
}

}  // namespace sparsellm
