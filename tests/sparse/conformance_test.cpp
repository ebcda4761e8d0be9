// What holds for every format of sparse/registry.h; a new one is found there.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/registry.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/product_reference.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// Epsilons of sum |w||x|: the rounding errors of one long sum of thousands of terms come to some 4.
constexpr double kTolerance = 8.0;
constexpr uint64_t kSeed = 71;
constexpr DType kDTypes[] = {DType::f16, DType::bf16};

struct Shape {
  int64_t rows;
  int64_t columns;
};

// Those that hold weights of this dtype.
std::vector<const WeightFormat*> formats_for(const Tensor& w) {
  std::vector<const WeightFormat*> formats;
  std::ranges::copy_if(weight_formats(), std::back_inserter(formats),
                       [&](const WeightFormat* format) { return format->why_not(w).empty(); });
  return formats;
}

// Random numbers, none of them near 0.
std::vector<double> nonzero_numbers(int64_t count, Random& random) {
  std::vector<double> numbers(static_cast<size_t>(count));
  for (double& x : numbers) {
    x = random.uniform(0.25, 1.0) * (random.below(2) == 0 ? 1.0 : -1.0);
  }
  return numbers;
}

// How a product is called.
struct Call {
  int64_t tokens = 0;
  Layout x = Layout::contiguous;
  Layout y = Layout::contiguous;
  DType bias = DType::f32;
  bool has_bias = false;
  Activation::Kind activation = Activation::Kind::none;
};
std::string describe(const Call& call) {
  return fmt::format("{} tokens{}{}{}{}", call.tokens,
                     call.x == Layout::strided ? ", x strided" : "",
                     call.y == Layout::strided ? ", y strided" : "",
                     call.has_bias ? fmt::format(", {} bias", name_of(call.bias)) : "",
                     call.activation == Activation::Kind::none ? "" : ", relu");
}

// Calls of the weights of one shape. x is the same in all, except for its number of tokens.
class Calls {
 public:
  Calls(const Shape& shape, std::initializer_list<int64_t> tokens) : shape_(shape) {
    Random random(kSeed);
    const int64_t most = std::max(tokens);
    const std::vector<double> numbers = nonzero_numbers(most * shape.columns, random);
    int number = 0;
    for (int64_t count : tokens) {
      // Every call of a weight has other strides, bias and activation than the one before.
      ++number;
      const Call call{
          .tokens = count,
          .x = number % 2 == 0 ? Layout::strided : Layout::contiguous,
          .y = number % 3 == 0 ? Layout::strided : Layout::contiguous,
          .bias = number % 3 == 1 ? DType::f32 : DType::f16,
          .has_bias = number % 3 != 2,
          .activation = number % 4 == 3 ? Activation::Kind::relu : Activation::Kind::none};
      GuardedTensor x(DType::f32, {count, shape.columns}, call.x);
      set_values(x.view(), std::span(numbers).first(static_cast<size_t>(count * shape.columns)));
      GuardedTensor bias = random.tensor(call.bias, {shape.rows});
      calls_.push_back({.call = call, .x = std::move(x), .bias = std::move(bias)});
    }
    all_x_ = GuardedTensor(DType::f32, {most, shape.columns});
    set_values(all_x_.view(), numbers);
  }

  const Tensor& all_x() const { return all_x_.view(); }

  // `expected`: the product with all_x().
  void check(const WeightMatrix& weight, const Expected& expected, ExecContext& exec) const {
    for (const Prepared& p : calls_) {
      SCOPED_TRACE(describe(p.call));
      const GuardedTensor y(DType::f32, {p.call.tokens, shape_.rows}, p.call.y);
      const Epilogue epilogue{.bias = p.call.has_bias ? p.bias.view() : Tensor(),
                              .activation = {p.call.activation, 0.0f}};
      weight.matmul(p.x.view(), y.view(), epilogue, exec);
      const std::vector<double> bias =
          p.call.has_bias ? values_of(p.bias.view()) : std::vector<double>();
      EXPECT_TRUE(all_close(
          y.view(),
          with_epilogue(first_rows(expected, p.call.tokens, shape_.rows), bias, p.call.activation),
          kTolerance));
      EXPECT_TRUE(y.guards_intact());
    }
  }

 private:
  struct Prepared {
    Call call;
    GuardedTensor x;
    GuardedTensor bias;
  };

  Shape shape_;
  std::list<Prepared> calls_;
  GuardedTensor all_x_ = GuardedTensor(DType::f32, {1, 1});
};

// One weight in all formats.
void check_weight(const WeightSpec& spec, const Calls& calls, CpuContext& cpu) {
  const OwnedTensor w = make_weight(spec, kSeed);
  const OwnedTensor exact = testing::copy_of(w.view);
  clear_negative_zeros(exact.view);
  const int64_t nonzeros = nonzeros_of(w.view);
  const Expected expected = product(calls.all_x(), w.view, cpu.threads);
  const auto check = [&](const WeightFormat* format, EncodedWeight e) {
    ASSERT_NO_THROW(format->validate(e));
    EXPECT_EQ(e.format, format->name());
    EXPECT_EQ(e.version, format->version());
    EXPECT_EQ(e.dtype, spec.dtype);
    EXPECT_EQ(e.rows, spec.rows);
    EXPECT_EQ(e.columns, spec.columns);
    EXPECT_EQ(e.nonzeros, nonzeros);
    // A layout may store a little less than that of the paper.
    EXPECT_GE(200 * e.bytes(), 199 * format->formula_bytes(e));

    const OwnedTensor decoded = format->decode(e, cpu.threads);
    clear_negative_zeros(decoded.view);  // a format may keep the sign of a zero, or not
    EXPECT_TRUE(same_matrix(decoded.view, exact.view));

    const std::unique_ptr<WeightMatrix> weight = format->load(std::move(e), {});
    EXPECT_EQ(weight->format(), format->name());
    EXPECT_EQ(weight->out(), spec.rows);
    EXPECT_EQ(weight->in(), spec.columns);
    calls.check(*weight, expected, cpu.exec);
  };
  for (const WeightFormat* format : formats_for(w.view)) {
    SCOPED_TRACE(fmt::format("{} {} [{}, {}], density {}, {}", format->name(), name_of(spec.dtype),
                             spec.rows, spec.columns, spec.density, name_of(spec.pattern)));
    EncodedWeight fast = format->encode(w.view, cpu.threads);
    EncodedWeight small = format->encode(w.view, LayoutFor::size, cpu.threads);
    EXPECT_LE(small.bytes(), fast.bytes());
    if (!same_encoding(small, fast)) {
      SCOPED_TRACE("in the layout for size");
      check(format, std::move(small));
    }
    check(format, std::move(fast));
  }
}

// ------------------------------------------------------------------------- all patterns and sizes

struct ShapeCase {
  Shape shape;
  DType dtype;
};
void PrintTo(const ShapeCase& c, std::ostream* out) {
  *out << fmt::format("[{}, {}] of {}", c.shape.rows, c.shape.columns, name_of(c.dtype));
}
std::string case_name(const ::testing::TestParamInfo<ShapeCase>& info) {
  return fmt::format("{}x{}_{}", info.param.shape.rows, info.param.shape.columns,
                     name_of(info.param.dtype));
}
std::vector<ShapeCase> cases_of(std::initializer_list<Shape> shapes) {
  std::vector<ShapeCase> cases;
  for (const Shape& shape : shapes) {
    for (DType dtype : kDTypes) {
      cases.push_back({shape, dtype});
    }
  }
  return cases;
}

using SmallShapes = ::testing::TestWithParam<ShapeCase>;

TEST_P(SmallShapes, AllPatternsAndDensities) {
  const auto& [shape, dtype] = GetParam();
  const Calls calls(shape, {1, 3, 8, 17, 130});
  CpuContext cpu(2);
  for (Pattern pattern : kPatterns) {
    for (double density : {0.0, 0.01, 0.1, 0.3, 0.5, 0.6, 1.0}) {
      if (kSanitized && shape.rows > 200 && density != 0.01 && density != 0.5) {
        continue;
      }
      check_weight({.dtype = dtype,
                    .rows = shape.rows,
                    .columns = shape.columns,
                    .density = density,
                    .pattern = pattern},
                   calls, cpu);
      if (HasFailure()) {
        return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Conformance, SmallShapes,
    ::testing::ValuesIn(cases_of({{1, 1}, {16, 16}, {64, 64}, {127, 65}, {256, 768}})), case_name);

using LargeShapes = ::testing::TestWithParam<ShapeCase>;

TEST_P(LargeShapes, Random) {
  const auto& [shape, dtype] = GetParam();
  const Calls calls(shape, {3, 17});
  CpuContext cpu(2);
  for (double density : {0.1, 0.5}) {
    if (kSanitized && density > 0.1) {
      continue;
    }
    check_weight({.dtype = dtype, .rows = shape.rows, .columns = shape.columns, .density = density},
                 calls, cpu);
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, LargeShapes,
                         ::testing::ValuesIn(cases_of({{5504, 4096}, {4096, 5504}})), case_name);

// ------------------------------------------------------------------------------ format by format

class EachFormat : public ::testing::TestWithParam<std::string_view> {  // its name
 protected:
  const WeightFormat& format() const { return weight_format(GetParam()); }
  bool takes(DType dtype) const {
    return format().why_not(random_weight(dtype, {1, 1}).view).empty();
  }
  // body(dtype, shape) for all of them.
  template <class Body>
  void for_all_weights(const Body& body) const {
    for (DType dtype : kDTypes) {
      for (const Shape& shape :
           {Shape{1, 1}, Shape{16, 16}, Shape{64, 64}, Shape{127, 65}, Shape{256, 768}}) {
        if (takes(dtype)) {
          SCOPED_TRACE(fmt::format("{} {} [{}, {}]", format().name(), name_of(dtype), shape.rows,
                                   shape.columns));
          body(dtype, shape);
        }
      }
    }
  }
  static OwnedTensor random_weight(DType dtype, const Shape& shape) {
    return make_weight(
        {.dtype = dtype, .rows = shape.rows, .columns = shape.columns, .density = 0.4}, kSeed);
  }
};

TEST_P(EachFormat, EncodesAlikeOnAnyNumberOfThreads) {
  for_all_weights([&](DType dtype, const Shape& shape) {
    const OwnedTensor w = random_weight(dtype, shape);
    ThreadPool one(1);
    const EncodedWeight expected = format().encode(w.view, one);
    for (int count : {2, 3}) {
      ThreadPool threads(count);
      EXPECT_TRUE(same_encoding(format().encode(w.view, threads), expected)) << count;
      EXPECT_TRUE(same_matrix(format().decode(expected, threads).view, w.view)) << count;
    }
  });
}

TEST_P(EachFormat, BitsDependOnNeitherOtherTokensNorThreads) {
  for_all_weights([&](DType dtype, const Shape& shape) {
    constexpr int64_t kTokens = 17;
    const OwnedTensor w = random_weight(dtype, shape);
    ThreadPool threads(1);
    const std::unique_ptr<WeightMatrix> weight =
        format().load(format().encode(w.view, threads), {});
    const int64_t workspace_bytes = weight->workspace_bytes(kTokens, Sums::fastest);
    CpuContext one(1, workspace_bytes);
    const GuardedTensor x = Random(kSeed).tensor(DType::f32, {kTokens, shape.columns});
    const GuardedTensor y(DType::f32, {kTokens, shape.rows});
    weight->matmul(x.view(), y.view(), {}, one.exec);
    for (int count : {2, 3}) {
      CpuContext several(count, workspace_bytes);
      const GuardedTensor same(DType::f32, {kTokens, shape.rows});
      weight->matmul(x.view(), same.view(), {}, several.exec);
      EXPECT_TRUE(same_bits(same.view(), y.view())) << count << " threads";
    }
    for (int64_t tokens : {1, 2, 5, 9}) {
      for (int64_t first = 0; first + tokens <= kTokens; first += tokens) {
        const GuardedTensor some(DType::f32, {tokens, shape.rows});
        weight->matmul(x.view().rows(first, tokens), some.view(), {}, one.exec);
        EXPECT_TRUE(same_bits(some.view(), y.view().rows(first, tokens)))
            << tokens << " tokens from " << first;
      }
    }
  });
}

TEST_P(EachFormat, ExpandsAnyRows) {
  for_all_weights([&](DType dtype, const Shape& shape) {
    const OwnedTensor w = random_weight(dtype, shape);
    CpuContext cpu(2);
    const std::unique_ptr<WeightMatrix> weight =
        format().load(format().encode(w.view, cpu.threads), {});
    const int64_t rows = shape.rows;
    for (const Range& range : {Range{0, rows}, Range{0, 1}, Range{rows - 1, 1}, Range{rows, 0},
                               Range{1, rows - 1}, Range{3, 11}, Range{13, 51}, Range{63, 2},
                               Range{61, 66}, Range{65, 127}, Range{128, 100}}) {
      if (range.begin + range.count > rows) {
        continue;
      }
      const GuardedTensor dense(dtype, {range.count, shape.columns});
      weight->expand(range, dense.view(), cpu.exec);
      EXPECT_TRUE(same_matrix(dense.view(), w.view.rows(range.begin, range.count)))
          << range.count << " rows from " << range.begin;
      EXPECT_TRUE(dense.guards_intact());
    }
  });
}

TEST_P(EachFormat, RefusesToExpandWhatDoesNotFit) {
  const OwnedTensor w = random_weight(DType::f16, {100, 64});
  CpuContext cpu(2);
  const std::unique_ptr<WeightMatrix> weight =
      format().load(format().encode(w.view, cpu.threads), {});
  const auto refuses = [&](const Range& rows, const Tensor& dense) {
    return throws_error([&] { weight->expand(rows, dense, cpu.exec); }, "");
  };
  const Range rows{.begin = 30, .count = 40};
  const GuardedTensor good(DType::f16, {40, 64});
  EXPECT_NO_THROW(weight->expand(rows, good.view(), cpu.exec));
  const GuardedTensor wider(DType::f16, {40, 65});
  EXPECT_TRUE(refuses(rows, wider.view().columns(0, 64)));  // strided
  EXPECT_TRUE(refuses(rows, wider.view().columns(1, 64)));
  EXPECT_TRUE(refuses(rows, wider.view()));
  EXPECT_TRUE(refuses(rows, GuardedTensor(DType::f16, {40, 63}).view()));
  EXPECT_TRUE(refuses(rows, GuardedTensor(DType::f16, {39, 64}).view()));
  EXPECT_TRUE(refuses(rows, GuardedTensor(DType::f16, {41, 64}).view()));
  EXPECT_TRUE(refuses(rows, GuardedTensor(DType::bf16, {40, 64}).view()));
  EXPECT_TRUE(refuses(rows, GuardedTensor(DType::f32, {40, 64}).view()));
  EXPECT_TRUE(wider.guards_intact());
  EXPECT_TRUE(std::ranges::all_of(values_of(wider.view()), [](double x) { return std::isnan(x); }));
}

TEST_P(EachFormat, SlicesAnyRange) {
  for_all_weights([&](DType dtype, const Shape& shape) {
    const OwnedTensor w = random_weight(dtype, shape);
    ThreadPool threads(2);
    const EncodedWeight e = format().encode(w.view, threads);
    for (Axis axis : {Axis::rows, Axis::columns}) {
      const int64_t size = axis == Axis::rows ? shape.rows : shape.columns;
      for (const Range& range :
           {Range{0, size}, Range{0, size / 2}, Range{size / 2, size - size / 2}, Range{0, 0},
            Range{size, 0}, Range{size / 3, size / 3}, Range{0, 64}, Range{64, size - 64},
            Range{64, 64}, Range{128, 128}, Range{256, 256}, Range{1, 64}}) {
        if (range.count < 0 || range.begin + range.count > size) {
          continue;
        }
        SCOPED_TRACE(fmt::format("{} {} from {}", range.count,
                                 axis == Axis::rows ? "rows" : "columns", range.begin));
        const OwnedTensor part =
            testing::copy_of(axis == Axis::rows ? w.view.rows(range.begin, range.count)
                                                : w.view.columns(range.begin, range.count));
        const EncodedWeight sliced = slice(e, axis, range, threads);
        ASSERT_NO_THROW(format().validate(sliced));
        EXPECT_TRUE(same_encoding(sliced, format().encode(part.view, threads)));
        EXPECT_TRUE(same_matrix(format().decode(sliced, threads).view, part.view));
      }
    }
  });
}

// Rows of w from the top, with as many in each part, the parts in these formats by turns, joined.
EncodedWeight join(const Tensor& w, const std::vector<int64_t>& row_counts,
                   const std::vector<const WeightFormat*>& formats, ThreadPool& threads) {
  std::vector<EncodedWeight> parts;
  int64_t row = 0;
  for (size_t i = 0; i < row_counts.size(); ++i) {
    parts.push_back(formats[i % formats.size()]->encode(w.rows(row, row_counts[i]), threads));
    row += row_counts[i];
  }
  std::vector<const EncodedWeight*> pointers;
  for (const EncodedWeight& part : parts) {
    pointers.push_back(&part);
  }
  return concat_rows(pointers, threads);
}

TEST_P(EachFormat, JoinsRows) {
  ThreadPool threads(2);
  for (DType dtype : kDTypes) {
    for (int64_t columns : {1, 65, 256}) {
      const OwnedTensor w = random_weight(dtype, {300, columns});
      if (!format().why_not(w.view).empty()) {
        continue;
      }
      for (const std::vector<int64_t>& row_counts :
           std::vector<std::vector<int64_t>>{{300},
                                             {64, 236},
                                             {128, 64, 108},
                                             {256, 44},
                                             {100, 100, 100},
                                             {1, 63, 236},
                                             {0, 64, 0, 236},
                                             {299, 1}}) {
        SCOPED_TRACE(fmt::format("{} {} [300, {}] from {}", format().name(), name_of(dtype),
                                 columns, fmt::join(row_counts, " + ")));
        const EncodedWeight joined = join(w.view, row_counts, {&format()}, threads);
        ASSERT_NO_THROW(format().validate(joined));
        EXPECT_TRUE(same_encoding(joined, format().encode(w.view, threads)));
      }
    }
  }
}

TEST_P(EachFormat, JoinsRowsInOtherFormats) {
  ThreadPool threads(2);
  for (DType dtype : kDTypes) {
    const OwnedTensor w = random_weight(dtype, {192, 130});
    if (!format().why_not(w.view).empty()) {
      continue;
    }
    for (const WeightFormat* other : formats_for(w.view)) {
      SCOPED_TRACE(fmt::format("{} and {}, {}", format().name(), other->name(), name_of(dtype)));
      // The format of the part with the most rows is that of the result.
      for (const std::vector<int64_t>& row_counts :
           std::vector<std::vector<int64_t>>{{128, 64}, {100, 92}, {64, 50, 78}}) {
        const EncodedWeight joined = join(w.view, row_counts, {&format(), other}, threads);
        EXPECT_TRUE(same_encoding(joined, format().encode(w.view, threads)));
      }
      const EncodedWeight joined = join(w.view, {64, 128}, {&format(), other}, threads);
      EXPECT_TRUE(same_encoding(joined, other->encode(w.view, threads)));
    }
  }
}

std::vector<std::string_view> format_names() {
  std::vector<std::string_view> names;
  for (const WeightFormat* format : weight_formats()) {
    names.push_back(format->name());
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Conformance, EachFormat, ::testing::ValuesIn(format_names()),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace sparsellm
