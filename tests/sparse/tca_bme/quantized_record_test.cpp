// The records of quantised matrices: version 3 of tca_bme, dense_i8 and dense_i4.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "sparse/cpu/cpu_weight.h"
#include "sparse/format.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/tca_bme/quantized_matrices.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tca_bme::encode_quantized;
using tca_bme::quantized_layout_for;
using tca_bme::quantized_of;
using tca_bme::QuantizedLayout;
using tca_bme::read_quantized_layout;
using Values = QuantizedLayout::Values;

EncodedWeight encode(const QuantizedMatrix& q, DType dtype = DType::f16) {
  ThreadPool threads(1);
  return encode_quantized(q, dtype, threads);
}

EncodedWeight encode(const QuantizedShape& kind, const QuantizedMatrix& q,
                     DType dtype = DType::f16) {
  ThreadPool threads(1);
  return encode_as(kind, q, dtype, threads);
}

// ------------------------------------------------------------------------------------ the layout

// One element of a record, by the letters of quantized_layout.h.
struct Element {
  int c = 0, j = 0, q = 0, t = 0, h = 0, g = 0, k = 0;

  int row() const { return 32 * (c % 2) + 16 * j + 8 * q + g; }
  int column() const { return 32 * (c / 2) + 16 * h + 4 * t + k; }
};

// All of a record in an order of the letters, the last the fastest.
std::vector<Element> elements_in_order(std::string_view letters) {
  std::vector<Element> elements;
  for (int n = 0; n < 64 * 128; ++n) {
    Element element;
    int rest = n;
    for (auto letter = letters.rbegin(); letter != letters.rend(); ++letter) {
      const auto take = [&](char name, int size, int& index) {
        if (*letter == name) {
          index = rest % size;
          rest /= size;
        }
      };
      take('c', 8, element.c);
      take('j', 2, element.j);
      take('q', 2, element.q);
      take('t', 4, element.t);
      take('h', 2, element.h);
      take('g', 8, element.g);
      take('k', 4, element.k);
    }
    elements.push_back(element);
  }
  return elements;
}

// The order of the values.
std::vector<Element> elements_of(const QuantizedLayout& layout) {
  return elements_in_order(layout.values == Values::i4 ? "cqtjghk"
                           : layout.offsets == 16      ? "cjqthgk"
                                                       : "cqtjhgk");
}

void append(std::vector<std::byte>& bytes, uint16_t value) {
  bytes.push_back(std::byte(value & 0xff));
  bytes.push_back(std::byte(value >> 8));
}

int code_at(const QuantizedMatrix& q, int64_t row, int64_t column) {
  if (row >= q.rows || column >= q.columns) {
    return 0;
  }
  const int code = q.codes[static_cast<size_t>(row * q.columns + column)];
  return q.type == ValueType::f8 && code == -128 ? 0 : code;
}

// The values of a dense record, byte by byte.
std::vector<std::byte> dense_values(const QuantizedMatrix& matrix, int64_t row, int64_t column) {
  std::vector<std::byte> values;
  const auto code_of = [&](Element e) {
    return code_at(matrix, row + e.row(), column + e.column());
  };
  for (Element e : elements_in_order("cjgthqk")) {
    if (matrix.type != ValueType::i4) {
      values.push_back(std::byte(code_of(e) & 0xff));
    } else if (e.c < 4) {  // of as many pairs of chunks
      e.c = e.c / 2 * 4 + e.c % 2;
      Element next = e;
      next.c += 2;
      values.push_back(std::byte((code_of(e) + 8) | (code_of(next) + 8) << 4));
    }
  }
  return values;
}

// The record whose first element is at this row and column, as quantized_layout.h describes it.
std::vector<std::byte> reference_record(const QuantizedMatrix& matrix,
                                        const QuantizedLayout& layout, int64_t row,
                                        int64_t column) {
  const bool nibbles = layout.values == Values::i4;
  const int groups = nibbles ? 128 / layout.group : 0;
  const bool dense = layout.offsets == 0;
  std::vector<uint16_t> masks(dense ? 0 : 8 * 64);
  std::vector<uint16_t> offsets(static_cast<size_t>(8 * layout.offsets));
  std::vector<int> values;
  const size_t header = 2 * (masks.size() + offsets.size() + static_cast<size_t>(groups * 64));
  for (const Element& e : dense ? std::vector<Element>() : elements_of(layout)) {
    const bool is_first = e.h == 0 && e.g == 0 && e.k == 0 && (layout.offsets == 16 || e.j == 0);
    if (is_first) {
      const int index = layout.offsets == 16 ? e.c / 2 * 32 + e.t * 8 + e.c % 2 * 4 + 2 * e.j + e.q
                                             : e.c / 4 * 32 + e.t * 8 + e.c % 4 * 2 + e.q;
      offsets.at(static_cast<size_t>(index)) =
          static_cast<uint16_t>((nibbles ? 2 * header : header) + values.size());
    }
    const int code = code_at(matrix, row + e.row(), column + e.column());
    if (code != 0) {
      masks.at(static_cast<size_t>(e.c * 64 + e.g * 8 + 2 * e.t + e.q)) |=
          static_cast<uint16_t>(1 << (4 * e.k + 2 * e.j + e.h));
      values.push_back(code);
    }
  }
  std::vector<std::byte> record;
  for (const uint16_t mask : masks) {
    append(record, mask);
  }
  for (const uint16_t offset : offsets) {
    append(record, offset);
  }
  for (int group = 0; group < groups; ++group) {
    for (int i = 0; i < 64; ++i) {
      const int r = i % 8 * 8 + i / 8;
      const int64_t first = column + group * layout.group;
      const bool inside = row + r < matrix.rows && first < matrix.columns;
      const float scale = inside ? matrix.scales.at(static_cast<size_t>(
                                       (row + r) * matrix.groups() + first / layout.group))
                                 : 1.0f;
      append(record, to_half(scale).bits);
    }
  }
  if (dense) {
    const std::vector<std::byte> all = dense_values(matrix, row, column);
    record.insert(record.end(), all.begin(), all.end());
  }
  for (size_t i = 0; i < values.size(); i += nibbles ? 2 : 1) {
    const int high = nibbles && i + 1 < values.size() ? values[i + 1] + 8 : 0;
    record.push_back(std::byte((nibbles ? values[i] + 8 + 16 * high : values[i]) & 0xff));
  }
  record.resize((record.size() + 15) / 16 * 16);
  return record;
}

// By hand. Of 64 x 128 elements there are three, in chunks 0, 1 and 6.
TEST(TcaBmeQuantized, ThePlacesOfAFewValues) {
  for (const auto& [type, group] : {std::pair{ValueType::i8, 128}, {ValueType::i4, 64}}) {
    QuantizedMatrix q{.type = type, .rows = 64, .columns = 128, .group = group};
    q.codes.resize(64 * 128);
    q.scales.assign(static_cast<size_t>(64 * q.groups()), 0.5f);
    q.codes[2 * 128 + 3] = 7;     // c = 0, g = 2, k = 3
    q.codes[57 * 128 + 30] = -3;  // c = 1, j = 1, q = 1, g = 1, h = 1, t = 3, k = 2
    q.codes[2 * 128 + 100] = 5;   // c = 6, g = 2, t = 1
    const EncodedWeight e = encode(q);
    const bool nibbles = type == ValueType::i4;
    std::vector<uint16_t> expected(8 * 64 + 8 * 8);
    expected[2 * 8] = 1 << 12;
    expected[64 + 8 + 2 * 3 + 1] = 1 << (4 * 2 + 2 + 1);
    expected[6 * 64 + 2 * 8 + 2] = 1;
    const int header = 1024 + 128 + (nibbles ? 2 * 64 * 2 : 0);
    for (int c = 0; c < 8; ++c) {
      for (int half = 0; half < 2; ++half) {
        for (int t = 0; t < 4; ++t) {
          const std::array at = {c, half, t};
          int values = at > std::array{0, 0, 0} ? 1 : 0;
          values += at > std::array{1, 1, 3} ? 1 : 0;
          values += at > std::array{6, 0, 1} ? 1 : 0;
          expected[static_cast<size_t>(8 * 64 + c / 4 * 32 + t * 8 + c % 4 * 2 + half)] =
              static_cast<uint16_t>((nibbles ? 2 * header : header) + values);
        }
      }
    }
    expected.resize(static_cast<size_t>(header / 2), to_half(0.5f).bits);
    const std::vector<uint16_t> values = nibbles ? std::vector<uint16_t>{15 | 5 << 4 | 13 << 8}
                                                 : std::vector<uint16_t>{7 | 253 << 8, 5};
    expected.insert(expected.end(), values.begin(), values.end());
    expected.resize((expected.size() + 7) / 8 * 8);
    const auto records = e.part("records").values<uint16_t>();
    EXPECT_EQ(std::vector(records.begin(), records.end()), expected);
    const auto layout = e.part("layout").values<uint32_t>();
    EXPECT_EQ(std::vector(layout.begin(), layout.end()),
              nibbles ? (std::vector<uint32_t>{2, 8, 64}) : (std::vector<uint32_t>{0, 8, 0}));
  }
}

TEST(TcaBmeQuantized, LaysRecordsOutAsDescribed) {
  for (QuantizedShape shape : quantized_kinds()) {
    for (const double density : {0.0, 0.2, 0.5, 1.0}) {
      for (const auto& [rows, columns] :
           {std::pair{1, 1}, {63, 127}, {64, 128}, {65, 129}, {130, 300}}) {
        shape.rows = rows;
        shape.columns = columns;
        shape.density = density;
        SCOPED_TRACE(fmt::format("{} {} of {}, {} of [{}, {}]", shape.format, name_of(shape.type),
                                 shape.group, density, rows, columns));
        const QuantizedMatrix q = random_quantized(shape, 301);
        const EncodedWeight e = encode(shape, q);
        EXPECT_EQ(e.format, shape.format);
        EXPECT_EQ(e.version, shape.dense() ? 1 : 3);
        EXPECT_EQ(e.dtype, DType::f16);
        EXPECT_EQ(e.rows, rows);
        EXPECT_EQ(e.columns, columns);
        EXPECT_EQ(e.nonzeros, nonzeros_of(q));
        const QuantizedLayout layout = read_quantized_layout(e);
        const bool nibbles = shape.type == ValueType::i4;
        EXPECT_EQ(layout.values, tca_bme::values_of(shape.type));
        EXPECT_EQ(layout.group, nibbles ? shape.group : 0);
        EXPECT_EQ(layout.offsets, shape.dense() ? 0 : !nibbles && density >= 0.5 ? 16 : 8);
        ThreadPool threads(1);
        ASSERT_NO_THROW(tca_bme::validate_quantized(e, threads));
        const auto starts = e.part("starts").values<uint32_t>();
        std::vector<std::byte> expected;
        size_t r = 0;
        for (int64_t row = 0; row < rows; row += 64) {
          for (int64_t column = 0; column < columns; column += 128) {
            ASSERT_EQ(starts[r] * 16, expected.size());
            ++r;
            const auto record = reference_record(q, layout, row, column);
            expected.insert(expected.end(), record.begin(), record.end());
          }
        }
        ASSERT_EQ(starts.size(), r + 1);
        ASSERT_EQ(starts[r] * 16, expected.size());
        EXPECT_TRUE(std::ranges::equal(e.part("records").bytes, expected));
        if (nibbles) {
          EXPECT_EQ(e.parts.size(), 3U);
        } else {
          EXPECT_EQ(e.parts.size(), 4U);
          EXPECT_TRUE(std::ranges::equal(e.part("scales").values<float>(), q.scales));
        }
        EXPECT_TRUE(same_quantized(quantized_of(e, threads), without_negative_zeros(q)));
      }
    }
  }
}

TEST(TcaBmeQuantized, ThreadsMakeTheSameBytes) {
  ThreadPool one(1);
  ThreadPool three(3);
  for (QuantizedShape shape : quantized_kinds()) {
    shape.rows = 700;
    shape.columns = 700;
    const QuantizedMatrix q = random_quantized(shape, 302);
    const WeightFormat& format = weight_format(shape.format);
    const EncodedWeight e = encode_as(shape, q, DType::bf16, one);
    EXPECT_TRUE(same_encoding(encode_as(shape, q, DType::bf16, three), e));
    EXPECT_NO_THROW(format.validate(e, three));
    EXPECT_TRUE(same_quantized(quantized_of(e, one), quantized_of(e, three)));
    EXPECT_TRUE(same_matrix(format.decode(e, one).view, format.decode(e, three).view));
  }
}

TEST(TcaBmeQuantized, DecodesToTheDequantisedMatrix) {
  ThreadPool threads(2);
  for (QuantizedShape shape : quantized_kinds()) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      shape.rows = 131;
      shape.columns = 259;
      QuantizedMatrix q = random_quantized(shape, 303);
      q.scales.front() = shape.type == ValueType::i4 ? 65504.0f : 1e38f;  // infinities
      q.scales.back() =
          shape.type == ValueType::i4 ? 0x1p-24f : 1e-38f;  // zeros, and negative ones
      const EncodedWeight e = encode(shape, q, dtype);
      EXPECT_TRUE(same_matrix(weight_format(shape.format).decode(e, threads).view,
                              dequantize(without_negative_zeros(q), dtype, threads).view));
    }
  }
}

TEST(TcaBmeQuantized, MatricesWithoutElements) {
  ThreadPool threads(2);
  for (QuantizedShape shape : quantized_kinds()) {
    for (const auto& [rows, columns] : {std::pair{0, 0}, {0, 70}, {70, 0}}) {
      shape.rows = rows;
      shape.columns = columns;
      const QuantizedMatrix q = random_quantized(shape, 304);
      const EncodedWeight e = encode(shape, q);
      const WeightFormat& format = weight_format(shape.format);
      EXPECT_NO_THROW(format.validate(e));
      EXPECT_TRUE(same_quantized(quantized_of(e, threads), q));
      EXPECT_EQ(format.decode(e, threads).view.element_count(), 0);
    }
  }
}

// ------------------------------------------------------------------------------------------ sizes

// Above a bit for each element, the values and the scales.
TEST(TcaBmeQuantized, TakesAFewPercentMoreThanTheFormula) {
  for (QuantizedShape shape : quantized_kinds()) {
    if (shape.dense()) {
      continue;
    }
    for (const int zeros : {50, 60, 70, 80}) {
      SCOPED_TRACE(fmt::format("{} of {}, {} % zeros", name_of(shape.type), shape.group, zeros));
      const auto group = static_cast<int32_t>(shape.group);
      shape.density = (100 - zeros) / 100.0;
      EncodedWeight header{.format = "tca_bme",
                           .version = 3,
                           .dtype = DType::f16,
                           .rows = 4096,
                           .columns = 4096,
                           .nonzeros = static_cast<int64_t>(4096.0 * 4096.0 * shape.density),
                           .parts = {}};
      header.parts.push_back(tca_bme::quantized_layout_part(quantized_layout_for(
          tca_bme::values_of(shape.type), group, 4096 * 4096, header.nonzeros)));
      const auto expected = static_cast<double>(tca_bme_format().expected_bytes(header));
      const double scale_bits = shape.type == ValueType::i4 ? 16.0 / group : 32.0 / 4096;
      const double bits = 1.0 + shape.density * bits_of(shape.type) + scale_bits;
      EXPECT_NEAR(static_cast<double>(tca_bme_format().formula_bytes(header)),
                  bits / 8 * 4096 * 4096, 1000.0);
      // Masks and offsets of 8,192 elements are 9,216 bits at least, whatever the values take.
      const double most = shape.type == ValueType::i4 && zeros == 80 ? 1.072 : 1.06;
      EXPECT_LE(expected / (bits / 8 * 4096 * 4096), most);
      shape.rows = 512;
      shape.columns = 1024;
      const QuantizedMatrix q = random_quantized(shape, 305);
      const EncodedWeight e = encode(q);
      EncodedWeight small = view_of(e);
      small.parts.resize(1);
      const auto bytes = static_cast<double>(e.bytes());
      EXPECT_NEAR(static_cast<double>(tca_bme_format().expected_bytes(small)), bytes,
                  0.001 * bytes);
    }
  }
}

TEST(TcaBmeQuantized, StartsReachSomeBytes) {
  const QuantizedLayout layout{.values = Values::i8, .offsets = 16, .group = 0};
  const int32_t all = 64 * 128;
  ASSERT_EQ(layout.max_record_bytes(), 9472);
  std::vector<int32_t> bits(UINT32_MAX / (9472 / 16), all);
  EXPECT_EQ(tca_bme::quantized_starts(layout, bits).back(), bits.size() * 592);
  bits.push_back(all);
  EXPECT_TRUE(throws_error([&] { tca_bme::quantized_starts(layout, bits); },
                           "more than 32-bit starts of records hold"));
}

TEST(DenseNarrow, TakesWhatAllElementsDo) {
  for (QuantizedShape shape : quantized_kinds()) {
    if (!shape.dense()) {
      continue;
    }
    const WeightFormat& format = weight_format(shape.format);
    const bool nibbles = shape.type == ValueType::i4;
    for (const auto& [rows, columns] : {std::pair{512, 1024}, {130, 300}, {1, 1}}) {
      shape.rows = rows;
      shape.columns = columns;
      for (const double density : {0.0, 0.5}) {
        shape.density = density;
        const EncodedWeight e = encode(shape, random_quantized(shape, 305));
        EncodedWeight header = view_of(e);
        header.parts.clear();
        const int64_t group = nibbles ? shape.group : columns;
        const int64_t scales = rows * ((columns + group - 1) / group) * (nibbles ? 2 : 4);
        const int64_t elements = int64_t{rows} * columns;
        if (group == columns || group == 128) {  // as headers without a layout are taken to be
          EXPECT_EQ(format.formula_bytes(header),
                    (nibbles ? (elements + 1) / 2 : elements) + scales);
          EXPECT_EQ(format.expected_bytes(header), e.bytes());
        }
        format.tell_layout(header, format.layout_like(e));
        EXPECT_TRUE(std::ranges::equal(header.part("layout").bytes, e.part("layout").bytes));
        EXPECT_EQ(header.version, e.version);
        EXPECT_EQ(format.formula_bytes(header), (nibbles ? (elements + 1) / 2 : elements) + scales);
        EXPECT_EQ(format.expected_bytes(header), e.bytes());
        if (rows == 512) {
          EXPECT_LT(e.bytes(), format.formula_bytes(e) + format.formula_bytes(e) / 100);
        }
      }
    }
  }
}

// ---------------------------------------------------------------------------------------- errors

TEST(TcaBmeQuantized, RefusesWhatIsNoMatrixForIt) {
  const QuantizedMatrix good =
      random_quantized({.type = ValueType::i8, .rows = 3, .columns = 5}, 306);
  EXPECT_TRUE(throws_error([&] { encode(good, DType::f32); }, "a tca_bme weight of f32 values"));
  QuantizedMatrix q = good;
  q.scales[1] = 0.0f;
  EXPECT_TRUE(throws_error([&] { encode(q); }, "scale"));
  q = good;
  q.codes.pop_back();
  EXPECT_TRUE(throws_error([&] { encode(q); }, "codes"));
  ThreadPool threads(1);
  EXPECT_TRUE(throws_error([&] { encode_quantized(good, "dense_i4", DType::f16, threads); },
                           "a dense_i4 weight of codes of i8"));
  EXPECT_TRUE(throws_error([&] { encode_quantized(good, "dense_i8", DType::f32, threads); },
                           "a dense_i8 weight of f32 values"));
}

TEST(TcaBmeQuantized, WorkspacesOfDevices) {
  for (const QuantizedShape& kind : quantized_kinds()) {
    QuantizedShape shape = kind;
    shape.rows = 300;
    shape.columns = 500;
    const EncodedWeight e = encode(shape, random_quantized(shape, 307));
    const WeightFormat& format = weight_format(shape.format);
    EncodedWeight header = view_of(e);
    std::erase_if(header.parts,
                  [](const EncodedPart& part) { return part.name != tca_bme::kLayout; });
    for (const int64_t tokens : {1, 16, 2000}) {
      const int64_t bytes = format.workspace_bytes(e, kPlannedGpu, tokens, Sums::fastest);
      EXPECT_GT(bytes, 0);
      EXPECT_EQ(bytes, format.workspace_bytes(header, kPlannedGpu, tokens, Sums::fastest));
    }
    EXPECT_EQ(format.workspace_bytes(e, Device{}, 3, Sums::fastest),
              cpu_weight_workspace_bytes(e, 3));
  }
}

}  // namespace
}  // namespace sparsellm
