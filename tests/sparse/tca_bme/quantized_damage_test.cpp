// Version 3 of tca_bme, dense_i8 and dense_i4: what is refused, and what the others keep to.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/tca_bme/quantized_matrices.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tca_bme::encode_quantized;
using tca_bme::kLayout;
using tca_bme::kRecords;
using tca_bme::kScales;
using tca_bme::kStarts;
using tca_bme::QuantizedLayout;
using tca_bme::read_quantized_layout;
using E = EncodedWeight;

EncodedPart& part(E& e, std::string_view name) {
  return *std::ranges::find(e.parts, name, &EncodedPart::name);
}
template <class T>
T& at(E& e, std::string_view name, int64_t index) {
  return static_cast<T*>(part(e, name).memory.data())[index];
}
template <class T>
void swap_at(E& e, std::string_view name, int64_t a, int64_t b) {
  std::swap(at<T>(e, name, a), at<T>(e, name, b));
}
// So many bytes longer, of zeros.
void extend(E& e, std::string_view name, int64_t more) {
  EncodedPart& longer = part(e, name);
  const int64_t bytes = std::ssize(longer.bytes);
  Buffer memory(Device{}, bytes + more, "a test");
  std::memset(memory.data(), 0, static_cast<size_t>(bytes + more));
  std::memcpy(memory.data(), longer.bytes.data(), static_cast<size_t>(bytes));
  longer.bytes = {static_cast<std::byte*>(memory.data()), static_cast<size_t>(bytes + more)};
  longer.memory = std::move(memory);
}

EncodedWeight encode(const QuantizedMatrix& q, std::string_view as = "tca_bme") {
  ThreadPool threads(1);
  return encode_quantized(q, as, DType::f16, threads);
}

struct Damage {
  std::string message;
  std::function<void(E&)> apply;
};

void expect_errors(const E& good, std::span<const Damage> cases) {
  for (const Damage& damage : cases) {
    E e = testing::copy_of(good);
    const WeightFormat& of_good = weight_format(good.format);
    ASSERT_NO_THROW(of_good.validate(e));
    damage.apply(e);
    EXPECT_TRUE(throws_error([&] { of_good.validate(e); }, damage.message)) << damage.message;
  }
}

// 2 x 2 records of which the last has 6 x 3 elements, all but the first of those with a value.
QuantizedMatrix full_matrix(ValueType type, int64_t group) {
  QuantizedMatrix q = random_quantized(
      {.type = type, .group = group, .rows = 70, .columns = 131, .density = 1.0}, 311);
  q.codes[64 * 131 + 128] = 0;
  return q;
}

// The numbers of bytes and of words of 16 bits in front of the records.
struct Places {
  explicit Places(const E& e) {
    for (const uint32_t start : e.part(kStarts).values<uint32_t>()) {
      bytes.push_back(int64_t{start} * 16);
      words.push_back(int64_t{start} * 8);
    }
  }
  std::vector<int64_t> bytes;
  std::vector<int64_t> words;
};

TEST(TcaBmeQuantizedDamage, EachFieldIsChecked) {
  const E good = encode(full_matrix(ValueType::i8, 0));
  ASSERT_EQ(read_quantized_layout(good), (QuantizedLayout{QuantizedLayout::Values::i8, 16, 0}));
  const Places places(good);
  const int64_t second = places.words[1];  // rows 0 to 63, columns 128 to 130
  const int64_t third = places.words[2];   // rows 64 to 69, columns 0 to 127
  const int64_t last = places.words[3];
  constexpr int64_t kHeader = 1024 + 256;
  const Damage cases[] = {
      {"version 4", [](E& e) { e.version = 4; }},
      {"12 bytes of U32, not 8", [](E& e) { e.version = 2; }},
      {"no part values", [](E& e) { e.version = 1; }},
      {"f32 values", [](E& e) { e.dtype = DType::f32; }},
      {"i32 values", [](E& e) { e.dtype = DType::i32; }},
      {"-1 x 131", [](E& e) { e.rows = -1; }},
      {"70 x -1", [](E& e) { e.columns = -1; }},
      {"does not fit", [](E& e) { e.rows = INT64_MAX; }},
      {"part starts", [](E& e) { e.rows = 64, e.nonzeros = 1; }},
      {"part starts", [](E& e) { e.rows = 129; }},
      {"part starts", [](E& e) { e.rows = 0, e.nonzeros = 0; }},
      {"part starts", [](E& e) { e.columns = 128, e.nonzeros = 1; }},
      {"part starts", [](E& e) { e.columns = 257; }},
      {"part starts", [](E& e) { e.columns = 0, e.nonzeros = 0; }},
      {"part scales of the encoding tca_bme has 280 bytes",
       [](E& e) { e.rows = 69, e.nonzeros = 1; }},
      {"part scales of the encoding tca_bme has 280 bytes", [](E& e) { e.rows = 71; }},
      {"outside of the matrix",
       [](E& e) {
         e.rows = 69, e.nonzeros = 1;
         part(e, kScales).bytes = part(e, kScales).bytes.first(69 * 4);
       }},
      {"outside of the matrix", [](E& e) { e.columns = 130, e.nonzeros = 1; }},
      {"9168 nonzeros, but 9169", [](E& e) { e.nonzeros = 9168; }},
      {"9170 nonzeros, but 9169", [](E& e) { e.nonzeros = 9170; }},
      {"-1 nonzeros", [](E& e) { e.nonzeros = -1; }},

      {"no part layout", [](E& e) { e.parts.erase(e.parts.begin()); }},
      {"no part starts", [](E& e) { e.parts.erase(e.parts.begin() + 1); }},
      {"no part records", [](E& e) { e.parts.erase(e.parts.begin() + 2); }},
      {"no part scales", [](E& e) { e.parts.pop_back(); }},
      {"5 parts", [](E& e) { e.parts.emplace_back().name = "more"; }},
      {"is F32, not U32", [](E& e) { part(e, kStarts).dtype = DType::f32; }},
      {"is U16, not U8", [](E& e) { part(e, kRecords).dtype = DType::u16; }},
      {"is U32, not F32", [](E& e) { part(e, kScales).dtype = DType::u32; }},
      {"12 bytes of F32", [](E& e) { part(e, kLayout).dtype = DType::f32; }},
      {"8 bytes of U32", [](E& e) { part(e, kLayout).bytes = part(e, kLayout).bytes.first(8); }},
      {"20 bytes of U32", [](E& e) { part(e, kLayout).bytes = part(e, kStarts).bytes; }},
      {"0 bytes of U32", [](E& e) { part(e, kLayout).bytes = {}; }},
      {"19 bytes", [](E& e) { part(e, kStarts).bytes = part(e, kStarts).bytes.first(19); }},
      {"16 bytes", [](E& e) { part(e, kStarts).bytes = part(e, kStarts).bytes.first(16); }},
      {"279 bytes", [](E& e) { part(e, kScales).bytes = part(e, kScales).bytes.first(279); }},
      {"0 bytes", [](E& e) { part(e, kScales).bytes = {}; }},
      {"record 3",
       [](E& e) {
         EncodedPart& records = part(e, kRecords);
         records.bytes = records.bytes.first(records.bytes.size() - 1);
       }},
      {"of 0 bytes", [](E& e) { part(e, kRecords).bytes = {}; }},

      {"type 3", [](E& e) { at<uint32_t>(e, kLayout, 0) = 3; }},
      {"NaN", [](E& e) { at<uint32_t>(e, kLayout, 0) = 1; }},
      {"16 offsets of a chunk of values of 4 bits", [](E& e) { at<uint32_t>(e, kLayout, 0) = 2; }},
      {"0 offsets of a chunk of values of 8 bits", [](E& e) { at<uint32_t>(e, kLayout, 1) = 0; }},
      {"32 offsets", [](E& e) { at<uint32_t>(e, kLayout, 1) = 32; }},
      {"record 0 has", [](E& e) { at<uint32_t>(e, kLayout, 1) = 8; }},
      {"a scale for 128 columns of values of 8 bits",
       [](E& e) { at<uint32_t>(e, kLayout, 2) = 128; }},
      {"a scale for 131 columns", [](E& e) { at<uint32_t>(e, kLayout, 2) = 131; }},

      {"the first start is 1", [](E& e) { at<uint32_t>(e, kStarts, 0) = 1; }},
      {"record 0", [](E& e) { at<uint32_t>(e, kStarts, 1) += 1; }},
      {"record 0", [](E& e) { at<uint32_t>(e, kStarts, 1) -= 1; }},
      {"fewer than any",
       [](E& e) { at<uint32_t>(e, kStarts, 3) = at<uint32_t>(e, kStarts, 2) + 79; }},
      {"record 1 goes", [](E& e) { at<uint32_t>(e, kStarts, 2) = 0; }},
      {"record 1 goes", [](E& e) { at<uint32_t>(e, kStarts, 2) = UINT32_MAX; }},
      {"record 2 has", [](E& e) { at<uint32_t>(e, kStarts, 3) += 1; }},
      {"record 3 goes", [](E& e) { at<uint32_t>(e, kStarts, 4) = 0; }},
      {"record 3 goes", [](E& e) { at<uint32_t>(e, kStarts, 4) += 1; }},
      {"the last start", [](E& e) { at<uint32_t>(e, kStarts, 4) -= 1; }},
      {"the last start", [](E& e) { extend(e, kRecords, 16); }},
      {"more than any",
       [](E& e) {
         extend(e, kRecords, 9472);
         at<uint32_t>(e, kStarts, 4) += 9472 / 16;
       }},

      {"offset 0 of record 0", [](E& e) { at<uint16_t>(e, kRecords, 512) += 1; }},
      {"offset 1 of record 0", [](E& e) { at<uint16_t>(e, kRecords, 513) = 0xffff; }},
      {"offset 127 of record 3", [&](E& e) { at<uint16_t>(e, kRecords, last + 512 + 127) -= 1; }},
      {"of 8176 bits", [](E& e) { at<uint16_t>(e, kRecords, 0) = 0; }},
      {"offset 8 of record 3 is 1297, not 1295",
       [&](E& e) { swap_at<uint16_t>(e, kRecords, last, last + 64); }},
      // A bit that moves out of the matrix: to column 131, and to row 70.
      {"chunk 0 of record 1 has bits outside",
       [&](E& e) { at<uint16_t>(e, kRecords, second) ^= 0x1100; }},
      {"chunk 0 of record 2 has bits outside",
       [&](E& e) { swap_at<uint16_t>(e, kRecords, third + 5 * 8, third + 6 * 8); }},

      {"1 nonzeros of record 0 are 0", [](E& e) { at<int8_t>(e, kRecords, kHeader + 9) = 0; }},
      {"1 nonzeros of record 3",
       [&](E& e) { at<int8_t>(e, kRecords, places.bytes[3] + kHeader + 16) = 0; }},
      {"the padding of record 3",
       [&](E& e) { at<int8_t>(e, kRecords, places.bytes[3] + kHeader + 17) = 1; }},
      {"the padding of record 3",
       [&](E& e) { at<int8_t>(e, kRecords, places.bytes[3] + kHeader + 31) = -128; }},

      {"the scale of row 0 is 0", [](E& e) { at<float>(e, kScales, 0) = 0.0f; }},
      {"the scale of row 1 is -0", [](E& e) { at<float>(e, kScales, 1) = -0.0f; }},
      {"the scale of row 69 is -1", [](E& e) { at<float>(e, kScales, 69) = -1.0f; }},
      {"the scale of row 2 is inf",
       [](E& e) { at<float>(e, kScales, 2) = std::numeric_limits<float>::infinity(); }},
      {"the scale of row 3 is",
       [](E& e) { at<float>(e, kScales, 3) = std::numeric_limits<float>::quiet_NaN(); }},
  };
  expect_errors(good, cases);
}

TEST(TcaBmeQuantizedDamage, ValuesOfE4m3AreChecked) {
  const E good = encode(full_matrix(ValueType::f8, 0));
  const Places places(good);
  constexpr int64_t kHeader = 1024 + 256;
  const Damage cases[] = {
      {"1 nonzeros of record 0 are 0", [](E& e) { at<uint8_t>(e, kRecords, kHeader) = 0; }},
      {"1 nonzeros of record 0 are 0", [](E& e) { at<uint8_t>(e, kRecords, kHeader) = 0x80; }},
      {"2 values of record 1 are NaN",
       [&](E& e) {
         at<uint8_t>(e, kRecords, places.bytes[1] + kHeader) = 0x7f;
         at<uint8_t>(e, kRecords, places.bytes[1] + kHeader + 191) = 0xff;
       }},
      {"the scale of row 7 is 0", [](E& e) { at<float>(e, kScales, 7) = 0.0f; }},
  };
  expect_errors(good, cases);
}

TEST(TcaBmeQuantizedDamage, NibblesAreChecked) {
  for (const int64_t group : {32, 64, 128}) {
    SCOPED_TRACE(group);
    const E good = encode(full_matrix(ValueType::i4, group));
    ASSERT_EQ(read_quantized_layout(good),
              (QuantizedLayout{QuantizedLayout::Values::i4, 8, static_cast<int32_t>(group)}));
    const Places places(good);
    const int64_t scales = 512 + 64;  // words
    const int64_t values = 1024 + 128 + 128 * 128 / group;
    const int64_t second = places.words[1] + scales;
    const int64_t last = places.words[3] + scales;
    const Damage cases[] = {
        {"5 offsets of a chunk of values of 4 bits", [](E& e) { at<uint32_t>(e, kLayout, 1) = 5; }},
        {"a scale for 0 columns of values of 4 bits",
         [](E& e) { at<uint32_t>(e, kLayout, 2) = 0; }},
        {"a scale for 256 columns", [](E& e) { at<uint32_t>(e, kLayout, 2) = 256; }},
        {group == 32 ? "record 0 has" : "record 1 has",
         [&](E& e) { at<uint32_t>(e, kLayout, 2) = group == 32 ? 64 : 32; }},
        {"a scale for 64 columns of values of 8 bits",
         [](E& e) {
           at<uint32_t>(e, kLayout, 0) = 0;
           at<uint32_t>(e, kLayout, 2) = 64;
         }},
        {"4 parts",
         [](E& e) {
           e.parts.push_back({.name = "scales", .dtype = DType::f32, .bytes = {}, .memory = {}});
         }},
        {"offset 0 of record 0", [](E& e) { at<uint16_t>(e, kRecords, 512) /= 2; }},

        {"the scale of group 0 of row 0 of record 0 is 0",
         [&](E& e) { at<uint16_t>(e, kRecords, scales) = 0; }},
        {"the scale of group 0 of row 1 of record 0 is -0",
         [&](E& e) { at<uint16_t>(e, kRecords, scales + 8) = 0x8000; }},
        {"the scale of group 0 of row 63 of record 0 is -1",
         [&](E& e) { at<uint16_t>(e, kRecords, scales + 63) = 0xbc00; }},
        {"the scale of group 0 of row 2 of record 0 is inf",
         [&](E& e) { at<uint16_t>(e, kRecords, scales + 16) = 0x7c00; }},
        {"the scale of group 0 of row 3 of record 0 is",
         [&](E& e) { at<uint16_t>(e, kRecords, scales + 24) = 0x7c01; }},
        {"row 6 of record 3 is 0.5, but outside of the matrix",
         [&](E& e) { at<uint16_t>(e, kRecords, last + 48) = 0x3800; }},
        {"row 63 of record 3 is 2, but outside of the matrix",
         [&](E& e) { at<uint16_t>(e, kRecords, last + 128 / group * 64 - 1) = 0x4000; }},

        {"1 nonzeros of record 0 are 0",
         [&](E& e) {
           uint8_t& two = at<uint8_t>(e, kRecords, values + 4);
           two = static_cast<uint8_t>((two & 0xf0) | 8);
         }},
        {"1 nonzeros of record 0 are 0",
         [&](E& e) {
           uint8_t& two = at<uint8_t>(e, kRecords, values + 5);
           two = static_cast<uint8_t>((two & 0x0f) | 0x80);
         }},
        // 17 values.
        {"the padding of record 3 is not 0",
         [&](E& e) { at<uint8_t>(e, kRecords, places.bytes[3] + values + 8) ^= 0x10; }},
        {"the padding of record 3 is not 0",
         [&](E& e) { at<uint8_t>(e, kRecords, places.bytes[3] + values + 9) = 1; }},
    };
    expect_errors(good, cases);
    if (group < 128) {
      const Damage columns_outside[] = {
          {"the scale of group 1 of row 0 of record 1 is 0.5, but outside",
           [&](E& e) { at<uint16_t>(e, kRecords, second + 64) = 0x3800; }}};
      expect_errors(good, columns_outside);
    }
  }
}

TEST(DenseNarrowDamage, EachFieldIsChecked) {
  const E good = encode(full_matrix(ValueType::i8, 0), "dense_i8");
  constexpr int64_t kBytes = 8192;  // of a record
  const Damage cases[] = {
      {"version 3 of the format dense_i8", [](E& e) { e.version = 3; }},
      {"version 0 of the format dense_i8", [](E& e) { e.version = 0; }},
      {"in the format tca_bme is not one in dense_i8", [](E& e) { e.format = "tca_bme"; }},
      {"a dense_i8 weight of f32 values", [](E& e) { e.dtype = DType::f32; }},
      {"70 x -1", [](E& e) { e.columns = -1; }},
      {"part starts", [](E& e) { e.rows = 64, e.nonzeros = 1; }},
      {"part starts", [](E& e) { e.columns = 257; }},
      {"part scales of the encoding dense_i8 has 280 bytes", [](E& e) { e.rows = 71; }},
      {"dense_i8: record 1 has values outside of the matrix",
       [](E& e) { e.columns = 130, e.nonzeros = 1; }},
      {"9168 nonzeros, but 9169", [](E& e) { e.nonzeros = 9168; }},
      {"9170 nonzeros, but 9169", [](E& e) { e.nonzeros = 9170; }},
      {"no part layout", [](E& e) { e.parts.erase(e.parts.begin()); }},
      {"no part starts", [](E& e) { e.parts.erase(e.parts.begin() + 1); }},
      {"no part records", [](E& e) { e.parts.erase(e.parts.begin() + 2); }},
      {"no part scales", [](E& e) { e.parts.pop_back(); }},
      {"5 parts", [](E& e) { e.parts.emplace_back().name = "more"; }},
      {"dense_i8: values of the type 3", [](E& e) { at<uint32_t>(e, kLayout, 0) = 3; }},
      {"dense_i8: values of the type 2", [](E& e) { at<uint32_t>(e, kLayout, 0) = 2; }},
      {"dense_i8: values of the type 1", [](E& e) { at<uint32_t>(e, kLayout, 0) = 1; }},
      {"8 offsets of a chunk", [](E& e) { at<uint32_t>(e, kLayout, 1) = 8; }},
      {"16 offsets of a chunk", [](E& e) { at<uint32_t>(e, kLayout, 1) = 16; }},
      {"a scale for 64 columns", [](E& e) { at<uint32_t>(e, kLayout, 2) = 64; }},
      {"dense_i8: the first start is 1", [](E& e) { at<uint32_t>(e, kStarts, 0) = 1; }},
      {"record 0 has 8208 bytes, more", [](E& e) { at<uint32_t>(e, kStarts, 1) += 1; }},
      {"record 0 has 8176 bytes, fewer", [](E& e) { at<uint32_t>(e, kStarts, 1) -= 1; }},
      {"record 1 goes", [](E& e) { at<uint32_t>(e, kStarts, 2) = UINT32_MAX; }},
      {"the last start", [](E& e) { extend(e, kRecords, 16); }},
      {"record 3",
       [](E& e) {
         EncodedPart& records = part(e, kRecords);
         records.bytes = records.bytes.first(records.bytes.size() - 1);
       }},
      {"of 0 bytes", [](E& e) { part(e, kRecords).bytes = {}; }},
      // Row 0, column 3 of a record that has 3 columns; row 6 of one that has 6 rows.
      {"record 1 has values outside", [](E& e) { at<int8_t>(e, kRecords, kBytes + 3) = 1; }},
      {"record 2 has values outside",
       [](E& e) { at<int8_t>(e, kRecords, 2 * kBytes + 6 * 4 * 16) = -128; }},
      {"record 3 has values outside", [](E& e) { at<int8_t>(e, kRecords, 4 * kBytes - 1) = 1; }},
      {"9169 nonzeros, but 9168", [](E& e) { at<int8_t>(e, kRecords, 77) = 0; }},
      {"dense_i8: the scale of row 0 is 0", [](E& e) { at<float>(e, kScales, 0) = 0.0f; }},
      {"the scale of row 69 is -1", [](E& e) { at<float>(e, kScales, 69) = -1.0f; }},
      {"the scale of row 2 is inf",
       [](E& e) { at<float>(e, kScales, 2) = std::numeric_limits<float>::infinity(); }},
      {"the scale of row 3 is",
       [](E& e) { at<float>(e, kScales, 3) = std::numeric_limits<float>::quiet_NaN(); }},
  };
  expect_errors(good, cases);
}

TEST(DenseNarrowDamage, NibblesAreChecked) {
  for (const int64_t group : {32, 64, 128}) {
    SCOPED_TRACE(group);
    const E good = encode(full_matrix(ValueType::i4, group), "dense_i4");
    const int64_t scales = 128 / group * 128;  // bytes
    const int64_t bytes = scales + 4096;
    const Damage cases[] = {
        {"dense_i4: values of the type 0",
         [](E& e) {
           at<uint32_t>(e, kLayout, 0) = 0;
           at<uint32_t>(e, kLayout, 2) = 0;
         }},
        {"8 offsets of a chunk", [](E& e) { at<uint32_t>(e, kLayout, 1) = 8; }},
        {"a scale for 0 columns", [](E& e) { at<uint32_t>(e, kLayout, 2) = 0; }},
        {"a scale for 256 columns", [](E& e) { at<uint32_t>(e, kLayout, 2) = 256; }},
        {"record 0 has", [&](E& e) { at<uint32_t>(e, kLayout, 2) = group == 32 ? 64 : 32; }},
        {"4 parts",
         [](E& e) {
           e.parts.push_back({.name = "scales", .dtype = DType::f32, .bytes = {}, .memory = {}});
         }},
        {"the scale of group 0 of row 0 of record 0 is 0",
         [&](E& e) { at<uint16_t>(e, kRecords, 0) = 0; }},
        {"the scale of group 0 of row 63 of record 0 is -1",
         [&](E& e) { at<uint16_t>(e, kRecords, 63) = 0xbc00; }},
        {"the scale of group 0 of row 2 of record 0 is inf",
         [&](E& e) { at<uint16_t>(e, kRecords, 16) = 0x7c00; }},
        {"the scale of group 0 of row 3 of record 0 is",
         [&](E& e) { at<uint16_t>(e, kRecords, 24) = 0x7c01; }},
        {"row 6 of record 3 is 0.5, but outside of the matrix",
         [&](E& e) { at<uint16_t>(e, kRecords, 3 * bytes / 2 + 48) = 0x3800; }},
        // Column 3 of a record that has 3 columns, column 32, and row 6 of one that has 6 rows.
        {"record 1 has values outside",
         [&](E& e) { at<uint8_t>(e, kRecords, bytes + scales + 3) ^= 1; }},
        {"record 1 has values outside",
         [&](E& e) { at<uint8_t>(e, kRecords, bytes + scales) ^= 0x80; }},
        {"record 2 has values outside",
         [&](E& e) { at<uint8_t>(e, kRecords, 2 * bytes + scales + 6 * 4 * 16) = 0; }},
        {"9169 nonzeros, but 9168",
         [&](E& e) {
           uint8_t& two = at<uint8_t>(e, kRecords, scales + 5);
           two = static_cast<uint8_t>((two & 0xf0) | 8);
         }},
    };
    expect_errors(good, cases);
  }
}

TEST(TcaBmeQuantized, RecordsNeedNoAlignment) {
  ThreadPool threads(2);
  for (QuantizedShape shape : quantized_kinds()) {
    shape.rows = 70;
    shape.columns = 130;
    const QuantizedMatrix q = random_quantized(shape, 312);
    E e = encode(q, shape.format);
    const std::span<const std::byte> records = e.part(kRecords).bytes;
    std::vector<std::byte> shifted(records.size() + 1);
    std::copy(records.begin(), records.end(), shifted.begin() + 1);
    part(e, kRecords).bytes = std::span(shifted).subspan(1);
    const WeightFormat& of_shape = weight_format(shape.format);
    EXPECT_NO_THROW(of_shape.validate(e));
    EXPECT_TRUE(same_quantized(tca_bme::quantized_of(e, threads), without_negative_zeros(q)));
    EXPECT_TRUE(of_shape.slice(e, Axis::rows, {0, 70}).has_value());
  }
}

// Of each, and of several at a time, wherever they are; what the encoding views may have changed.
TEST(TcaBmeQuantized, CopiesOfRecordsAreChecked) {
  for (QuantizedShape shape : quantized_kinds()) {
    shape.rows = 200;
    shape.columns = 411;
    const QuantizedMatrix q = random_quantized(shape, 313);
    E e = encode(q, shape.format);
    const tca_bme::QuantizedChecker checker(e);
    EXPECT_EQ(checker.layout(), read_quantized_layout(e));
    const auto all = e.part(kRecords).bytes;
    std::vector<std::byte> copy(all.begin(), all.end());
    for (EncodedPart& erased : e.parts) {
      std::memset(erased.memory.data(), 0xff, erased.bytes.size());
    }
    const int64_t count = std::ssize(checker.starts()) - 1;
    ASSERT_EQ(count, 16);
    const auto check = [&](int64_t first, int64_t some) {
      const auto begin = [&](int64_t r) {
        return size_t{checker.starts()[static_cast<size_t>(r)]} * 16;
      };
      return checker.check(
          first, some, std::span(copy).subspan(begin(first), begin(first + some) - begin(first)));
    };
    for (int64_t step : {int64_t{1}, int64_t{3}, count}) {
      int64_t nonzeros = 0;
      for (int64_t first = 0; first < count; first += step) {
        nonzeros += check(first, std::min(step, count - first));
      }
      EXPECT_EQ(nonzeros, e.nonzeros);
    }
    const std::optional<EncodedPart> scales = checker.of_rows("scales", {.begin = 3, .count = 5});
    ASSERT_EQ(scales.has_value(), shape.type != ValueType::i4);
    if (scales.has_value()) {
      EXPECT_TRUE(std::ranges::equal(scales->values<float>(), std::span(q.scales).subspan(3, 5)));
    }
    EXPECT_FALSE(checker.of_rows("layout", {.begin = 0, .count = 1}).has_value());
    EXPECT_TRUE(
        throws_error([&] { checker.check(0, 1, std::span<const std::byte>(copy).first(16)); },
                     "16 bytes of the 1 records from 0 on"));
    copy.back() ^= std::byte{0xff};
    EXPECT_GT(check(0, count - 1), 0);
    EXPECT_TRUE(throws_error([&] { check(count - 1, 1); }, "record 15"));
  }
}

// What validate() lets pass is an encoding: one that encode_quantized() makes of what it decodes
// to, unless it would take another layout.
bool use_if_valid(const E& e) {
  const WeightFormat& of_e = weight_format(e.format);
  try {
    of_e.validate(e);
  } catch (const Error&) {
    return false;
  }
  CpuContext cpu;
  const QuantizedMatrix q = tca_bme::quantized_of(e, cpu.threads);
  EXPECT_NO_THROW(require_valid(q));
  const E again = encode_quantized(q, e.format, e.dtype, cpu.threads);
  if (read_quantized_layout(again) == read_quantized_layout(e)) {
    EXPECT_TRUE(same_encoding(again, e));
  }
  const GuardedTensor x = Random(88).tensor(DType::f32, {2, e.columns});
  const GuardedTensor y(DType::f32, {2, e.rows});
  of_e.load(testing::copy_of(e), {.threads = cpu.threads})
      ->matmul(x.view(), y.view(), {}, cpu.exec);
  EXPECT_TRUE(y.guards_intact());
  return true;
}

TEST(TcaBmeQuantizedDamage, AnyByteIsAnErrorOrStaysInBounds) {
  for (QuantizedShape shape : quantized_kinds()) {
    shape.rows = 66;
    shape.columns = 11;
    shape.density = shape.type == ValueType::f8 ? 0.7 : 0.3;
    const E good = encode(random_quantized(shape, 314), shape.format);
    int valid = 0;
    constexpr unsigned kFlips[] = {0x01, 0x80, 0xff};
    for (size_t p = 0; p < good.parts.size(); ++p) {
      // Dense records are alike in all of their many bytes.
      const size_t step = shape.dense() && good.parts[p].name == kRecords ? 29 : 1;
      for (size_t i = 0; i < good.parts[p].bytes.size(); i += step) {
        E e = testing::copy_of(good);
        static_cast<std::byte*>(e.parts[p].memory.data())[i] ^= std::byte(kFlips[i % 3]);
        valid += use_if_valid(e) ? 1 : 0;
      }
    }
    EXPECT_GT(valid, 0);
  }
}

TEST(TcaBmeQuantizedDamage, ManyBytesAtOnce) {
  Random random(315);
  for (QuantizedShape shape : quantized_kinds()) {
    shape.rows = 70;
    shape.columns = 131;
    const E good = encode(random_quantized(shape, 316), shape.format);
    for (int round = 0; round < 300; ++round) {
      use_if_valid(damaged_copy_of(good, random));
    }
  }
}

TEST(TcaBmeQuantizedDamage, HeadersOfAnySizeAreErrorsOrStayInBounds) {
  const int64_t sizes[] = {0,
                           1,
                           63,
                           64,
                           65,
                           70,
                           67,
                           128,
                           131,
                           INT64_MAX,
                           INT64_MIN,
                           -1,
                           129,
                           512,
                           int64_t{1} << 31,
                           int64_t{1} << 32,
                           int64_t{1} << 60};
  ThreadPool threads(1);
  for (QuantizedShape shape : quantized_kinds()) {
    const E full = encode(full_matrix(shape.type, shape.group), shape.format);
    const WeightFormat& of_shape = weight_format(shape.format);
    shape.columns = 1;
    const E empty = encode(random_quantized(shape, 317), shape.format);
    for (int64_t rows : sizes) {
      for (int64_t columns : sizes) {
        for (const E* from : {&full, &empty}) {
          E e = testing::copy_of(*from);
          e.rows = rows;
          e.columns = columns;
          if (from == &empty && (rows > 512 || columns > 512)) {
            // Products of as many tokens or sums would be large; the bounds are those of
            // validate().
            try {
              of_shape.validate(e);
              EXPECT_EQ(rows * columns, 0);
              of_shape.decode(e, threads);
              EXPECT_NO_THROW(of_shape.slice(e, Axis::columns, {0, columns}));
              EXPECT_NO_THROW(slice(e, Axis::columns, {0, columns / 2}, threads));
            } catch (const Error&) {
            }
            continue;
          }
          use_if_valid(e);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
