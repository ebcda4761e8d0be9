// Version 3 of tca_bme, dense_i8 and dense_i4: parts of matrices, and matrices one below the other,
// keep codes and scales; and products on the CPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "sparse/dense/dense.h"
#include "sparse/narrow_encoding.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/product_reference.h"
#include "tests/sparse/tca_bme/quantized_matrices.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tca_bme::encode_quantized;
using tca_bme::quantized_of;
using tca_bme::read_quantized_layout;

const WeightFormat& format() { return tca_bme_format(); }

// Valid, of version 3, and with these codes and scales.
void expect_quantized(const EncodedWeight& e, const QuantizedMatrix& expected, DType dtype) {
  ThreadPool threads(1);
  ASSERT_EQ(e.version, e.format == "tca_bme" ? 3 : 1);
  EXPECT_EQ(e.dtype, dtype);
  ASSERT_NO_THROW(weight_format(e.format).validate(e));
  EXPECT_EQ(e.nonzeros, nonzeros_of(expected));
  EXPECT_TRUE(same_quantized(quantized_of(e, threads), without_negative_zeros(expected)));
  const EncodedWeight again = encode_quantized(expected, e.format, dtype, threads);
  if (read_quantized_layout(e) == read_quantized_layout(again)) {
    EXPECT_TRUE(same_encoding(e, again));
  }
}

QuantizedMatrix matrix_of(QuantizedShape kind, int64_t rows, int64_t columns, double density,
                          uint64_t seed) {
  kind.rows = rows;
  kind.columns = columns;
  kind.density = density;
  return random_quantized(kind, seed);
}

constexpr int64_t kRows = 200;
constexpr int64_t kColumns = 411;
struct SliceCase {
  Slice slice;
  bool at_borders;
  int64_t group;  // the largest that the columns begin at
};
constexpr SliceCase kSlices[] = {
    {{.rows = {0, 200}, .columns = {0, 411}}, true, 128},
    {{.rows = {64, 128}, .columns = {0, 411}}, true, 128},
    {{.rows = {128, 72}, .columns = {256, 155}}, true, 128},
    {{.rows = {0, 64}, .columns = {128, 128}}, true, 128},
    {{.rows = {64, 0}, .columns = {128, 0}}, true, 128},
    {{.rows = {1, 130}, .columns = {0, 411}}, false, 128},
    {{.rows = {64, 70}, .columns = {128, 130}}, false, 128},
    {{.rows = {0, 200}, .columns = {64, 128}}, false, 64},
    {{.rows = {3, 5}, .columns = {96, 7}}, false, 32},
    {{.rows = {0, 200}, .columns = {5, 400}}, false, 1},
    {{.rows = {199, 1}, .columns = {410, 1}}, false, 1},
};

TEST(TcaBmeQuantizedSlice, HasTheSameCodesAndScales) {
  ThreadPool threads(2);
  for (const QuantizedShape& kind : quantized_kinds()) {
    const WeightFormat& format = weight_format(kind.format);
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const QuantizedMatrix q = matrix_of(kind, kRows, kColumns, 0.5, 321);
      const EncodedWeight e = encode_as(kind, q, dtype, threads);
      for (const SliceCase& each : kSlices) {
        const Slice& cut = each.slice;
        const bool at_borders = each.at_borders;
        SCOPED_TRACE(fmt::format("{} {} of {}: {} rows from {}, {} columns from {}", kind.format,
                                 name_of(kind.type), kind.group, cut.rows.count, cut.rows.begin,
                                 cut.columns.count, cut.columns.begin));
        EXPECT_EQ(format.at_borders(e, cut), at_borders);
        EncodedWeight view = view_of(e);
        const WeightPart part{.weight = &view, .name = "w", .slice = cut};
        const auto slice_twice = [&] {
          return slice(slice(e, Axis::rows, cut.rows, threads), Axis::columns, cut.columns,
                       threads);
        };
        if (kind.type == ValueType::i4 && each.group == 1) {
          EXPECT_TRUE(throws_error(
              slice_twice,
              fmt::format("in which every {} share a scale are no weight of their own: they begin "
                          "at no multiple of 32",
                          kind.group)));
          EXPECT_TRUE(throws_error([&] { format.expected_size(e, cut); }, "no multiple of 32"));
          EXPECT_TRUE(throws_error([&] { format.read_slice(part, threads); }, "w: columns from"));
          continue;
        }
        const QuantizedMatrix expected = naive_slice(q, cut);
        expect_quantized(slice_twice(), expected, dtype);
        const EncodedWeight read = format.read_slice(part, threads);
        expect_quantized(read, expected, dtype);
        const EncodedSize size = format.expected_size(e, cut);
        EXPECT_EQ(size.exact, at_borders);
        if (at_borders) {
          EXPECT_EQ(size.bytes, read.bytes());
        } else {
          const auto bytes = static_cast<double>(read.bytes());
          EXPECT_NEAR(static_cast<double>(size.bytes), bytes, 0.05 * bytes);
        }
        if (at_borders && cut.rows.count > 0) {
          EXPECT_EQ(read_quantized_layout(read), read_quantized_layout(e));
          EXPECT_TRUE(same_encoding(slice_twice(), read));
        }
      }
      EXPECT_FALSE(format.slice(e, Axis::rows, {0, 100}).has_value());
      EXPECT_FALSE(format.slice(e, Axis::columns, {64, 347}).has_value());
      EXPECT_TRUE(throws_error(
          [&] {
            slice(e, Axis::rows, {100, 101}, threads);
          },
          "101 rows from 100 of a weight with 200"));
    }
  }
}

TEST(TcaBmeQuantizedSlice, ADamagedPartIsAnError) {
  ThreadPool threads(1);
  const QuantizedMatrix q = matrix_of({.type = ValueType::i8}, 128, 256, 0.5, 322);
  EncodedWeight e = encode_quantized(q, DType::f16, threads);
  const Slice lower{.rows = {64, 64}, .columns = {0, 256}};
  const WeightPart part{.weight = &e, .name = "w", .slice = lower};
  const auto scales = [&] { return static_cast<float*>(e.parts[3].memory.data()); };
  scales()[100] = -1.0f;
  EXPECT_TRUE(throws_error([&] { format().read_slice(part, threads); },
                           "w: tca_bme: the scale of row 100 is -1"));
  scales()[100] = 1.0f;
  static_cast<std::byte*>(e.parts[2].memory.data())[e.parts[2].bytes.size() - 1] = std::byte{1};
  EXPECT_TRUE(throws_error([&] { format().read_slice(part, threads); }, "w: tca_bme:"));
}

// ---------------------------------------------------------------------------------------- joining

QuantizedMatrix naive_join(std::span<const QuantizedMatrix> parts) {
  QuantizedMatrix all = parts.front();
  for (const QuantizedMatrix& part : parts.subspan(1)) {
    all.rows += part.rows;
    all.codes.insert(all.codes.end(), part.codes.begin(), part.codes.end());
    all.scales.insert(all.scales.end(), part.scales.begin(), part.scales.end());
  }
  return all;
}

EncodedWeight join(std::span<const EncodedWeight> parts, ThreadPool& threads) {
  std::vector<const EncodedWeight*> pointers;
  std::ranges::transform(parts, std::back_inserter(pointers), [](const auto& e) { return &e; });
  return concat_rows(pointers, threads);
}

TEST(TcaBmeQuantizedJoin, HasTheSameCodesAndScales) {
  ThreadPool threads(2);
  struct Case {
    std::vector<std::pair<int64_t, double>> parts;  // rows and density
    bool at_borders;
  };
  const Case cases[] = {
      {{{64, 0.5}, {128, 0.5}, {30, 0.5}}, true},
      {{{64, 0.5}}, true},
      {{{0, 0.5}, {64, 0.7}, {0, 0.5}}, true},
      {{{0, 0.5}, {0, 0.5}}, true},
      {{{30, 0.5}, {64, 0.5}}, false},
      {{{65, 0.3}, {3, 1.0}, {1, 0.0}}, false},
      {{{64, 0.2}, {64, 0.9}}, false},  // in 8-bit values other offsets
  };
  for (const QuantizedShape& kind : quantized_kinds()) {
    for (const auto& [sizes, at_borders] : cases) {
      std::vector<QuantizedMatrix> matrices;
      std::vector<EncodedWeight> parts;
      for (const auto& [rows, density] : sizes) {
        matrices.push_back(matrix_of(kind, rows, 133, density, 323 + matrices.size()));
        parts.push_back(encode_as(kind, matrices.back(), DType::f16, threads));
      }
      std::vector<const EncodedWeight*> pointers;
      std::ranges::transform(parts, std::back_inserter(pointers),
                             [](const EncodedWeight& part) { return &part; });
      const bool as_they_are = at_borders || ((kind.type == ValueType::i4 || kind.dense()) &&
                                              sizes.front().first % 64 == 0);
      const WeightFormat& in = weight_format(kind.format);
      EXPECT_EQ(in.concat_rows(pointers).has_value(), as_they_are);
      expect_quantized(join(parts, threads), naive_join(matrices), DType::f16);
    }
  }
}

// Parts of other kinds: their values, in version 2 or what the largest part is in.
TEST(TcaBmeQuantizedJoin, OfOtherKindsHasTheSameValues) {
  ThreadPool threads(2);
  std::vector<EncodedWeight> parts;
  for (const QuantizedShape& kind : quantized_kinds()) {
    parts.push_back(
        encode_as(kind, matrix_of(kind, 64, 133, 0.5, 331 + parts.size()), DType::f16, threads));
  }
  const auto expect_joined = [&](const EncodedWeight& a, const EncodedWeight& b,
                                 const WeightFormat& in) {
    const EncodedWeight two[] = {view_of(a), view_of(b)};
    const EncodedWeight joined = join(two, threads);
    EXPECT_EQ(joined.format, in.name());
    EXPECT_EQ(joined.version, in.version());
    ASSERT_NO_THROW(in.validate(joined));
    const OwnedTensor all = in.decode(joined, threads);
    const auto decoded = [&](const EncodedWeight& e) {
      return weight_format(e.format).decode(e, threads);
    };
    EXPECT_TRUE(same_matrix(all.view.rows(0, a.rows), decoded(a).view));
    EXPECT_TRUE(same_matrix(all.view.rows(a.rows, b.rows), decoded(b).view));
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const EncodedWeight& next = parts[(i + 1) % parts.size()];
    if (parts[i].format == format().name()) {
      expect_joined(parts[i], next, format());
    } else {  // rounded anew
      const EncodedWeight two[] = {view_of(parts[i]), view_of(next)};
      const EncodedWeight joined = join(two, threads);
      EXPECT_EQ(joined.format, parts[i].format);
      EXPECT_EQ(type_of_values(joined), type_of_values(parts[i]));
      ASSERT_NO_THROW(weight_format(joined.format).validate(joined));
    }
  }
  const OwnedTensor dense = format().decode(parts.front(), threads);
  const EncodedWeight version_2 = format().encode(dense.view, threads);
  expect_joined(parts.front(), version_2, format());
  expect_joined(version_2, parts.front(), format());
  const EncodedWeight in_dense = dense_format().encode(dense.view, threads);
  expect_joined(in_dense, parts.front(), dense_format());
  expect_joined(parts.front(), in_dense, format());
}

// ------------------------------------------------------------------------------- products on a CPU

TEST(TcaBmeQuantizedProduct, IsThatOfTheDequantisedWeight) {
  CpuContext cpu(2, 64 << 20);
  for (const QuantizedShape& kind : quantized_kinds()) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      for (const double density : {0.0, 0.02, 0.3, 1.0}) {
        const QuantizedMatrix q = matrix_of(kind, 131, 300, density, 341);
        const OwnedTensor w = dequantize(q, dtype, cpu.threads);
        const auto weight =
            weight_format(kind.format)
                .load(encode_as(kind, q, dtype, cpu.threads), {.threads = cpu.threads});
        EXPECT_EQ(weight->format(), kind.format);
        EXPECT_EQ(weight->dtype(), dtype);
        EXPECT_EQ(weight->out(), 131);
        EXPECT_EQ(weight->in(), 300);
        for (const int64_t tokens : {1, 3, 17}) {
          const GuardedTensor x =
              Random(342).tensor(DType::f32, {tokens, 300}, Layout::contiguous, 0.25, 1.0);
          const GuardedTensor y(DType::f32, {tokens, 131});
          weight->matmul(x.view(), y.view(), {}, cpu.exec);
          EXPECT_TRUE(all_close(y.view(), product(x.view(), w.view, cpu.threads), 8.0));
          EXPECT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

// Slices, at borders and elsewhere, one below the other, on their way to a device.
TEST(TcaBmeQuantizedProduct, LoadsSlicesOfParts) {
  CpuContext cpu(2, 64 << 20);
  for (const QuantizedShape& kind : quantized_kinds()) {
    const QuantizedMatrix first = matrix_of(kind, 200, 300, 0.5, 343);
    const QuantizedMatrix second = matrix_of(kind, 70, 300, 0.2, 344);
    EncodedWeight a = encode_as(kind, first, DType::f16, cpu.threads);
    EncodedWeight b = encode_as(kind, second, DType::f16, cpu.threads);
    for (const auto& [from_a, from_b] :
         {std::pair<Slice, Slice>{{{64, 64}, {128, 172}}, {{0, 70}, {128, 172}}},
          {{{10, 20}, {128, 100}}, {{1, 69}, {128, 100}}}}) {
      const WeightPart parts[] = {{.weight = &a, .name = "a", .slice = from_a},
                                  {.weight = &b, .name = "b", .slice = from_b}};
      EncodedWeight kept_a = copy_of(a);
      EncodedWeight kept_b = copy_of(b);
      const auto weight = weight_format(kind.format).load(parts, {.threads = cpu.threads});
      a = std::move(kept_a);
      b = std::move(kept_b);
      const QuantizedMatrix both[] = {naive_slice(first, from_a), naive_slice(second, from_b)};
      const OwnedTensor w = dequantize(naive_join(both), DType::f16, cpu.threads);
      const GuardedTensor expanded(DType::f16, {w.view.size(0), w.view.size(1)});
      weight->expand({.begin = 0, .count = w.view.size(0)}, expanded.view(), cpu.exec);
      EXPECT_TRUE(same_bits(expanded.view(), w.view));
    }
  }
}

}  // namespace
}  // namespace sparsellm
