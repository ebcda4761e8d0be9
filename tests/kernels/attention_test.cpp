#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// A request's keys and values in plain rows, and its pages.
struct Sequence {
  GuardedTensor k;  // [length, kv_heads * head_dim]
  GuardedTensor v;
  std::vector<int32_t> pages;

  int64_t length() const { return k.view().size(0); }
  StepRequest request(int64_t kv_length, int64_t rows) const {
    const auto count = static_cast<std::ptrdiff_t>(pages_for(kv_length));
    return {.pages = {pages.begin(), pages.begin() + count}, .kv_length = kv_length, .rows = rows};
  }
};

// A pool of pages with sequences in it, in pages taken in random order; what no token uses is NaN.
class Pool {
 public:
  Pool(int64_t pages, int64_t kv_heads, int64_t head_dim, Random& random)
      : random_(random),
        k_(DType::f32, {pages, kv_heads, kPageSize, head_dim}),
        v_(DType::f32, {pages, kv_heads, kPageSize, head_dim}),
        free_(random.permutation(static_cast<int32_t>(pages))) {}

  KvLayer layer() const { return {.k = k_.view(), .v = v_.view()}; }

  Sequence add(int64_t length) {
    const int64_t features = k_.view().size(1) * k_.view().size(3);
    return add(random_.tensor(DType::f32, {length, features}),
               random_.tensor(DType::f32, {length, features}));
  }

  Sequence add(GuardedTensor k, GuardedTensor v) {
    Sequence sequence{.k = std::move(k), .v = std::move(v), .pages = {}};
    for (int64_t i = 0; i < pages_for(sequence.length()); ++i) {
      sequence.pages.push_back(free_.back());
      free_.pop_back();
    }
    store(sequence.k.view(), sequence.pages, k_.view());
    store(sequence.v.view(), sequence.pages, v_.view());
    return sequence;
  }

 private:
  static void store(const Tensor& rows, const std::vector<int32_t>& pages, const Tensor& pool) {
    const int64_t head_dim = pool.size(3);
    for (int64_t i = 0; i < rows.size(0); ++i) {
      float* page = pool.row<float>(pages[static_cast<size_t>(i / kPageSize)]);
      for (int64_t j = 0; j < rows.size(1); ++j) {
        page[(j / head_dim * kPageSize + i % kPageSize) * head_dim + j % head_dim] =
            rows.row<float>(i)[j];
      }
    }
  }

  Random& random_;
  GuardedTensor k_;
  GuardedTensor v_;
  std::vector<int32_t> free_;
};

// One row at `position`: softmax over all scores at once. An error of a score s by a part epsilon
// of sum |q||k| changes its weight by that part.
void append_row(const float* q, int64_t heads, const Sequence& sequence, int64_t kv_heads,
                int64_t position, double scale, Expected& expected) {
  const int64_t head_dim = sequence.k.view().size(1) / kv_heads;
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t column = head / (heads / kv_heads) * head_dim;
    std::vector<double> weights;
    double largest = -std::numeric_limits<double>::infinity();
    double score_magnitude = 0.0;
    for (int64_t j = 0; j <= position; ++j) {
      double score = 0.0;
      double magnitude = 0.0;
      for (int64_t d = 0; d < head_dim; ++d) {
        const double product = double{q[head * head_dim + d]} *
                               double{sequence.k.view().row<float>(j)[column + d]} * scale;
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
      for (int64_t j = 0; j <= position; ++j) {
        const double part = weights[static_cast<size_t>(j)] / total *
                            double{sequence.v.view().row<float>(j)[column + d]};
        value += part;
        magnitude += std::abs(part);
      }
      expected.values.push_back(value);
      expected.magnitudes.push_back(magnitude * (1.0 + 2.0 * score_magnitude));
    }
  }
}

struct Heads {
  int64_t heads;
  int64_t kv_heads;
};

TEST(Attention, PrefillAndDecodeOfSeveralRequests) {
  Random random(61);
  CpuContext contexts[] = {CpuContext(1), CpuContext(2), CpuContext(5)};
  size_t combination = 0;
  for (const Heads& shape : {Heads{4, 4}, Heads{8, 2}, Heads{6, 1}}) {
    for (int64_t head_dim : {8, 64, 80, 96, 128, 256}) {
      for (Layout layout : {Layout::contiguous, Layout::strided}) {
        CpuContext& cpu = contexts[combination++ % 3];
        SCOPED_TRACE(fmt::format("{} threads, {} heads on {} of {}", cpu.threads.size(),
                                 shape.heads, shape.kv_heads, head_dim));
        Pool pool(40, shape.kv_heads, head_dim, random);
        struct Part {
          Sequence sequence;
          int64_t kv_length;
          int64_t rows;
        };
        std::vector<Part> parts;
        parts.push_back({pool.add(1), 1, 1});      // a prompt of one token
        parts.push_back({pool.add(16), 16, 16});   // a prompt of one page
        parts.push_back({pool.add(17), 17, 1});    // decode, one token on the last page
        parts.push_back({pool.add(33), 33, 0});    // nothing in this step
        parts.push_back({pool.add(40), 37, 13});   // a later chunk of a prompt
        parts.push_back({pool.add(50), 50, 50});   // a prompt
        parts.push_back({pool.add(100), 100, 1});  // decode

        std::vector<StepRequest> requests;
        requests.reserve(parts.size());
        for (const Part& part : parts) {
          requests.push_back(part.sequence.request(part.kv_length, part.rows));
        }
        const PagedStep step(requests);
        const int64_t features = shape.heads * head_dim;
        const int64_t tokens = step.batch().tokens();
        const GuardedTensor q = random.tensor(DType::f32, {tokens, features}, layout, -2.0, 2.0);
        const GuardedTensor y(DType::f32, {tokens, features}, layout);
        const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
        attention(q.view(), pool.layer(), step.batch(), scale, y.view(), cpu.exec);

        Expected expected;
        int64_t row = 0;
        for (const Part& part : parts) {
          for (int64_t i = part.kv_length - part.rows; i < part.kv_length; ++i) {
            append_row(q.view().row<float>(row++), shape.heads, part.sequence, shape.kv_heads, i,
                       double{scale}, expected);
          }
        }
        EXPECT_TRUE(all_close(y.view(), expected, 1.0));
        EXPECT_TRUE(y.guards_intact());
      }
    }
  }
}

// Pages of f16 give what those of f32 with the same values give, bit by bit.
TEST(Attention, PagesOfF16) {
  Random random(68);
  for (int64_t head_dim : {8, 64, 80, 256}) {
    CpuContext cpu(2);
    Pool pool(8, 2, head_dim, random);
    const int64_t features = 2 * head_dim;
    const GuardedTensor k = random.tensor(DType::f16, {50, features});
    const GuardedTensor v = random.tensor(DType::f16, {50, features});
    GuardedTensor wide_k(DType::f32, {50, features});
    GuardedTensor wide_v(DType::f32, {50, features});
    set_values(wide_k.view(), values_of(k.view()));
    set_values(wide_v.view(), values_of(v.view()));
    const Sequence sequence = pool.add(std::move(wide_k), std::move(wide_v));
    const KvLayer wide = pool.layer();
    const std::initializer_list<int64_t> sizes = {wide.k.size(0), 2, kPageSize, head_dim};
    const GuardedTensor k_pages(DType::f16, sizes);
    const GuardedTensor v_pages(DType::f16, sizes);
    set_values(k_pages.view(), values_of(wide.k));
    set_values(v_pages.view(), values_of(wide.v));
    const PagedStep step({sequence.request(50, 50)});
    const GuardedTensor q = random.tensor(DType::f32, {50, 2 * features}, Layout::strided);
    const GuardedTensor expected(DType::f32, {50, 2 * features});
    const GuardedTensor y(DType::f32, {50, 2 * features}, Layout::strided);
    attention(q.view(), wide, step.batch(), 0.1f, expected.view(), cpu.exec);
    attention(q.view(), {.k = k_pages.view(), .v = v_pages.view()}, step.batch(), 0.1f, y.view(),
              cpu.exec);
    EXPECT_TRUE(same_bits(y.view(), expected.view())) << head_dim;
  }
}

// A prompt of 75 tokens in chunks, in other pages, in company, with more threads: the same bits.
TEST(Attention, ARowDependsOnItsOwnRequestAlone) {
  Random random(62);
  CpuContext one(1);
  CpuContext five(5);
  constexpr int64_t kTokens = 75;
  constexpr int64_t kFeatures = 4 * 80;
  Pool pool(30, 2, 80, random);
  const Sequence sequence = pool.add(kTokens);
  GuardedTensor same_k(DType::f32, {kTokens, 2 * 80});
  GuardedTensor same_v(DType::f32, {kTokens, 2 * 80});
  set_values(same_k.view(), values_of(sequence.k.view()));
  set_values(same_v.view(), values_of(sequence.v.view()));
  const Sequence copy = pool.add(std::move(same_k), std::move(same_v));
  const Sequence company = pool.add(60);
  const GuardedTensor q = random.tensor(DType::f32, {kTokens, kFeatures});
  const GuardedTensor whole(DType::f32, {kTokens, kFeatures});
  const PagedStep prefill({sequence.request(kTokens, kTokens)});
  attention(q.view(), pool.layer(), prefill.batch(), 0.1f, whole.view(), one.exec);

  for (int64_t chunk : {1, 7, 16, 30, 75}) {
    for (CpuContext* cpu : {&one, &five}) {
      const GuardedTensor chunked(DType::f32, {kTokens, kFeatures});
      for (int64_t first = 0; first < kTokens; first += chunk) {
        const int64_t rows = std::min(chunk, kTokens - first);
        const int64_t before = first % 5;  // rows of the company in front
        const int64_t tokens = before + rows + 1;
        const PagedStep step({company.request(20, before), copy.request(first + rows, rows),
                              company.request(60, 1)});
        const GuardedTensor queries = random.tensor(DType::f32, {tokens, kFeatures});
        set_values(queries.view().rows(before, rows), values_of(q.view().rows(first, rows)));
        const GuardedTensor y(DType::f32, {tokens, kFeatures});
        attention(queries.view(), pool.layer(), step.batch(), 0.1f, y.view(), cpu->exec);
        set_values(chunked.view().rows(first, rows), values_of(y.view().rows(before, rows)));
      }
      EXPECT_TRUE(same_bits(chunked.view(), whole.view()))
          << "chunks of " << chunk << ", " << cpu->threads.size() << " threads";
    }
  }
}

// Scores of up to +-20,000 whose products and sums are whole numbers: nothing overflows, and
// differences of scores are exact.
TEST(Attention, LargeScores) {
  Random random(63);
  CpuContext cpu;
  for (double offset : {0.0, -20000.0, 20000.0}) {
    Pool pool(10, 1, 64, random);
    GuardedTensor k(DType::f32, {40, 64});
    std::vector<double> keys(40 * 64, 0.0);
    for (size_t j = 0; j < 40; ++j) {
      keys[j * 64] = offset;
      keys[j * 64 + 63] = static_cast<double>(random.below(9)) - 4.0;
    }
    set_values(k.view(), keys);
    const Sequence sequence = pool.add(std::move(k), random.tensor(DType::f32, {40, 64}));
    const PagedStep step({sequence.request(40, 40)});
    const GuardedTensor q(DType::f32, {40, 64});
    set_values(q.view(), std::vector<double>(40 * 64, 1.0));
    const GuardedTensor y(DType::f32, {40, 64});
    attention(q.view(), pool.layer(), step.batch(), 1.0f, y.view(), cpu.exec);
    Expected expected;
    for (int64_t i = 0; i < 40; ++i) {
      append_row(q.view().row<float>(i), 1, sequence, 1, i, 1.0, expected);
    }
    for (size_t i = 0; i < expected.values.size(); ++i) {
      expected.magnitudes[i] = 2.0;  // the scores are exact: only weights and values round
    }
    EXPECT_TRUE(all_close(y.view(), expected, 2.0)) << offset;
  }
}

TEST(Attention, OneScoreFarAboveTheOthersPicksItsValue) {
  Random random(64);
  CpuContext cpu;
  for (int64_t winner : {0, 15, 16, 40, 49}) {
    Pool pool(10, 1, 64, random);
    GuardedTensor k = random.tensor(DType::f32, {50, 64});
    std::fill_n(k.view().row<float>(winner), 64, 1e15f);
    const Sequence sequence = pool.add(std::move(k), random.tensor(DType::f32, {50, 64}));
    const PagedStep step({sequence.request(50, 1)});
    const GuardedTensor q = random.tensor(DType::f32, {1, 64}, Layout::contiguous, 1.0, 1e15);
    const GuardedTensor y(DType::f32, {1, 64});
    attention(q.view(), pool.layer(), step.batch(), 1.0f, y.view(), cpu.exec);
    EXPECT_TRUE(all_close(y.view(), values_of(sequence.v.view().rows(winner, 1)),
                          std::vector<double>(64, 1e-30)))
        << winner;
  }
}

TEST(Attention, NanStaysInItsHeadAndItsRequest) {
  Random random(65);
  CpuContext cpu(2);
  Pool pool(10, 2, 16, random);
  const Sequence sick = pool.add(20);
  const Sequence healthy = pool.add(20);
  const KvLayer layer = pool.layer();
  // The key of token 18, key/value head 1, of the first request.
  layer.k.row<float>(sick.pages[1])[(1 * kPageSize + 2) * 16 + 5] =
      std::numeric_limits<float>::quiet_NaN();
  const PagedStep step({sick.request(20, 3), healthy.request(20, 1)});
  const GuardedTensor q = random.tensor(DType::f32, {4, 4 * 16});
  const GuardedTensor y(DType::f32, {4, 4 * 16});
  attention(q.view(), layer, step.batch(), 0.25f, y.view(), cpu.exec);
  for (int64_t row = 0; row < 4; ++row) {  // positions 17, 18, 19 and the healthy one
    for (int64_t i = 0; i < 64; ++i) {
      const bool sees_it = (row == 1 || row == 2) && i >= 32;
      EXPECT_EQ(std::isnan(y.view().row<float>(row)[i]), sees_it) << row << " " << i;
    }
  }
}

class AttentionErrors : public ::testing::Test {
 protected:
  void attend(const Tensor& q, const Tensor& y) {
    attention(q, {.k = k_pages_, .v = k_pages_}, batch_, 1.0f, y, cpu_.exec);
  }

  CpuContext cpu_;
  GuardedTensor pages_{DType::f32, {4, 2, kPageSize, 8}};
  Tensor k_pages_ = pages_.view();
  PagedStep step_{
      {{.pages = {3, 1}, .kv_length = 20, .rows = 4}, {.pages = {0}, .kv_length = 3, .rows = 1}}};
  PagedBatch batch_ = step_.batch();
  GuardedTensor q_{DType::f32, {5, 32}};
  GuardedTensor y_{DType::f32, {5, 32}};
};

TEST_F(AttentionErrors, RefusesMismatchedOperands) {
  EXPECT_NO_THROW(attend(q_.view(), y_.view()));
  const GuardedTensor four_rows(DType::f32, {4, 32});
  const GuardedTensor three_heads(DType::f32, {5, 24});
  const GuardedTensor half_head(DType::f32, {5, 36});
  const GuardedTensor f16(DType::f16, {5, 32});
  EXPECT_TRUE(throws_error([&] { attend(four_rows.view(), y_.view()); }, "[4, 32]"));
  EXPECT_TRUE(throws_error([&] { attend(q_.view(), four_rows.view()); }, "[4, 32]"));
  EXPECT_TRUE(throws_error([&] { attend(three_heads.view(), three_heads.view()); }, "[5, 24]"));
  EXPECT_TRUE(throws_error([&] { attend(half_head.view(), half_head.view()); }, "[5, 36]"));
  EXPECT_TRUE(throws_error([&] { attend(f16.view(), y_.view()); }, "f16"));
  EXPECT_TRUE(throws_error([&] { attend(q_.view(), f16.view()); }, "f16"));
  EXPECT_TRUE(throws_error([&] { attend(Tensor(), y_.view()); }, "attention"));
  EXPECT_TRUE(throws_error([&] { attend(q_.view(), q_.view()); }, "overlap"));
  for (int64_t head_dim : {4, 12, 264}) {
    const GuardedTensor pages(DType::f32, {4, 1, kPageSize, head_dim});
    const GuardedTensor q(DType::f32, {5, head_dim});
    const GuardedTensor y(DType::f32, {5, head_dim});
    k_pages_ = pages.view();
    EXPECT_TRUE(
        throws_error([&] { attend(q.view(), y.view()); }, fmt::format("head_dim {}", head_dim)));
  }
  const GuardedTensor bf16_pages(DType::bf16, {4, 2, kPageSize, 8});
  k_pages_ = bf16_pages.view();
  EXPECT_TRUE(
      throws_error([&] { attend(q_.view(), y_.view()); }, "q and the pages are f32 and bf16"));
  k_pages_ = Tensor();
  EXPECT_TRUE(throws_error([&] { attend(q_.view(), y_.view()); }, "attention"));
}

TEST_F(AttentionErrors, TheTablesMustAgreeAndStayInRange) {
  const PagedStep bad_page(
      {{.pages = {3, 4}, .kv_length = 20, .rows = 4}, {.pages = {0}, .kv_length = 3, .rows = 1}});
  batch_ = bad_page.batch();
  EXPECT_TRUE(
      throws_error([&] { attend(q_.view(), y_.view()); }, "attention: request 0 uses page 4"));
  const GuardedTensor positions = i32_tensor({16, 17, 18, 19, 9});
  batch_ = step_.batch();
  batch_.positions = positions.view();
  EXPECT_TRUE(throws_error([&] { attend(q_.view(), y_.view()); }, "row 4 stands at position 9"));
  const GuardedTensor kv_length = i32_tensor({20, 0});
  batch_ = step_.batch();
  batch_.kv_length = kv_length.view();
  EXPECT_TRUE(throws_error([&] { attend(q_.view(), y_.view()); }, "kv_length 0"));
}

}  // namespace
}  // namespace sparsellm
