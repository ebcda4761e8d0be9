#include "kernels/kv_append.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/device/rotate_cpu.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// Requests of a step with pages in random order; the pool has pages to spare.
std::vector<StepRequest> with_random_pages(std::vector<StepRequest> requests, int32_t pool,
                                           Random& random) {
  const std::vector<int32_t> order = random.permutation(pool);
  auto next = order.begin();
  for (StepRequest& request : requests) {
    const auto count = static_cast<std::ptrdiff_t>(pages_for(request.kv_length));
    request.pages.assign(next, next + count);
    next += count;
  }
  return requests;
}

// What the pages should hold: NaN where nothing was stored.
std::vector<double> expected_pages(const std::vector<StepRequest>& requests, const Tensor& rows,
                                   const Tensor& pages) {
  const int64_t heads = pages.size(1);
  const int64_t head_dim = pages.size(3);
  const std::vector<double> values = values_of(rows);
  std::vector<double> expected(static_cast<size_t>(pages.element_count()), std::nan(""));
  size_t next = 0;
  for (const StepRequest& request : requests) {
    for (int64_t i = request.kv_length - request.rows; i < request.kv_length; ++i) {
      const int64_t page = request.pages[static_cast<size_t>(i / kPageSize)];
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t d = 0; d < head_dim; ++d) {
          const int64_t at = ((page * heads + head) * kPageSize + i % kPageSize) * head_dim + d;
          expected[static_cast<size_t>(at)] = values[next++];
        }
      }
    }
  }
  return expected;
}

TEST(KvAppend, StoresPrefillChunksAndDecodeRowsInTheirPages) {
  Random random(41);
  constexpr int32_t kPool = 40;
  const std::vector<StepRequest> requests = with_random_pages(
      {
          {.pages = {}, .kv_length = 1, .rows = 1},      // a prompt of one token
          {.pages = {}, .kv_length = 16, .rows = 16},    // one full page
          {.pages = {}, .kv_length = 17, .rows = 1},     // decode, first slot of a page
          {.pages = {}, .kv_length = 48, .rows = 0},     // nothing in this step
          {.pages = {}, .kv_length = 40, .rows = 13},    // a later chunk of a prompt
          {.pages = {}, .kv_length = 130, .rows = 130},  // a long prompt
          {.pages = {}, .kv_length = 100, .rows = 1},
      },
      kPool, random);
  const PagedStep step(requests);
  const int64_t tokens = step.batch().tokens();
  for (int threads : {1, 2, 5}) {
    CpuContext cpu(threads);
    for (int64_t heads : {1, 2, 3}) {
      for (int64_t head_dim : {1, 7, 31, 64, 80}) {
        SCOPED_TRACE(fmt::format("{} threads, {} heads of {}", threads, heads, head_dim));
        const int64_t features = heads * head_dim;
        const GuardedTensor k = random.tensor(DType::f32, {tokens, features}, Layout::strided);
        const GuardedTensor v = random.tensor(DType::f32, {tokens, features}, Layout::strided);
        const GuardedTensor k_pages(DType::f32, {kPool, heads, kPageSize, head_dim});
        const GuardedTensor v_pages(DType::f32, {kPool, heads, kPageSize, head_dim});
        kv_append(k.view(), v.view(), step.batch(), {.k = k_pages.view(), .v = v_pages.view()},
                  cpu.exec);
        for (const auto& [rows, pages] : {std::pair(&k, &k_pages), std::pair(&v, &v_pages)}) {
          const std::vector<double> expected =
              expected_pages(requests, rows->view(), pages->view());
          EXPECT_TRUE(all_close(pages->view(), expected, std::vector(expected.size(), 0.0)));
          EXPECT_TRUE(pages->guards_intact());
        }
      }
    }
  }
}

class KvAppendF16 : public ::testing::Test {
 protected:
  void append(const Tensor& k, const Tensor& v) {
    kv_append(k, v, step_.batch(), {.k = k_pages_.view(), .v = v_pages_.view()}, cpu_.exec);
  }

  CpuContext cpu_{2};
  std::vector<StepRequest> requests_{{.pages = {2, 0}, .kv_length = 20, .rows = 20}};
  PagedStep step_{requests_};
  GuardedTensor k_pages_{DType::f16, {3, 2, kPageSize, 8}};
  GuardedTensor v_pages_{DType::f16, {3, 2, kPageSize, 8}};
};

TEST_F(KvAppendF16, RoundsToNearest) {
  Random random(48);
  const GuardedTensor k = random.tensor(DType::f32, {20, 16});
  const GuardedTensor v = random.tensor(DType::f32, {20, 16}, Layout::strided);
  append(k.view(), v.view());
  for (const auto& [rows, pages] : {std::pair(&k, &k_pages_), std::pair(&v, &v_pages_)}) {
    const GuardedTensor rounded(DType::f16, {20, 16});
    set_values(rounded.view(), values_of(rows->view()));
    const std::vector<double> expected = expected_pages(requests_, rounded.view(), pages->view());
    EXPECT_TRUE(all_close(pages->view(), expected, std::vector(expected.size(), 0.0)));
    EXPECT_TRUE(pages->guards_intact());
  }
}

// An infinity could get a weight of 0 in the softmax, and the loss would go unnoticed.
TEST_F(KvAppendF16, AValueBeyondItIsNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const GuardedTensor k(DType::f32, {20, 16});
  set_values(k.view(), std::vector<double>(20 * 16, 1.0));
  for (const auto& [value, stored] : std::vector<std::pair<float, float>>{{65519.0f, 65504.0f},
                                                                          {65520.0f, kNan},
                                                                          {-1e30f, kNan},
                                                                          {kInfinity, kInfinity},
                                                                          {-kInfinity, -kInfinity},
                                                                          {kNan, kNan}}) {
    k.view().row<float>(19)[15] = value;
    append(k.view(), k.view());
    for (const GuardedTensor* pages : {&k_pages_, &v_pages_}) {  // slot 3 of page 0, head 1
      const float got = to_float(pages->view().row<Half>(0)[(kPageSize + 3) * 8 + 7]);
      EXPECT_TRUE(std::isnan(stored) ? std::isnan(got) : got == stored) << value << " " << got;
    }
  }
}

TEST(KvAppend, ChunksOfAnySizeFillTheSamePages) {
  Random random(42);
  CpuContext cpu(2);
  constexpr int64_t kTokens = 70;
  const std::vector<int32_t> pages = random.permutation(5);
  const GuardedTensor k = random.tensor(DType::f32, {kTokens, 24});
  const GuardedTensor v = random.tensor(DType::f32, {kTokens, 24});
  const auto fill = [&](int64_t chunk, const KvLayer& kv) {
    for (int64_t first = 0; first < kTokens; first += chunk) {
      const int64_t rows = std::min(chunk, kTokens - first);
      const PagedStep step({{.pages = pages, .kv_length = first + rows, .rows = rows}});
      kv_append(k.view().rows(first, rows), v.view().rows(first, rows), step.batch(), kv, cpu.exec);
    }
  };
  const GuardedTensor whole_k(DType::f32, {5, 3, kPageSize, 8});
  const GuardedTensor whole_v(DType::f32, {5, 3, kPageSize, 8});
  fill(kTokens, {.k = whole_k.view(), .v = whole_v.view()});
  for (int64_t chunk : {1, 3, 16, 17}) {
    const GuardedTensor some_k(DType::f32, {5, 3, kPageSize, 8});
    const GuardedTensor some_v(DType::f32, {5, 3, kPageSize, 8});
    fill(chunk, {.k = some_k.view(), .v = some_v.view()});
    EXPECT_TRUE(same_bits(some_k.view(), whole_k.view())) << chunk;
    EXPECT_TRUE(same_bits(some_v.view(), whole_v.view())) << chunk;
  }
}

std::vector<StepRequest> a_few_requests(Random& random) {
  return with_random_pages({{.pages = {}, .kv_length = 20, .rows = 3},
                            {.pages = {}, .kv_length = 33, .rows = 33},
                            {.pages = {}, .kv_length = 5, .rows = 1}},
                           8, random);
}

// The same bits as kv_append() of rotated rows, whether the rows lie in one matrix or apart.
TEST(RopeKvAppend, RotatesQueriesAndKeysAndStores) {
  Random random(43);
  CpuContext cpu(2);
  const PagedStep step(a_few_requests(random));
  const int64_t tokens = step.batch().tokens();
  for (int64_t head_dim : {2, 16, 80}) {
    constexpr int64_t kHeads = 6;
    constexpr int64_t kKvHeads = 2;
    const int64_t q_size = kHeads * head_dim;
    const int64_t kv_size = kKvHeads * head_dim;
    const GuardedTensor cos_sin = random.tensor(DType::f32, {tokens, head_dim});
    const GuardedTensor joined = random.tensor(DType::f32, {tokens, q_size + 2 * kv_size});
    const GuardedTensor expected(DType::f32, {tokens, q_size + 2 * kv_size});
    set_values(expected.view(), values_of(joined.view()));
    const GuardedTensor pages(DType::f32, {2 * 8, kKvHeads, kPageSize, head_dim});
    const GuardedTensor expected_memory(DType::f32, {2 * 8, kKvHeads, kPageSize, head_dim});
    const auto layer = [](const Tensor& x) {
      return KvLayer{.k = x.rows(0, 8), .v = x.rows(8, 8)};
    };

    rotate_cpu(cos_sin.view(), expected.view().columns(0, q_size + kv_size), cpu.exec);
    kv_append(expected.view().columns(q_size, kv_size),
              expected.view().columns(q_size + kv_size, kv_size), step.batch(),
              layer(expected_memory.view()), cpu.exec);
    rope_kv_append({.cos_sin = cos_sin.view()},
                   {.q = joined.view().columns(0, q_size),
                    .k = joined.view().columns(q_size, kv_size),
                    .v = joined.view().columns(q_size + kv_size, kv_size)},
                   step.batch(), layer(pages.view()), cpu.exec);
    EXPECT_TRUE(same_bits(joined.view().columns(0, q_size), expected.view().columns(0, q_size)));
    // Unused slots are NaN in both.
    const std::vector<double> values = values_of(expected_memory.view());
    EXPECT_TRUE(all_close(pages.view(), values, std::vector(values.size(), 0.0)));
    EXPECT_TRUE(pages.guards_intact());
  }
}

// RMSNorm and RoPE of one head in double, as transformers' Qwen3 has them.
void append_transformed(const float* head, const std::vector<double>& weight, double epsilon,
                        const float* cos_sin, Expected& expected) {
  const size_t head_dim = weight.size();
  const size_t half = head_dim / 2;
  double squares = 0.0;
  for (size_t i = 0; i < head_dim; ++i) {
    squares += double{head[i]} * double{head[i]};
  }
  std::vector<double> x;
  for (size_t i = 0; i < head_dim; ++i) {
    x.push_back(double{head[i]} / std::sqrt(squares / static_cast<double>(head_dim) + epsilon) *
                weight[i]);
  }
  for (size_t i = 0; i < head_dim; ++i) {
    if (cos_sin == nullptr) {
      expected.values.push_back(x[i]);
      expected.magnitudes.push_back(std::abs(x[i]));
      continue;
    }
    const double first = x[i] * double{cos_sin[i % half]};
    const double second = x[(i + half) % head_dim] * double{cos_sin[half + i % half]};
    expected.values.push_back(i < half ? first - second : first + second);
    expected.magnitudes.push_back(std::abs(first) + std::abs(second));
  }
}

TEST(RopeKvAppend, NormsOfHeads) {
  Random random(49);
  CpuContext cpu(2);
  const std::vector<StepRequest> requests = a_few_requests(random);
  const PagedStep step(requests);
  const int64_t tokens = step.batch().tokens();
  constexpr int64_t kHeads = 6;
  constexpr int64_t kKvHeads = 2;
  constexpr float kEpsilon = 1e-3f;
  constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
  int64_t combination = 0;
  for (int64_t head_dim : {8, 24, 80, 128, 256}) {
    for (const bool rotates : {false, true}) {
      SCOPED_TRACE(fmt::format("heads of {}, rotated: {}", head_dim, rotates));
      const DType dtype = kDTypes[combination++ % 3];
      const int64_t q_size = kHeads * head_dim;
      const int64_t kv_size = kKvHeads * head_dim;
      const GuardedTensor cos_sin = random.tensor(DType::f32, {tokens, head_dim});
      // Heads of all sizes: epsilon is much of some of them.
      const GuardedTensor joined =
          random.tensor(DType::f32, {tokens, q_size + 2 * kv_size}, Layout::strided, -0.2, 0.2);
      const GuardedTensor q_norm = random.tensor(dtype, {head_dim}, Layout::contiguous, -2.0, 2.0);
      const GuardedTensor k_norm = random.tensor(dtype, {head_dim}, Layout::contiguous, -2.0, 2.0);
      const GuardedTensor k_pages(DType::f32, {8, kKvHeads, kPageSize, head_dim});
      const GuardedTensor v_pages(DType::f32, {8, kKvHeads, kPageSize, head_dim});
      const QkvRows rows{.q = joined.view().columns(0, q_size),
                         .k = joined.view().columns(q_size, kv_size),
                         .v = joined.view().columns(q_size + kv_size, kv_size)};

      Expected q;
      Expected k;
      for (int64_t token = 0; token < tokens; ++token) {
        const float* angles = rotates ? cos_sin.view().row<float>(token) : nullptr;
        for (int64_t head = 0; head < kHeads; ++head) {
          append_transformed(rows.q.row<float>(token) + head * head_dim, values_of(q_norm.view()),
                             double{kEpsilon}, angles, q);
        }
        for (int64_t head = 0; head < kKvHeads; ++head) {
          append_transformed(rows.k.row<float>(token) + head * head_dim, values_of(k_norm.view()),
                             double{kEpsilon}, angles, k);
        }
      }
      const std::vector<double> v = values_of(rows.v);
      rope_kv_append({.cos_sin = rotates ? cos_sin.view() : Tensor(),
                      .norms = {.q = q_norm.view(), .k = k_norm.view(), .epsilon = kEpsilon}},
                     rows, step.batch(), {.k = k_pages.view(), .v = v_pages.view()}, cpu.exec);
      EXPECT_TRUE(all_close(rows.q, q, 8.0));
      EXPECT_TRUE(all_close(rows.k, k, 8.0));
      for (const auto& [values, pages] :
           {std::pair(&rows.k, &k_pages), std::pair(&rows.v, &v_pages)}) {
        const std::vector<double> expected = expected_pages(requests, *values, pages->view());
        EXPECT_TRUE(all_close(pages->view(), expected, std::vector(expected.size(), 0.0)));
        EXPECT_TRUE(pages->guards_intact());
      }
      EXPECT_EQ(values_of(rows.v), v);
      EXPECT_TRUE(joined.guards_intact());
    }
  }
}

TEST(RopeKvAppend, NanStaysInItsHead) {
  Random random(50);
  CpuContext cpu;
  const PagedStep step({{.pages = {1}, .kv_length = 2, .rows = 2}});
  const GuardedTensor weight = random.tensor(DType::f32, {16});
  const GuardedTensor q = random.tensor(DType::f32, {2, 64});
  const GuardedTensor k = random.tensor(DType::f32, {2, 32});
  const GuardedTensor v = random.tensor(DType::f32, {2, 32});
  const GuardedTensor pages = random.tensor(DType::f32, {4, 2, kPageSize, 16});
  q.view().row<float>(1)[2 * 16 + 3] = std::numeric_limits<float>::quiet_NaN();
  rope_kv_append({.norms = {.q = weight.view(), .k = weight.view(), .epsilon = 1e-6f}},
                 {.q = q.view(), .k = k.view(), .v = v.view()}, step.batch(),
                 {.k = pages.view().rows(0, 2), .v = pages.view().rows(2, 2)}, cpu.exec);
  for (int64_t i = 0; i < 2 * 64; ++i) {
    EXPECT_EQ(std::isnan(q.view().row<float>(i / 64)[i % 64]), i / 16 == 4 + 2) << i;
  }
  for (double value : values_of(pages.view())) {
    EXPECT_FALSE(std::isnan(value));
  }
}

// Without norms and angles it is kv_append().
TEST(RopeKvAppend, NothingToTransform) {
  Random random(51);
  CpuContext cpu;
  const PagedStep step({{.pages = {1, 0}, .kv_length = 20, .rows = 20}});
  const GuardedTensor q = random.tensor(DType::f32, {20, 64});
  const GuardedTensor k = random.tensor(DType::f32, {20, 16});
  const GuardedTensor pages = random.tensor(DType::f32, {4, 2, kPageSize, 8});
  const GuardedTensor expected(DType::f32, {4, 2, kPageSize, 8});
  set_values(expected.view(), values_of(pages.view()));
  const std::vector<double> before = values_of(q.view());
  const auto layer = [](const GuardedTensor& all) {
    return KvLayer{.k = all.view().rows(0, 2), .v = all.view().rows(2, 2)};
  };
  rope_kv_append({}, {.q = q.view(), .k = k.view(), .v = k.view()}, step.batch(), layer(pages),
                 cpu.exec);
  kv_append(k.view(), k.view(), step.batch(), layer(expected), cpu.exec);
  EXPECT_TRUE(same_bits(pages.view(), expected.view()));
  EXPECT_EQ(values_of(q.view()), before);
}

class KvAppendErrors : public ::testing::Test {
 protected:
  void append() {
    kv_append(k_.view(), k_.view(), batch_, {.k = k_pages_, .v = v_pages_}, cpu_.exec);
  }

  CpuContext cpu_;
  GuardedTensor k_{DType::f32, {5, 16}};
  GuardedTensor page_memory_{DType::f32, {4, 2, kPageSize, 8}};
  Tensor k_pages_ = page_memory_.view();
  Tensor v_pages_ = page_memory_.view();
  PagedStep step_{
      {{.pages = {3, 1}, .kv_length = 20, .rows = 4}, {.pages = {0}, .kv_length = 3, .rows = 1}}};
  PagedBatch batch_ = step_.batch();
};

TEST_F(KvAppendErrors, TheTablesMustAgreeAndStayInRange) {
  EXPECT_NO_THROW(append());
  struct Case {
    Tensor PagedBatch::*table;
    GuardedTensor values;
    const char* message;
  };
  const Case cases[] = {
      {&PagedBatch::query_start, i32_tensor({1, 4, 5}), "query_start goes from 1 to 5"},
      {&PagedBatch::query_start, i32_tensor({0, 4, 6}), "query_start goes from 0 to 6"},
      {&PagedBatch::query_start, i32_tensor({0, 6, 5}), "the rows [0, 6)"},
      {&PagedBatch::query_start, i32_tensor({0, -1, 5}), "the rows [0, -1)"},
      {&PagedBatch::query_start, i32_tensor({0, 3, 5}), "row 0 stands at position 16"},
      {&PagedBatch::query_start, i32_tensor({0, 5}), "query_start is i32 [2]"},
      {&PagedBatch::kv_length, i32_tensor({20, 0}), "kv_length 0"},
      {&PagedBatch::kv_length, i32_tensor({-20, 3}), "kv_length -20"},
      {&PagedBatch::kv_length, i32_tensor({21, 3}), "row 0 stands at position 16"},
      {&PagedBatch::kv_length, i32_tensor({20}), "query_start is i32 [3]"},
      {&PagedBatch::positions, i32_tensor({16, 17, 18, 19, 3}), "row 4 stands at position 3"},
      {&PagedBatch::positions, i32_tensor({16, 17, 18, 19}), "query_start goes from 0 to 5"},
  };
  for (const Case& c : cases) {
    batch_ = step_.batch();
    batch_.*c.table = c.values.view();
    EXPECT_TRUE(throws_error([&] { append(); }, c.message));
  }
  for (int32_t page : {-1, 4}) {
    const PagedStep bad({{.pages = {3, page}, .kv_length = 20, .rows = 4},
                         {.pages = {0}, .kv_length = 3, .rows = 1}});
    batch_ = bad.batch();
    EXPECT_TRUE(throws_error([&] { append(); }, fmt::format("page {} of a pool of 4", page)));
  }
  batch_ = step_.batch();
  batch_.page_table = batch_.page_table.columns(0, 1);
  EXPECT_TRUE(throws_error([&] { append(); }, "20 tokens, its page table 1 pages"));
  batch_.page_table = step_.batch().page_table.rows(0, 1);
  EXPECT_TRUE(throws_error([&] { append(); }, "page_table is i32 [1, 4]"));
  batch_ = step_.batch();
  for (int64_t generated : {-1, 6}) {
    batch_.generated = generated;
    EXPECT_TRUE(throws_error([&] { append(); }, fmt::format("{} of 5 rows are", generated)));
  }
  batch_.generated = 4;
  EXPECT_NO_THROW(append());
  batch_.decode = true;
  EXPECT_TRUE(throws_error([&] { append(); }, "4 of 5 rows are generated, but all are decode"));
  EXPECT_TRUE(page_memory_.guards_intact());
}

TEST_F(KvAppendErrors, RefusesMismatchedOperands) {
  const GuardedTensor half(DType::f16, {4, 2, kPageSize, 8});
  const GuardedTensor small_page(DType::f32, {4, 2, kPageSize / 2, 8});
  const GuardedTensor more_pages(DType::f32, {5, 2, kPageSize, 8});
  const GuardedTensor more_heads(DType::f32, {4, 4, kPageSize, 8});
  k_pages_ = half.view();
  EXPECT_TRUE(throws_error([&] { append(); }, "kv_append: pages of k and v are f16 and f32"));
  k_pages_ = small_page.view();
  EXPECT_TRUE(throws_error([&] { append(); }, "[*, *, 16, *] on cpu"));
  k_pages_ = more_pages.view();
  EXPECT_TRUE(throws_error([&] { append(); }, "pages of v is f32 [4, 2, 16, 8]"));
  k_pages_ = v_pages_ = more_heads.view();
  EXPECT_TRUE(throws_error([&] { append(); }, "k is f32 [5, 16] on cpu; expected f32 [5, 32]"));
  k_pages_ = v_pages_ = page_memory_.view();
  k_ = GuardedTensor(DType::f32, {6, 16});
  EXPECT_TRUE(throws_error([&] { append(); }, "k is f32 [6, 16]"));
  k_ = GuardedTensor(DType::bf16, {5, 16});
  EXPECT_TRUE(throws_error([&] { append(); }, "k is bf16"));
  batch_.positions = Tensor();
  EXPECT_TRUE(throws_error([&] { append(); }, "positions is missing"));
}

TEST_F(KvAppendErrors, RopeRefusesWhatDoesNotFit) {
  const GuardedTensor angles(DType::f32, {5, 8});
  const GuardedTensor queries(DType::f32, {5, 32});
  const GuardedTensor values(DType::f32, {5, 16});
  const auto append = [&](const Tensor& cos_sin, const Tensor& q, const Tensor& v) {
    rope_kv_append({.cos_sin = cos_sin}, {.q = q, .k = k_.view(), .v = v}, batch_,
                   {.k = k_pages_, .v = v_pages_}, cpu_.exec);
  };
  EXPECT_NO_THROW(append(angles.view(), queries.view(), values.view()));
  const GuardedTensor wide(DType::f32, {5, 9});
  const GuardedTensor short_angles(DType::f32, {4, 8});
  const GuardedTensor half(DType::f16, {5, 32});
  EXPECT_TRUE(throws_error([&] { append(wide.view(), queries.view(), values.view()); },
                           "cos_sin is f32 [5, 9] on cpu; expected f32 [5, 8]"));
  EXPECT_TRUE(throws_error([&] { append(short_angles.view(), queries.view(), values.view()); },
                           "cos_sin is f32 [4, 8]"));
  EXPECT_TRUE(throws_error([&] { append(angles.view(), wide.view(), values.view()); },
                           "q [5, 9] is not made of whole heads of 8"));
  EXPECT_TRUE(throws_error([&] { append(angles.view(), half.view(), values.view()); }, "q is f16"));
  EXPECT_TRUE(
      throws_error([&] { append(angles.view(), queries.view(), angles.view()); }, "v is f32"));
  EXPECT_TRUE(throws_error([&] { append(angles.view(), queries.view(), k_.view()); }, "overlap"));
  EXPECT_TRUE(throws_error([&] { append(angles.view(), k_.view(), values.view()); }, "overlap"));
}

TEST_F(KvAppendErrors, NormsThatDoNotFit) {
  const GuardedTensor queries(DType::f32, {5, 32});
  const GuardedTensor values(DType::f32, {5, 16});
  const GuardedTensor weight(DType::f16, {8});
  const GuardedTensor long_weight(DType::f16, {16});
  const GuardedTensor ids = i32_tensor({1, 2, 3, 4, 5, 6, 7, 8});
  const auto append = [&](const HeadNorms& norms) {
    rope_kv_append({.norms = norms}, {.q = queries.view(), .k = k_.view(), .v = values.view()},
                   batch_, {.k = k_pages_, .v = v_pages_}, cpu_.exec);
  };
  const Tensor w = weight.view();
  EXPECT_NO_THROW(append({.q = w, .k = w}));
  EXPECT_TRUE(throws_error([&] { append({.q = w}); }, "the norm of k is missing"));
  EXPECT_TRUE(throws_error([&] { append({.k = w}); }, "the norm of q is missing"));
  EXPECT_TRUE(throws_error([&] { append({.q = w, .k = long_weight.view()}); },
                           "the norm of k is f16 [16] on cpu; expected f32, f16 or bf16 [8]"));
  EXPECT_TRUE(throws_error([&] { append({.q = ids.view(), .k = w}); }, "the norm of q is i32 [8]"));
  EXPECT_TRUE(throws_error([&] { append({.q = w, .k = w, .epsilon = -1.0f}); }, "epsilon"));
}

// The pages of tokens that were there before are not looked at: a window may have left them.
TEST_F(KvAppendErrors, PagesOfEarlierTokensMayBeAnything) {
  for (int32_t page : {-1, 4}) {
    const PagedStep step({{.pages = {page, 1}, .kv_length = 20, .rows = 4},
                          {.pages = {0}, .kv_length = 3, .rows = 1}});
    batch_ = step.batch();
    EXPECT_NO_THROW(append());
  }
  const PagedStep step({{.pages = {4, 1}, .kv_length = 20, .rows = 5}});
  batch_ = step.batch();
  EXPECT_TRUE(throws_error([&] { append(); }, "page 4 of a pool of 4"));
}

// Each two that may not overlap, alone; all of them are columns of one matrix.
TEST_F(KvAppendErrors, RopeRefusesEachOverlap) {
  const GuardedTensor matrix = Random(9).tensor(DType::f32, {5, 72});
  struct Columns {
    int64_t cos_sin = 0;
    int64_t q = 8;
    int64_t k = 40;
    int64_t v = 56;
  };
  const auto append = [&](const Columns& at) {
    const auto part = [&](int64_t first, int64_t count) {
      return matrix.view().columns(first, count);
    };
    rope_kv_append({.cos_sin = part(at.cos_sin, 8)},
                   {.q = part(at.q, 32), .k = part(at.k, 16), .v = part(at.v, 16)}, batch_,
                   {.k = k_pages_, .v = v_pages_}, cpu_.exec);
  };
  EXPECT_NO_THROW(append({}));
  struct Case {
    Columns at;
    const char* message;
  };
  const Case cases[] = {
      {{.q = 9}, "rope_kv_append: q and k overlap"},
      {{.q = 7}, "rope_kv_append: cos_sin and q overlap"},
      {{.k = 56, .v = 39}, "rope_kv_append: q and v overlap"},
      {{.k = 41}, "rope_kv_append: k and v overlap"},
      {{.cos_sin = 0, .q = 40, .k = 7, .v = 23}, "rope_kv_append: cos_sin and k overlap"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(throws_error([&] { append(c.at); }, c.message));
  }
  EXPECT_TRUE(matrix.guards_intact());
}

}  // namespace
}  // namespace sparsellm
