// What holds for the encodings of every format of sparse/registry.h on the host, and for the bits
// of their products there; a new format is found.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/registry.h"
#include "tests/sparse/conformance.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

void check_encoding(const WeightFormat& format, const EncodedWeight& e, const WeightSpec& spec,
                    const Tensor& w, ThreadPool& threads) {
  ASSERT_NO_THROW(format.validate(e));
  EXPECT_EQ(e.format, format.name());
  EXPECT_EQ(e.version, format.version());
  EXPECT_EQ(e.dtype, spec.dtype);
  EXPECT_EQ(e.rows, spec.rows);
  EXPECT_EQ(e.columns, spec.columns);
  EXPECT_EQ(e.nonzeros, nonzeros_of(w));
  // A layout may store less than that of the paper. general_sparse has positions of 1 or 2 bytes
  // and starts of slices, where its formula has 4 bytes for each nonzero and each row.
  if (format.name() == "general_sparse") {
    EXPECT_GE(e.bytes(), e.nonzeros * size_of(e.dtype));
  } else {
    EXPECT_GE(4 * e.bytes(), 3 * format.formula_bytes(e));
  }
  const OwnedTensor decoded = format.decode(e, threads);
  const OwnedTensor exact = testing::copy_of(w);
  clear_negative_zeros(decoded.view);  // a format may keep the sign of a zero, or not
  clear_negative_zeros(exact.view);
  EXPECT_TRUE(same_matrix(decoded.view, exact.view));
}

// One weight in all formats.
void check_encodings(const WeightSpec& spec, ThreadPool& threads) {
  const OwnedTensor w = make_weight(spec, kConformanceSeed);
  for (const WeightFormat* format : formats_for(w.view)) {
    SCOPED_TRACE(fmt::format("{} {} [{}, {}], density {}, {}", format->name(), name_of(spec.dtype),
                             spec.rows, spec.columns, spec.density, name_of(spec.pattern)));
    const EncodedWeight fast = format->encode(w.view, threads);
    check_encoding(*format, fast, spec, w.view, threads);
    int64_t small = fast.bytes();
    for (const auto& [options, name] : other_layouts_of(*format)) {
      const EncodedWeight other = format->encode(w.view, options, threads);
      if (options.goal == LayoutFor::size) {
        small = other.bytes();
        EXPECT_LE(small, fast.bytes());
      }
      if (!same_encoding(other, fast)) {
        SCOPED_TRACE(name);
        EXPECT_LE(small, other.bytes() + other.bytes() / 256);
        check_encoding(*format, other, spec, w.view, threads);
      }
    }
  }
}

using SmallEncodings = ::testing::TestWithParam<ShapeCase>;

TEST_P(SmallEncodings, AllPatternsAndDensities) {
  const auto& [shape, dtype] = GetParam();
  ThreadPool threads(2);
  for (Pattern pattern : kPatterns) {
    for (double density : {0.0, 0.01, 0.1, 0.3, 0.5, 0.6, 1.0}) {
      check_encodings({.dtype = dtype,
                       .rows = shape.rows,
                       .columns = shape.columns,
                       .density = density,
                       .pattern = pattern},
                      threads);
      if (HasFailure()) {
        return;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Conformance, SmallEncodings, ::testing::ValuesIn(cases_of(kSmallShapes)),
                         case_name);

using LargeEncodings = ::testing::TestWithParam<ShapeCase>;

TEST_P(LargeEncodings, Random) {
  const auto& [shape, dtype] = GetParam();
  ThreadPool threads(2);
  for (double density : {0.1, 0.5}) {
    if (kSanitized && density > 0.1) {
      continue;
    }
    check_encodings(
        {.dtype = dtype, .rows = shape.rows, .columns = shape.columns, .density = density},
        threads);
  }
}
constexpr WeightShape kLargeShapes[] = {{5504, 4096}, {4096, 5504}};
INSTANTIATE_TEST_SUITE_P(Conformance, LargeEncodings, ::testing::ValuesIn(cases_of(kLargeShapes)),
                         case_name);

// ------------------------------------------------------------------------------ format by format

class EachEncoding : public ::testing::TestWithParam<std::string_view> {  // its format
 protected:
  const WeightFormat& format() const { return weight_format(GetParam()); }
};

TEST_P(EachEncoding, IsAlikeOnAnyNumberOfThreads) {
  for_small_weights(format(), [&](const Tensor& w) {
    ThreadPool one(1);
    for (const auto& [options, name] : layouts_of(format())) {
      SCOPED_TRACE(name);
      const EncodedWeight expected = format().encode(w, options, one);
      for (int count : {2, 3}) {
        ThreadPool threads(count);
        EXPECT_TRUE(same_encoding(format().encode(w, options, threads), expected)) << count;
        EXPECT_TRUE(same_matrix(format().decode(expected, threads).view, w)) << count;
      }
    }
  });
}

TEST_P(EachEncoding, GivesBitsThatDependOnNeitherOtherTokensNorThreads) {
  for_small_weights(format(), [&](const Tensor& w) {
    constexpr int64_t kTokens = 17;
    ThreadPool threads(1);
    const std::unique_ptr<WeightMatrix> weight =
        format().load(format().encode(w, threads), {.threads = threads});
    const int64_t workspace_bytes = weight->workspace_bytes(kTokens, Sums::fastest);
    CpuContext one(1, workspace_bytes);
    const GuardedTensor x = Random(kConformanceSeed).tensor(DType::f32, {kTokens, w.size(1)});
    const GuardedTensor y(DType::f32, {kTokens, w.size(0)});
    weight->matmul(x.view(), y.view(), {}, one.exec);
    for (int count : {2, 3}) {
      CpuContext several(count, workspace_bytes);
      const GuardedTensor same(DType::f32, {kTokens, w.size(0)});
      weight->matmul(x.view(), same.view(), {}, several.exec);
      EXPECT_TRUE(same_bits(same.view(), y.view())) << count << " threads";
    }
    for (int64_t tokens : {1, 2, 5, 9}) {
      for (int64_t first = 0; first + tokens <= kTokens; first += tokens) {
        const GuardedTensor some(DType::f32, {tokens, w.size(0)});
        weight->matmul(x.view().rows(first, tokens), some.view(), {}, one.exec);
        EXPECT_TRUE(same_bits(some.view(), y.view().rows(first, tokens)))
            << tokens << " tokens from " << first;
      }
    }
  });
}

// Slices keep the layout of what they are cut from, where a format has several.
std::string layout_of(const EncodedWeight& e) {
  for (const EncodedPart& part : e.parts) {
    if (part.name == "layout") {
      return {reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size()};
    }
  }
  return {};
}

// Slices of w, encoded so, and what the result of another encoder would be.
void check_slices(const WeightFormat& format, const Tensor& w, const LayoutOptions& options) {
  ThreadPool threads(2);
  const EncodedWeight e = format.encode(w, options, threads);
  for (Axis axis : {Axis::rows, Axis::columns}) {
    const int64_t size = w.size(axis == Axis::rows ? 0 : 1);
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
          testing::copy_of(axis == Axis::rows ? w.rows(range.begin, range.count)
                                              : w.columns(range.begin, range.count));
      const EncodedWeight sliced = slice(e, axis, range, threads);
      ASSERT_NO_THROW(format.validate(sliced));
      const EncodedWeight encoded = format.encode(part.view, options, threads);
      if (layout_of(sliced) == layout_of(encoded)) {
        EXPECT_TRUE(same_encoding(sliced, encoded));
      }
      EXPECT_TRUE(same_matrix(format.decode(sliced, threads).view, part.view));
    }
  }
}

TEST_P(EachEncoding, SlicesAnyRange) {
  for (const double density : {0.4, 0.2, 0.1, 0.01}) {
    for_small_weights(
        format(),
        [&](const Tensor& w) {
          for (const auto& [options, name] : layouts_of(format())) {
            SCOPED_TRACE(fmt::format("density {}, {}", density, name));
            check_slices(format(), w, options);
          }
        },
        density);
  }
}

// Rows of w from the top, with as many in each part, the parts in these formats by turns, joined.
EncodedWeight join(const Tensor& w, const std::vector<int64_t>& row_counts,
                   const std::vector<const WeightFormat*>& formats, ThreadPool& threads,
                   const LayoutOptions& options = {}) {
  std::vector<EncodedWeight> parts;
  int64_t row = 0;
  for (size_t i = 0; i < row_counts.size(); ++i) {
    parts.push_back(
        formats[i % formats.size()]->encode(w.rows(row, row_counts[i]), options, threads));
    row += row_counts[i];
  }
  std::vector<const EncodedWeight*> pointers;
  pointers.reserve(parts.size());
  for (const EncodedWeight& part : parts) {
    pointers.push_back(&part);
  }
  return concat_rows(pointers, threads);
}

const std::vector<std::vector<int64_t>> kJoinedRows{
    {300},           {64, 236},    {128, 64, 108},  {256, 44},
    {100, 100, 100}, {1, 63, 236}, {0, 64, 0, 236}, {299, 1}};

TEST_P(EachEncoding, JoinsRows) {
  ThreadPool threads(2);
  for (DType dtype : kConformanceDTypes) {
    for (int64_t columns : {1, 65, 256}) {
      const OwnedTensor w = conformance_weight(dtype, {300, columns});
      if (!format().why_not(w.view).empty()) {
        continue;
      }
      for (const std::vector<int64_t>& row_counts : kJoinedRows) {
        SCOPED_TRACE(fmt::format("{} {} [300, {}] from {}", format().name(), name_of(dtype),
                                 columns, fmt::join(row_counts, " + ")));
        const EncodedWeight joined = join(w.view, row_counts, {&format()}, threads);
        ASSERT_NO_THROW(format().validate(joined));
        EXPECT_TRUE(same_encoding(joined, format().encode(w.view, threads)));
      }
    }
  }
}

// Copied or encoded again, records for size stay so.
TEST(Records, ForSizeAreJoinedForSize) {
  ThreadPool threads(2);
  const WeightFormat& format = weight_format("tca_bme");
  const LayoutOptions size{.layout = "size"};
  for (const double density : {0.0, 0.01, 0.1, 0.19}) {
    for (int64_t columns : {256, 400}) {
      const OwnedTensor w = conformance_weight(DType::f16, {300, columns}, density);
      for (const std::vector<int64_t>& row_counts : kJoinedRows) {
        SCOPED_TRACE(fmt::format("density {}, [300, {}] from {}", density, columns,
                                 fmt::join(row_counts, " + ")));
        const EncodedWeight joined = join(w.view, row_counts, {&format}, threads, size);
        ASSERT_NO_THROW(format.validate(joined));
        EXPECT_TRUE(same_encoding(joined, format.encode(w.view, size, threads)));
      }
    }
  }
}

TEST_P(EachEncoding, JoinsRowsInOtherFormats) {
  ThreadPool threads(2);
  for (DType dtype : kConformanceDTypes) {
    const OwnedTensor w = conformance_weight(dtype, {192, 130});
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
  for (const WeightFormat* format : exact_formats()) {
    names.push_back(format->name());
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Conformance, EachEncoding, ::testing::ValuesIn(format_names()),
                         [](const auto& test) { return std::string(test.param); });

TEST(EveryFormat, RefusesALayoutThatItDoesNotHave) {
  ThreadPool threads(1);
  const OwnedTensor w = conformance_weight(DType::f16, {64, 64});
  for (const WeightFormat* format : formats_for(w.view)) {
    const std::string message =
        format->name() == "general_sparse" ? "layout: expected 'positions=', found 'fast'"
        : format->name() == "tca_bme"
            ? "records for \"fast\"; they are for speed or size"
            : fmt::format("the layout of the weight format {} cannot be chosen", format->name());
    ASSERT_NO_THROW(format->check_layout(""));
    EXPECT_TRUE(throws_error([&] { format->check_layout("fast"); }, message));
    EXPECT_TRUE(
        throws_error([&] { format->encode(w.view, {.layout = "fast"}, threads); }, message));
    EXPECT_TRUE(throws_error(
        [&] { format->encode_on_device(w.view, {.layout = "fast"}, {.threads = threads}); },
        message));
  }
}

TEST(EveryFormat, IsRefusedByDevicesThatItDoesNotRunOn) {
  ThreadPool threads(1);
  const Device gpu{.kind = Device::Kind::cuda, .index = 3};
  const LoadContext context{.device = gpu, .compute = DType::f16, .threads = threads};
  const OwnedTensor w = conformance_weight(DType::f16, {64, 64});
  for (const WeightFormat* format : formats_for(w.view)) {
    if (format->runs_on(gpu)) {
      continue;
    }
    const std::string message =
        fmt::format("the weight format {} has no kernels for cuda:3", format->name());
    EXPECT_TRUE(throws_error([&] { format->encode_on_device(w.view, context); }, message));
    EncodedWeight e = format->encode(w.view, threads);
    const WeightPart part{.weight = &e, .name = "the tensor x"};
    EXPECT_TRUE(throws_error(
        [&] {
          format->load({&part, 1}, context);
        },
        "the tensor x: " + message));
  }
}

}  // namespace
}  // namespace sparsellm
