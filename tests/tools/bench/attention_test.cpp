// The operands, the reference and the rows of the benchmark of attention, on the CPU.

#include "tools/bench/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/throws_error.h"
#include "tools/bench/verify_attention.h"
#include "tools/bench/verify_product.h"

namespace sparsellm {
namespace {

using testing::CpuContext;
using testing::throws_error;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

AttentionShape shape(bool prefill) {
  return {.requests = 3,
          .context = 37,
          .heads = 6,
          .kv_heads = 2,
          .head_dim = 16,
          .dtype = DType::f32,
          .prefill = prefill};
}

std::vector<AttentionPlace> all_places(const AttentionShape& shape) {
  std::vector<AttentionPlace> places;
  for (int64_t request = 0; request < shape.requests; ++request) {
    for (int64_t row = 0; row < shape.rows_per_request(); ++row) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        places.push_back({.request = request, .row = row, .head = head});
      }
    }
  }
  return places;
}

AttentionReference reference_of(const AttentionOperands& operands, const AttentionShape& shape,
                                int64_t copy) {
  return {operands.q(copy), operands.kv(), operands.batch(copy), operands.params(),
          all_places(shape)};
}

TEST(BenchAttention, PagesAreUsedOnceInRandomOrder) {
  CpuContext cpu;
  const AttentionOperands operands(shape(false), 4, 1, cpu.exec);
  std::vector<int32_t> pages;
  for (int64_t copy = 0; copy < 4; ++copy) {
    const Tensor table = operands.batch(copy).page_table;
    pages.insert(pages.end(), table.data<int32_t>(), table.data<int32_t>() + table.element_count());
  }
  const std::set<int32_t> different(pages.begin(), pages.end());
  EXPECT_EQ(pages.size(), 4u * 3u * 3u);
  EXPECT_EQ(different.size(), pages.size());
  EXPECT_EQ(*different.rbegin(), std::ssize(pages) - 1);
  EXPECT_FALSE(std::is_sorted(pages.begin(), pages.end()));
}

TEST(BenchAttention, TheReferenceIsAttention) {
  for (const bool prefill : {false, true}) {
    for (const int64_t window : {0, 1, 5, 40}) {
      SCOPED_TRACE(fmt::format("prefill {}, window {}", prefill, window));
      CpuContext cpu;
      AttentionShape some = shape(prefill);
      some.window = window;
      const AttentionOperands operands(some, 2, 1, cpu.exec);
      for (int64_t copy = 0; copy < operands.copies(); ++copy) {
        const Tensor y = operands.y(copy);
        const AttentionReference reference = reference_of(operands, some, copy);
        poison(y, cpu.exec);
        EXPECT_EQ(reference.worst_error(y), kInfinity);
        attention(operands.q(copy), operands.kv(), operands.batch(copy), operands.params(), y,
                  cpu.exec);
        EXPECT_LE(reference.worst_error(y), 1.0) << "copy " << copy;
        float& last = y.data<float>()[y.element_count() - 1];
        const float right = last;
        for (const double wrong : {right + 1e-3, std::nan(""), kInfinity}) {
          last = static_cast<float>(wrong);
          EXPECT_GT(reference.worst_error(y), 1.0) << wrong;
        }
      }
    }
  }
}

// The last token's result of one request with one head as tensor cores compute it, with weights and
// result rounded to T, but of the first `tokens` tokens alone.
template <class T>
void attend_rounded(const AttentionOperands& operands, int64_t tokens, const Tensor& y) {
  const auto product = [](const T* a, const T* b, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
      sum += to_float(a[i]) * to_float(b[i]);
    }
    return sum;
  };
  const int64_t head_dim = y.size(1);
  const T* const q = operands.q(0).data<T>();
  const int32_t* const pages = operands.batch(0).page_table.data<int32_t>();
  const auto vector = [&](const Tensor& pool, int64_t token) {
    return pool.row<T>(pages[token / kPageSize]) + token % kPageSize * head_dim;
  };
  std::vector<float> weights;
  for (int64_t t = 0; t < tokens; ++t) {
    weights.push_back(operands.params().scale * product(q, vector(operands.kv().k, t), head_dim));
  }
  const float largest = *std::max_element(weights.begin(), weights.end());
  float weight_sum = 0.0f;
  std::vector<float> sums(static_cast<size_t>(head_dim));
  for (int64_t t = 0; t < tokens; ++t) {
    const float weight = std::exp(weights[static_cast<size_t>(t)] - largest);
    weight_sum += weight;
    for (int64_t i = 0; i < head_dim; ++i) {
      sums[static_cast<size_t>(i)] +=
          to_float(from_float<T>(weight)) * to_float(vector(operands.kv().v, t)[i]);
    }
  }
  for (int64_t i = 0; i < head_dim; ++i) {
    y.data<T>()[i] = from_float<T>(sums[static_cast<size_t>(i)] / weight_sum);
  }
}

TEST(BenchAttention, WeightsMayBeRoundedButNoneMayBeMissing) {
  CpuContext cpu;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int64_t context : {1, 100, 2048}) {
      const AttentionShape one{.requests = 1,
                               .context = context,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 128,
                               .dtype = dtype};
      const AttentionOperands operands(one, 1, 1, cpu.exec);
      const AttentionReference reference = reference_of(operands, one, 0);
      const auto worst_error = [&](int64_t tokens) {
        visit_float(dtype, [&]<class T>(T) { attend_rounded<T>(operands, tokens, operands.y(0)); });
        return reference.worst_error(operands.y(0));
      };
      EXPECT_LE(worst_error(context), 1.0) << name_of(dtype) << ", " << context;
      if (context > 1) {
        EXPECT_GT(worst_error(context - kPageSize), 1.0) << name_of(dtype) << ", " << context;
      }
    }
  }
}

// A page of another request in the table, and one token too few.
TEST(BenchAttention, WrongTokensAreFound) {
  CpuContext cpu;
  const AttentionOperands operands(shape(false), 1, 1, cpu.exec);
  const PagedBatch batch = operands.batch(0);
  const Tensor y = operands.y(0);
  const AttentionReference reference = reference_of(operands, shape(false), 0);
  const auto worst_error = [&] {
    attention(operands.q(0), operands.kv(), batch, operands.params(), y, cpu.exec);
    return reference.worst_error(y);
  };
  EXPECT_LE(worst_error(), 1.0);
  int32_t& page = batch.page_table.row<int32_t>(2)[0];
  const int32_t right = page;
  page = batch.page_table.row<int32_t>(1)[0];
  EXPECT_GT(worst_error(), 1.0);
  page = right;
  batch.kv_length.data<int32_t>()[2] -= 1;
  batch.positions.data<int32_t>()[2] -= 1;
  EXPECT_GT(worst_error(), 1.0);
}

TEST(BenchAttention, InvalidOptionsAreRefused) {
  const auto refused = [](AttentionBenchOptions options, const char* message) {
    return throws_error([&] { check_options(options); }, message);
  };
  EXPECT_TRUE(refused({.heads = 40, .kv_heads = 16}, "40 heads cannot share 16"));
  EXPECT_TRUE(refused({.head_dim = 100}, "100 is not a multiple of 8"));
  EXPECT_TRUE(refused({.head_dim = 264}, "up to 256"));
  EXPECT_TRUE(refused({.dtype = DType::f32}, "not in f32"));
  EXPECT_TRUE(refused({.repeat = 0}, "no median"));
  EXPECT_TRUE(refused({.requests = {1, 0}}, "0 requests"));
  EXPECT_TRUE(refused({.requests = {1 << 16}, .contexts = {1 << 16}, .prefill = true},
                      "more than one call takes"));
  EXPECT_TRUE(
      throws_error([] { bench_attention({}, [](const AttentionResult&) {}); }, "CUDA alone"));
}

TEST(BenchAttention, Rows) {
  const auto cell = [](const AttentionResult& result, const std::string& key) {
    const std::vector<Column> columns = attention_columns();
    const Row row = attention_row(result);
    EXPECT_EQ(row.size(), columns.size());
    for (size_t i = 0; i < columns.size(); ++i) {
      if (columns[i].key == key) {
        return row[i];
      }
    }
    ADD_FAILURE() << "no column " << key;
    return Cell();
  };
  AttentionResult result;
  result.shape = shape(false);
  result.note = "out of memory";
  EXPECT_EQ(std::get<std::string>(cell(result, "phase")), "decode");
  EXPECT_EQ(std::get<int64_t>(cell(result, "kv_bytes")), 2 * 3 * 37 * 2 * 16 * 4);
  for (const char* key : {"time_us", "read_gb_per_s", "tflops", "worst_error"}) {
    EXPECT_TRUE(std::holds_alternative<NoValue>(cell(result, key))) << key;
  }
  EXPECT_EQ(std::get<std::string>(cell(result, "note")), "out of memory");
  result.measured = true;
  result.us = {.median = 2.0, .min = 1.0, .max = 3.0};
  result.fraction_of_bandwidth = 0.5;
  EXPECT_EQ(std::get<Spread>(cell(result, "time_us")).median, 2.0);
  EXPECT_EQ(std::get<double>(cell(result, "percent_of_bandwidth")), 50.0);
}

}  // namespace
}  // namespace sparsellm
