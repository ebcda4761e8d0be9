// dense_i8 and dense_i4: what kernels load, what is rounded, and what the formats say of
// themselves. Records, slices, joins and products are tested with those of tca_bme
// (quantized_matrices.h).

#include "sparse/tca_bme/dense_narrow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/narrow_encoding.h"
#include "sparse/quantize/quantize.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/tca_bme/quantized_matrices.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/compare.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// --------------------------------------------------------------------------------- the registers

using Registers = std::array<uint32_t, 4>;

Registers load_registers(const std::byte* record, int64_t tile, int64_t lane) {
  Registers registers;
  std::memcpy(registers.data(), record + (tile * 32 + lane) * 16, sizeof(registers));
  return registers;
}

// The elements that mma.m16n8k32 has in a lane's register of the left operand of 8 bits (PTX ISA,
// "Matrix Fragments for mma.m16n8k32"): a_i, i = 4 * register + k, is that of row g for i < 4 and
// 8 <= i < 12, else of row g + 8, and of column 4 t + k for i < 8, else of 16 columns further.
struct OperandPlace {
  int64_t row;
  int64_t column;
};
OperandPlace operand_place(int64_t lane, int64_t i) {
  const bool upper = i < 4 || (i >= 8 && i < 12);
  return {.row = lane / 4 + (upper ? 0 : 8), .column = lane % 4 * 4 + i % 4 + (i < 8 ? 0 : 16)};
}

int byte_of(const Registers& registers, int64_t i) {
  return static_cast<int>(registers[static_cast<size_t>(i / 4)] >> (i % 4 * 8) & 0xff);
}

QuantizedMatrix one_record(const QuantizedShape& kind) {
  QuantizedShape shape = kind;
  shape.rows = 64;
  shape.columns = 128;
  shape.density = 0.9;
  return random_quantized(shape, 401);
}

TEST(DenseNarrow, BytesAreTheRegistersOfTheLeftOperand) {
  ThreadPool threads(1);
  const QuantizedShape kind{.format = "dense_i8", .type = ValueType::i8};
  const QuantizedMatrix q = one_record(kind);
  const EncodedWeight e = encode_as(kind, q, DType::f16, threads);
  const std::byte* const record = e.part("records").bytes.data();
  for (int64_t columns32 = 0; columns32 < 4; ++columns32) {
    for (int64_t m = 0; m < 4; ++m) {
      for (int64_t lane = 0; lane < 32; ++lane) {
        const Registers registers = load_registers(record, 4 * columns32 + m, lane);
        for (int64_t i = 0; i < 16; ++i) {
          const auto [row, column] = operand_place(lane, i);
          const auto at = static_cast<size_t>((16 * m + row) * 128 + 32 * columns32 + column);
          ASSERT_EQ(static_cast<int8_t>(byte_of(registers, i)), q.codes[at]);
        }
      }
    }
  }
}

TEST(DenseNarrow, NibblesAreTheRegistersOfTheLeftOperand) {
  ThreadPool threads(1);
  for (const int64_t group : {32, 64, 128}) {
    const QuantizedShape kind{.format = "dense_i4", .type = ValueType::i4, .group = group};
    const QuantizedMatrix q = one_record(kind);
    const EncodedWeight e = encode_as(kind, q, DType::f16, threads);
    const std::byte* const record = e.part("records").bytes.data();
    const std::byte* const values = record + 128 / group * 128;
    for (int64_t columns64 = 0; columns64 < 2; ++columns64) {
      for (int64_t m = 0; m < 4; ++m) {
        for (int64_t lane = 0; lane < 32; ++lane) {
          const Registers both = load_registers(values, 4 * columns64 + m, lane);
          for (const int64_t half : {0, 1}) {
            Registers registers = both;
            for (uint32_t& word : registers) {
              word = word >> (4 * half) & 0x0f0f0f0fU;
            }
            for (int64_t i = 0; i < 16; ++i) {
              const auto [row, column] = operand_place(lane, i);
              const auto at =
                  static_cast<size_t>((16 * m + row) * 128 + 64 * columns64 + 32 * half + column);
              ASSERT_EQ(byte_of(registers, i) - 8, q.codes[at]);
            }
          }
        }
      }
    }
    // A lane finds the scales of rows g, g + 8, ..., g + 56 in 16 bytes.
    for (int64_t columns = 0; columns < 128; columns += group) {
      for (int64_t g = 0; g < 8; ++g) {
        std::array<uint16_t, 8> scales;
        std::memcpy(scales.data(), record + columns / group * 128 + g * 16, sizeof(scales));
        for (size_t i = 0; i < 8; ++i) {
          const auto row = static_cast<size_t>(g) + 8 * i;
          ASSERT_EQ(to_float(Half{scales[i]}), q.scales[row * static_cast<size_t>(q.groups()) +
                                                        static_cast<size_t>(columns / group)]);
        }
      }
    }
  }
}

// -------------------------------------------------------------------------------------- rounding

const WeightFormat* const kDenseNarrow[] = {&dense_i8_format(), &dense_i4_format()};

TEST(DenseNarrow, RoundsAsQuantizeDoes) {
  ThreadPool threads(2);
  for (const WeightFormat* format : kDenseNarrow) {
    const bool bytes = format == &dense_i8_format();
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const OwnedTensor w =
          make_weight({.dtype = dtype, .rows = 130, .columns = 300, .density = 0.7}, 402);
      for (const std::string_view layout :
           bytes ? std::vector<std::string_view>{"", "i8"}
                 : std::vector<std::string_view>{"", "i4", "i4:32", "i4:64", "i4:128"}) {
        SCOPED_TRACE(fmt::format("{} {}", format->name(), layout));
        const int64_t group = layout == "i4:32" ? 32 : layout == "i4:64" ? 64 : 128;
        const QuantizedMatrix q =
            quantize(w.view, bytes ? ValueType::i8 : ValueType::i4, group, threads);
        const EncodedWeight e = format->encode(w.view, {.layout = std::string(layout)}, threads);
        EXPECT_TRUE(same_encoding(e, tca_bme::encode_quantized(q, format->name(), dtype, threads)));
        EXPECT_TRUE(has_narrow_values(e));
        EXPECT_EQ(type_of_values(e), bytes ? "i8" : fmt::format("i4:{}", group));
        EXPECT_EQ(format->layout_like(e).layout, type_of_values(e));
        EXPECT_TRUE(
            same_matrix(format->decode(e, threads).view, dequantize(q, dtype, threads).view));
        const NarrowEncoding narrow = encode_narrow(w.view, *format, layout, threads);
        EXPECT_TRUE(same_encoding(narrow.encoded, e));
        EXPECT_TRUE(same_quantized(narrow.values, q));
        const auto rows = narrow_rows(e, {.begin = 60, .count = 50}, threads);
        ASSERT_TRUE(rows.has_value());
        EXPECT_TRUE(
            same_quantized(*rows, naive_slice(q, {.rows = {60, 50}, .columns = {0, q.columns}})));
      }
    }
  }
}

TEST(DenseNarrow, RefusesWhatItCannotHold) {
  ThreadPool threads(1);
  for (const WeightFormat* format : kDenseNarrow) {
    const OwnedTensor f32 = allocate_tensor({}, DType::f32, {3, 5}, "a test");
    EXPECT_EQ(format->why_not(f32.view),
              fmt::format("{} holds f16 and bf16 values, not f32", format->name()));
    std::fill_n(f32.view.data<float>(), 15, 1.0f);
    EXPECT_TRUE(throws_error([&] { format->encode(f32.view, threads); }, "not f32"));
    const Tensor large(nullptr, DType::f16, {int64_t{1} << 22, int64_t{1} << 20}, Device{});
    EXPECT_NE(format->why_not(large).find("more than the starts of"), std::string::npos);
    const OwnedTensor w = make_weight({.dtype = DType::f16, .rows = 3, .columns = 5}, 403);
    w.view.data<Half>()[7] = to_half(std::nanf(""));
    EXPECT_TRUE(throws_error([&] { format->encode(w.view, threads); }, ""));
    for (const char* text : {"f8", "speed", "size", "i4:16", "i4:", "i8 "}) {
      EXPECT_TRUE(
          throws_error([&] { format->check_layout(text); },
                       fmt::format("the weight format {} holds values of i", format->name())))
          << text;
    }
  }
  EXPECT_TRUE(throws_error([&] { dense_i8_format().check_layout("i4"); },
                           R"(holds values of i8, not of "i4")"));
  EXPECT_TRUE(throws_error([&] { dense_i4_format().check_layout("i8"); },
                           R"(holds values of i4, not of "i8")"));
}

// ---------------------------------------------------------------------------------------- choices

TEST(DenseNarrow, IsTakenOnlyWhereItIsNamed) {
  const std::vector<const WeightFormat*> exact = exact_formats();
  for (const WeightFormat* format : kDenseNarrow) {
    EXPECT_EQ(find_weight_format(format->name()), format);
    EXPECT_EQ(std::ranges::find(exact, format), exact.end());
    EXPECT_FALSE(format->for_smallest());
    for (const Device device : {Device{}, Device{.kind = Device::Kind::cuda}}) {
      EXPECT_FALSE(format->for_auto(device));
      EXPECT_TRUE(format->runs_on(device));
    }
    EXPECT_TRUE(always_rounds(format->name()));
    EXPECT_FALSE(may_be_records(format->name()));
  }
  for (const WeightFormat* format : exact) {
    EXPECT_FALSE(always_rounds(format->name()));
    EXPECT_EQ(format->values_in("i8"), format == &tca_bme_format() ? "i8" : "");
  }
  EXPECT_EQ(tca_bme_format().values_in("size"), "");
  EXPECT_FALSE(always_rounds("auto"));
}

TEST(DenseNarrow, HasValuesWhetherTheyAreChosenOrNot) {
  struct Case {
    std::string_view format;
    std::string_view records;
    bool holds;
    std::string_view layout;
  };
  for (const auto& [format, records, holds, layout] :
       {Case{"dense_i8", "", true, "i8"}, Case{"dense_i8", "i8", true, "i8"},
        Case{"dense_i8", "f8", false, "i8"}, Case{"dense_i8", "i4:32", false, "i8"},
        Case{"dense_i8", "size", true, "i8"}, Case{"dense_i4", "", true, "i4"},
        Case{"dense_i4", "i4", true, "i4"}, Case{"dense_i4", "i4:32", true, "i4:32"},
        Case{"dense_i4", "i8", false, "i4"}, Case{"tca_bme", "i8", true, "i8"},
        Case{"tca_bme", "", true, ""}, Case{"tiled_csl", "i8", false, ""},
        Case{"dense", "i8", false, ""}, Case{"dense", "", true, ""}}) {
    SCOPED_TRACE(fmt::format("{} {}", format, records));
    EXPECT_EQ(holds_values(format, records), holds);
    EXPECT_EQ(records_in(format, records).layout, layout);
  }
}

TEST(DenseNarrow, AreFoundByTheValuesThatAreAskedFor) {
  using Formats = std::vector<const WeightFormat*>;
  for (const char* records : {"", "speed", "size", "f8", "i2"}) {
    EXPECT_EQ(dense_format_with(records), nullptr) << records;
  }
  EXPECT_EQ(dense_format_with("i8"), &dense_i8_format());
  EXPECT_EQ(formats_with_values("i8"), (Formats{&tca_bme_format(), &dense_i8_format()}));
  EXPECT_EQ(formats_with_values("f8"), Formats{&tca_bme_format()});
  for (const char* records : {"i4", "i4:32", "i4:64", "i4:128"}) {
    EXPECT_EQ(dense_format_with(records), &dense_i4_format()) << records;
    EXPECT_EQ(formats_with_values(records), (Formats{&tca_bme_format(), &dense_i4_format()}));
  }
}

}  // namespace
}  // namespace sparsellm
