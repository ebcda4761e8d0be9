#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>

#include "tests/kernels/attention_reference.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

struct Heads {
  int64_t heads;
  int64_t kv_heads;
};

// Of a request whose pages hold NaN where the window reaches nothing, and are out of range where it
// reaches no token of them.
struct Part {
  int64_t kv_length;
  int64_t rows;
};

class PartsOfAStep {
 public:
  PartsOfAStep(const Heads& heads, int64_t head_dim, Random& random)
      : heads_(heads), head_dim_(head_dim), random_(random) {}

  void expect_reference(std::span<const Part> parts, int64_t window, Layout layout,
                        CpuContext& cpu) {
    SCOPED_TRACE(fmt::format("{} threads, {} heads on {} of {}, window {}", cpu.threads.size(),
                             heads_.heads, heads_.kv_heads, head_dim_, window));
    SequencePool pool(40, heads_.kv_heads, head_dim_, random_);
    std::vector<Sequence> sequences;
    std::vector<StepRequest> requests;
    for (const Part& part : parts) {
      // Some more tokens, which this step has not come to.
      sequences.push_back(pool.add(part.kv_length + part.rows % 4));
      pool.poison(sequences.back(), first_seen(part.kv_length, part.rows, window));
      requests.push_back(sequences.back().request(part.kv_length, part.rows, window));
    }
    const PagedStep step(requests);
    const int64_t features = heads_.heads * head_dim_;
    const int64_t tokens = step.batch().tokens();
    const GuardedTensor q = random_.tensor(DType::f32, {tokens, features}, layout, -2.0, 2.0);
    const GuardedTensor y(DType::f32, {tokens, features}, layout);
    const AttentionParams params{.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_)),
                                 .window = window};
    attention(q.view(), pool.layer(), step.batch(), params, y.view(), cpu.exec);

    Expected expected;
    int64_t row = 0;
    for (size_t r = 0; r < parts.size(); ++r) {
      for (int64_t i = parts[r].kv_length - parts[r].rows; i < parts[r].kv_length; ++i) {
        append_row(q.view().row<float>(row++), heads_.heads, sequences[r], heads_.kv_heads, i,
                   params, expected);
      }
    }
    EXPECT_TRUE(all_close(y.view(), expected, 1.0));
    EXPECT_TRUE(y.guards_intact());
  }

 private:
  Heads heads_;
  int64_t head_dim_;
  Random& random_;
};

// Prompts of one token and of one page, one token on the last page, nothing in this step, a later
// chunk of a prompt, a prompt, and another token.
constexpr Part kParts[] = {{1, 1}, {16, 16}, {17, 1}, {33, 0}, {37, 13}, {50, 50}, {100, 1}};

TEST(Attention, PrefillAndDecodeOfSeveralRequests) {
  Random random(61);
  CpuContext contexts[] = {CpuContext(1), CpuContext(2), CpuContext(5)};
  size_t combination = 0;
  for (const Heads& shape : {Heads{4, 4}, Heads{8, 2}, Heads{6, 1}}) {
    for (int64_t head_dim : {8, 64, 80, 96, 128, 256}) {
      for (Layout layout : {Layout::contiguous, Layout::strided}) {
        PartsOfAStep(shape, head_dim, random)
            .expect_reference(kParts, 0, layout, contexts[combination++ % 3]);
      }
    }
  }
}

// Of one token, of less than a page, of a page, of a little more, of whole pages, and of more than
// all tokens.
TEST(Attention, Windows) {
  Random random(69);
  CpuContext contexts[] = {CpuContext(1), CpuContext(5)};
  size_t combination = 0;
  for (const Heads& shape : {Heads{2, 2}, Heads{6, 1}}) {
    for (int64_t head_dim : {8, 24, 80, 256}) {
      for (int64_t window : {1, 2, 5, 15, 16, 17, 31, 32, 33, 99, 100, 101}) {
        const Layout layout = combination % 3 == 0 ? Layout::strided : Layout::contiguous;
        PartsOfAStep(shape, head_dim, random)
            .expect_reference(kParts, window, layout, contexts[combination++ % 2]);
      }
    }
  }
}

TEST(Attention, AWindowThatReachesAllTokensChangesNoBit) {
  Random random(70);
  CpuContext cpu(2);
  SequencePool pool(10, 2, 16, random);
  const Sequence sequence = pool.add(70);
  const PagedStep step({sequence.request(70, 70)});
  const GuardedTensor q = random.tensor(DType::f32, {70, 64});
  const GuardedTensor expected(DType::f32, {70, 64});
  attention(q.view(), pool.layer(), step.batch(), {.scale = 0.25f}, expected.view(), cpu.exec);
  for (int64_t window : {int64_t{70}, int64_t{1000}, std::numeric_limits<int64_t>::max()}) {
    const GuardedTensor y(DType::f32, {70, 64});
    attention(q.view(), pool.layer(), step.batch(), {.scale = 0.25f, .window = window}, y.view(),
              cpu.exec);
    EXPECT_TRUE(same_bits(y.view(), expected.view())) << window;
  }
}

// Pages of f16 give what those of f32 with the same values give, bit by bit.
TEST(Attention, PagesOfF16) {
  Random random(68);
  for (int64_t head_dim : {8, 64, 80, 256}) {
    CpuContext cpu(2);
    SequencePool pool(8, 2, head_dim, random);
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
    for (int64_t window : {0, 21}) {
      const AttentionParams params{.scale = 0.1f, .window = window};
      const GuardedTensor expected(DType::f32, {50, 2 * features});
      const GuardedTensor y(DType::f32, {50, 2 * features}, Layout::strided);
      attention(q.view(), wide, step.batch(), params, expected.view(), cpu.exec);
      attention(q.view(), {.k = k_pages.view(), .v = v_pages.view()}, step.batch(), params,
                y.view(), cpu.exec);
      EXPECT_TRUE(same_bits(y.view(), expected.view())) << head_dim << ", window " << window;
    }
  }
}

// A prompt of 75 tokens in chunks, in other pages, in company, with more threads: the same bits,
// with a window and without.
TEST(Attention, ARowDependsOnItsOwnRequestAlone) {
  Random random(62);
  CpuContext one(1);
  CpuContext five(5);
  constexpr int64_t kTokens = 75;
  constexpr int64_t kFeatures = 4 * 80;
  SequencePool pool(30, 2, 80, random);
  const Sequence sequence = pool.add(kTokens);
  GuardedTensor same_k(DType::f32, {kTokens, 2 * 80});
  GuardedTensor same_v(DType::f32, {kTokens, 2 * 80});
  set_values(same_k.view(), values_of(sequence.k.view()));
  set_values(same_v.view(), values_of(sequence.v.view()));
  const Sequence copy = pool.add(std::move(same_k), std::move(same_v));
  const Sequence company = pool.add(60);
  const GuardedTensor q = random.tensor(DType::f32, {kTokens, kFeatures});
  for (const int64_t window : {0, 1, 16, 21}) {
    const AttentionParams params{.scale = 0.1f, .window = window};
    const GuardedTensor whole(DType::f32, {kTokens, kFeatures});
    const PagedStep prefill({sequence.request(kTokens, kTokens)});
    attention(q.view(), pool.layer(), prefill.batch(), params, whole.view(), one.exec);

    for (int64_t chunk : {1, 7, 16, 30, 75}) {
      for (CpuContext* cpu : {&one, &five}) {
        const GuardedTensor chunked(DType::f32, {kTokens, kFeatures});
        for (int64_t first = 0; first < kTokens; first += chunk) {
          const int64_t rows = std::min(chunk, kTokens - first);
          const int64_t before = first % 5;  // rows of the company in front
          const int64_t tokens = before + rows + 1;
          const PagedStep step({company.request(20, before, window),
                                copy.request(first + rows, rows, window),
                                company.request(60, 1, window)});
          const GuardedTensor queries = random.tensor(DType::f32, {tokens, kFeatures});
          set_values(queries.view().rows(before, rows), values_of(q.view().rows(first, rows)));
          const GuardedTensor y(DType::f32, {tokens, kFeatures});
          attention(queries.view(), pool.layer(), step.batch(), params, y.view(), cpu->exec);
          set_values(chunked.view().rows(first, rows), values_of(y.view().rows(before, rows)));
        }
        EXPECT_TRUE(same_bits(chunked.view(), whole.view()))
            << "window " << window << ", chunks of " << chunk << ", " << cpu->threads.size()
            << " threads";
      }
    }
  }
}

// Scores of up to +-20,000 whose products and sums are whole numbers: nothing overflows, and
// differences of scores are exact.
TEST(Attention, LargeScores) {
  Random random(63);
  CpuContext cpu;
  for (double offset : {0.0, -20000.0, 20000.0}) {
    SequencePool pool(10, 1, 64, random);
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
    attention(q.view(), pool.layer(), step.batch(), {.scale = 1.0f}, y.view(), cpu.exec);
    Expected expected;
    for (int64_t i = 0; i < 40; ++i) {
      append_row(q.view().row<float>(i), 1, sequence, 1, i, {.scale = 1.0f}, expected);
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
    SequencePool pool(10, 1, 64, random);
    GuardedTensor k = random.tensor(DType::f32, {50, 64});
    std::fill_n(k.view().row<float>(winner), 64, 1e15f);
    const Sequence sequence = pool.add(std::move(k), random.tensor(DType::f32, {50, 64}));
    const PagedStep step({sequence.request(50, 1)});
    const GuardedTensor q = random.tensor(DType::f32, {1, 64}, Layout::contiguous, 1.0, 1e15);
    const GuardedTensor y(DType::f32, {1, 64});
    attention(q.view(), pool.layer(), step.batch(), {.scale = 1.0f}, y.view(), cpu.exec);
    EXPECT_TRUE(all_close(y.view(), values_of(sequence.v.view().rows(winner, 1)),
                          std::vector<double>(64, 1e-30)))
        << winner;
  }
}

TEST(Attention, NanStaysInItsHeadAndItsRequest) {
  Random random(65);
  CpuContext cpu(2);
  SequencePool pool(10, 2, 16, random);
  const Sequence sick = pool.add(20);
  const Sequence healthy = pool.add(20);
  const KvLayer layer = pool.layer();
  // The key of token 18, key/value head 1, of the first request.
  layer.k.row<float>(sick.pages[1])[(1 * kPageSize + 2) * 16 + 5] =
      std::numeric_limits<float>::quiet_NaN();
  const PagedStep step({sick.request(20, 3), healthy.request(20, 1)});
  const GuardedTensor q = random.tensor(DType::f32, {4, 4 * 16});
  const GuardedTensor y(DType::f32, {4, 4 * 16});
  attention(q.view(), layer, step.batch(), {.scale = 0.25f}, y.view(), cpu.exec);
  for (int64_t row = 0; row < 4; ++row) {  // positions 17, 18, 19 and the healthy one
    for (int64_t i = 0; i < 64; ++i) {
      const bool sees_it = (row == 1 || row == 2) && i >= 32;
      EXPECT_EQ(std::isnan(y.view().row<float>(row)[i]), sees_it) << row << " " << i;
    }
  }
}

// A NaN reaches the rows whose windows it is in, and no other.
TEST(Attention, NanStaysInTheWindowsThatSeeIt) {
  Random random(71);
  CpuContext cpu(2);
  constexpr int64_t kTokens = 50;
  const GuardedTensor q = random.tensor(DType::f32, {kTokens, 2 * 16});
  for (const bool is_key : {true, false}) {
    for (int64_t window : {1, 7, 16, 40}) {
      for (int64_t token : {0, 15, 16, 31, 49}) {
        SequencePool pool(10, 1, 16, random);
        const Sequence sequence = pool.add(kTokens);
        const KvLayer layer = pool.layer();
        const int64_t page = sequence.pages[static_cast<size_t>(token / kPageSize)];
        (is_key ? layer.k : layer.v).row<float>(page)[token % kPageSize * 16 + 5] =
            std::numeric_limits<float>::quiet_NaN();
        const PagedStep step({sequence.request(kTokens, kTokens)});
        const GuardedTensor y(DType::f32, {kTokens, 2 * 16});
        attention(q.view(), layer, step.batch(), {.scale = 0.25f, .window = window}, y.view(),
                  cpu.exec);
        for (int64_t row = 0; row < kTokens; ++row) {
          for (int64_t i = 0; i < 2 * 16; ++i) {
            const bool sees_it = row >= token && row < token + window && (is_key || i % 16 == 5);
            ASSERT_EQ(std::isnan(y.view().row<float>(row)[i]), sees_it)
                << "window " << window << ", token " << token << ", row " << row << " " << i;
          }
        }
      }
    }
  }
}

class AttentionErrors : public ::testing::Test {
 protected:
  void attend(const Tensor& q, const Tensor& y, int64_t window = 0) {
    attention(q, {.k = k_pages_, .v = k_pages_}, batch_, {.scale = 1.0f, .window = window}, y,
              cpu_.exec);
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
  EXPECT_TRUE(throws_error([&] { attend(q_.view(), y_.view(), -1); }, "window -1 is negative"));
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

TEST_F(AttentionErrors, PagesThatAWindowReachesMustBeInRange) {
  // Its rows stand at positions 36 to 39: that of page 1 ends at 31.
  const PagedStep step({{.pages = {3, -1, 2}, .kv_length = 40, .rows = 4},
                        {.pages = {0}, .kv_length = 3, .rows = 1}});
  batch_ = step.batch();
  EXPECT_NO_THROW(attend(q_.view(), y_.view(), 5));
  for (const int64_t window : {0, 6, 100}) {
    EXPECT_TRUE(throws_error([&] { attend(q_.view(), y_.view(), window); }, "uses page -1"));
  }
}

}  // namespace
}  // namespace sparsellm
