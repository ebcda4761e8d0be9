// Version 2 of tca_bme: the records that encode() makes.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/tca_bme/paper_layout.h"
#include "sparse/tca_bme/record_parts.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tca_bme::kLayout;
using tca_bme::kRecords;
using tca_bme::kStarts;
using tca_bme::read_record_layout;
using tca_bme::record_layout_for;
using tca_bme::RecordLayout;
using tca_bme::RecordValues;

constexpr RecordLayout kSingle4{.chunks = 4, .values = RecordValues::single};
constexpr RecordLayout kSingle8{.chunks = 8, .values = RecordValues::single};
constexpr RecordLayout kPair8{.chunks = 8, .values = RecordValues::pair};
// Densities of random matrices that are far enough from the borders of each layout.
constexpr std::pair<RecordLayout, double> kLayouts[] = {
    {kSingle4, 0.5}, {kSingle8, 0.25}, {kPair8, 0.08}};

const WeightFormat& format() { return tca_bme_format(); }

EncodedWeight encode(const Tensor& w) {
  ThreadPool threads(1);
  return format().encode(w, threads);
}

uint16_t bits_at(const Tensor& w, int64_t row, int64_t column) {
  return row < w.size(0) && column < w.size(1) ? w.row<Half>(row)[column].bits : uint16_t{0};
}

template <class T>
std::vector<T> part_values(const EncodedWeight& e, std::string_view name) {
  const std::span<const T> values = e.part(name).values<T>();
  return {values.begin(), values.end()};
}

// ------------------------------------------------------------------------------------ the layout

TEST(TcaBmeRecord, ThePlaceOfEveryValue) {
  // 9 x 3 in the corner of one record of 4 chunks; (1, 1) is a zero.
  const OwnedTensor w = make_weight({.dtype = DType::f16, .rows = 9, .columns = 3}, 0);
  for (int64_t row = 0; row < 9; ++row) {
    for (int64_t column = 0; column < 3; ++column) {
      w.view.row<Half>(row)[column].bits = static_cast<uint16_t>(10 * row + column + 1);
    }
  }
  w.view.row<Half>(1)[1].bits = 0x8000;
  const EncodedWeight e = encode(w.view);
  EXPECT_EQ(e.format, "tca_bme");
  EXPECT_EQ(e.version, 2);
  EXPECT_EQ(e.nonzeros, 26);
  EXPECT_EQ(part_values<uint32_t>(e, kLayout), (std::vector<uint32_t>{4, 0}));
  // (4 * 192 + 2 * 26) bytes fill 52 times 16.
  EXPECT_EQ(part_values<uint32_t>(e, kStarts), (std::vector<uint32_t>{0, 52}));
  std::vector<uint16_t> expected(52 * 8);
  for (size_t g = 0; g < 8; ++g) {
    expected[g * 8 + 0] = 0x0101;  // columns 0 and 1 of row g
    expected[g * 8 + 2] = 0x0001;  // column 2
  }
  expected[8] = 0x0001;
  expected[1] = 0x0101;  // columns 0 and 1 of row 8
  expected[3] = 0x0001;
  const auto offsets = expected.begin() + 4 * 64;
  std::fill(offsets, offsets + 4 * 32, uint16_t{768 + 2 * 26});
  offsets[0] = 768;           // t = 0, rows 0 to 7
  offsets[8] = 768 + 2 * 15;  // t = 1
  offsets[16] = 768 + 2 * 23;
  offsets[24] = 768 + 2 * 23;
  offsets[1] = 768 + 2 * 23;  // t = 0, row 8
  offsets[9] = 768 + 2 * 25;
  const std::vector<uint16_t> values = {1,  2,  11, 21, 22, 31, 32, 41, 42, 51, 52, 61, 62,
                                        71, 72, 3,  13, 23, 33, 43, 53, 63, 73, 81, 82, 83};
  std::copy(values.begin(), values.end(), expected.begin() + 4 * 96);
  EXPECT_EQ(part_values<uint16_t>(e, kRecords), expected);
}

TEST(TcaBmeRecord, ThePlaceOfEveryPair) {
  const OwnedTensor w = make_weight({.dtype = DType::f16, .rows = 64, .columns = 60}, 0);
  w.view.row<Half>(57)[30].bits = 5;  // i = 3, par = 1, g = 1; chunk 1, p = 1, t = 3, e = 0
  w.view.row<Half>(57)[31].bits = 0x8000;
  w.view.row<Half>(2)[3].bits = 6;  // g = 2; chunk 0, t = 1, e = 1
  const EncodedWeight e = encode(w.view);
  EXPECT_EQ(e.nonzeros, 2);
  EXPECT_EQ(part_values<uint32_t>(e, kLayout), (std::vector<uint32_t>{8, 1}));
  std::vector<uint16_t> expected(65 * 8);
  expected[2 * 8 + 2 * 1 + 0] = 0x0001;
  expected[1 * 8 + 2 * 3 + 1] = 1 << (6 + 1 + 8);
  const auto offsets = expected.begin() + 4 * 64;
  for (int i = 0; i < 8; ++i) {
    for (int par_and_t = 0; par_and_t < 32; ++par_and_t) {
      const int t = par_and_t / 8;
      const int tile = par_and_t % 8;
      const bool after_6 = i > 0 || tile > 0 || t > 1;
      const bool after_5 = i > 1;
      offsets[i * 32 + par_and_t] =
          static_cast<uint16_t>(1024 + (after_6 ? 4 : 0) + (after_5 ? 4 : 0));
    }
  }
  const std::vector<uint16_t> values = {0, 6, 5, 0};
  std::copy(values.begin(), values.end(), expected.begin() + 8 * 64);
  EXPECT_EQ(part_values<uint16_t>(e, kRecords), expected);
}

// The record whose first element is at this row and column, as record_layout.h describes it.
std::vector<uint16_t> reference_record(const Tensor& w, const RecordLayout& layout, int64_t row,
                                       int64_t column) {
  const int chunks = layout.chunks;
  const int matrices = layout.pairs() ? chunks / 2 : chunks;
  std::vector<uint16_t> masks(static_cast<size_t>(matrices * 64));
  std::vector<uint16_t> offsets(static_cast<size_t>(chunks * 32));
  std::vector<uint16_t> values;
  const size_t header = masks.size() + offsets.size();
  for (int position = 0; position < chunks * 512; ++position) {  // of a pair
    const int g = position % 8;
    const int p = position / 8 % 2;
    const int t = position / 16 % 4;
    const int par = position / 64 % 2;
    const int i = position / 128 % 4;
    const int chunk = position / 512;
    if (position % 16 == 0) {
      offsets[static_cast<size_t>(chunk * 32 + t * 8 + 2 * i + par)] =
          static_cast<uint16_t>(2 * (header + values.size()));
    }
    const int64_t r = row + 16 * i + 8 * par + g;
    const int64_t c = column + 16 * chunk + 8 * p + 2 * t;
    const uint16_t elements[2] = {bits_at(w, r, c), bits_at(w, r, c + 1)};
    const bool nonzero[2] = {elements[0] % 0x8000 != 0, elements[1] % 0x8000 != 0};
    for (int e = 0; e < 2; ++e) {
      const int matrix = layout.pairs() ? chunk / 2 : chunk;
      uint16_t& word = masks[static_cast<size_t>(matrix * 64 + g * 8 + 2 * t + par)];
      if (layout.pairs() && (nonzero[0] || nonzero[1])) {
        values.push_back(nonzero[e] ? elements[e] : uint16_t{0});
        word |= static_cast<uint16_t>(1 << (2 * i + p + 8 * (chunk % 2)));
      } else if (nonzero[e]) {
        values.push_back(elements[e]);
        word |= static_cast<uint16_t>(1 << (2 * i + p + 8 * e));
      }
    }
  }
  std::vector<uint16_t> record = masks;
  record.insert(record.end(), offsets.begin(), offsets.end());
  record.insert(record.end(), values.begin(), values.end());
  record.resize((record.size() + 7) / 8 * 8);
  return record;
}

TEST(TcaBmeRecord, LaysRecordsOutAsDescribed) {
  for (const Pattern pattern : {Pattern::random, Pattern::negative_zeros, Pattern::one_tile}) {
    for (const double density : {0.0, 0.02, 0.13, 0.2, 0.33, 0.4, 0.7, 1.0}) {
      for (const auto& [rows, columns] :
           {std::pair{1, 1}, {64, 128}, {65, 63}, {130, 129}, {576, 192}, {1030, 70}}) {
        SCOPED_TRACE(fmt::format("{} of {} in [{}, {}]", name_of(pattern), density, rows, columns));
        const OwnedTensor w = make_weight({.dtype = DType::f16,
                                           .rows = rows,
                                           .columns = columns,
                                           .density = density,
                                           .pattern = pattern},
                                          81);
        const EncodedWeight e = encode(w.view);
        ASSERT_NO_THROW(format().validate(e));
        const RecordLayout layout = read_record_layout(e);
        EXPECT_EQ(layout, record_layout_for(int64_t{rows} * columns, nonzeros_of(w.view)));
        const auto starts = e.part(kStarts).values<uint32_t>();
        const auto records = e.part(kRecords).values<uint16_t>();
        std::vector<uint16_t> expected;
        size_t r = 0;
        for (int64_t row = 0; row < rows; row += 64) {
          for (int64_t column = 0; column < columns; column += layout.columns()) {
            ASSERT_EQ(starts[r] * 8, expected.size());
            ++r;
            const auto record = reference_record(w.view, layout, row, column);
            expected.insert(expected.end(), record.begin(), record.end());
          }
        }
        ASSERT_EQ(starts.size(), r + 1);
        ASSERT_EQ(starts[r] * 8, expected.size());
        EXPECT_TRUE(std::ranges::equal(records, expected));
      }
    }
  }
}

TEST(TcaBmeRecord, TheLayoutDependsOnTheDensity) {
  EXPECT_EQ(record_layout_for(100, 100), kSingle4);
  EXPECT_EQ(record_layout_for(100, 36), kSingle4);
  EXPECT_EQ(record_layout_for(100, 35), kSingle8);
  EXPECT_EQ(record_layout_for(100, 22), kSingle8);
  EXPECT_EQ(record_layout_for(100, 21), kPair8);
  EXPECT_EQ(record_layout_for(0, 0), kPair8);
  EXPECT_EQ(record_layout_for(199, 69), kSingle8);
  EXPECT_EQ(record_layout_for(199, 70), kSingle4);
  EXPECT_EQ(record_layout_for(INT64_MAX, INT64_MAX / 4), kSingle8);
  EXPECT_EQ(record_layout_for(INT64_MAX, INT64_MAX / 2), kSingle4);
  for (const auto& [layout, density] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::bf16, .rows = 200, .columns = 300, .density = density}, 82);
    EXPECT_EQ(read_record_layout(encode(w.view)), layout) << density;
  }
}

TEST(TcaBmeRecord, OffsetsFit16Bits) {
  EXPECT_EQ(kSingle4.most_record_bytes(), 4 * (192 + 2048));
  EXPECT_EQ(kSingle8.most_record_bytes(), 8 * (192 + 2048));
  EXPECT_EQ(kPair8.most_record_bytes(), 8 * (128 + 2048));
}

TEST(TcaBmeRecord, StartsHoldLessThan64GiB) {
  const int64_t rows = int64_t{1} << 17;
  EXPECT_TRUE(tca_bme::starts_hold_any(rows, rows));
  EXPECT_TRUE(tca_bme::starts_hold(rows, rows, rows * rows));
  EXPECT_FALSE(tca_bme::starts_hold_any(2 * rows, rows));
  EXPECT_FALSE(tca_bme::starts_hold(2 * rows, rows, 2 * rows * rows));
  EXPECT_TRUE(tca_bme::starts_hold(2 * rows, rows, rows * rows / 2));
  const int64_t large = int64_t{1} << 31;
  for (const auto& [long_rows, long_columns] : {std::pair{large, int64_t{1}}, {1, large}}) {
    EXPECT_TRUE(tca_bme::starts_hold_any(long_rows, long_columns));
    EXPECT_TRUE(tca_bme::starts_hold(long_rows, long_columns, large));
    EXPECT_TRUE(tca_bme::starts_hold(long_rows, long_columns, 0));
  }
  EXPECT_FALSE(tca_bme::starts_hold_any(large, large));
  EXPECT_FALSE(tca_bme::starts_hold(large, large, large * large));
  EXPECT_FALSE(tca_bme::starts_hold(large, large, 0));
}

TEST(TcaBmeRecord, IsLittleLargerThanThePaperSays) {
  ThreadPool threads(2);
  for (const auto& [density, bar] : {std::pair{0.5, 1.06}, {0.4, 1.075}, {0.3, 1.095}}) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 4096, .columns = 4096, .density = density}, 83);
    const EncodedWeight e = format().encode(w.view, threads);
    const EncodedWeight paper = tca_bme::encode_paper(w.view, threads);
    EXPECT_EQ(format().formula_bytes(e), format().formula_bytes(paper));
    EXPECT_LE(static_cast<double>(e.bytes()), bar * static_cast<double>(format().formula_bytes(e)))
        << density;
    EXPECT_NO_THROW(format().validate(e));
  }
}

// The bits of pairs take half of the paper's, the offsets the other half, and there are fewer
// starts.
TEST(TcaBmeRecord, MayBeALittleSmallerThanThePaperSays) {
  const EncodedWeight e =
      encode(make_weight({.dtype = DType::f16, .rows = 512, .columns = 128}, 0).view);
  EXPECT_EQ(e.bytes(), 4 * 2 + 4 * 9 + 8 * 1024);
  EXPECT_EQ(format().formula_bytes(e), 4 * 17 + 16 * 512);
}

TEST(TcaBmeRecord, EmptyMatrices) {
  ThreadPool threads(2);
  for (const auto& [rows, columns] : {std::pair{0, 0}, {0, 70}, {70, 0}}) {
    const OwnedTensor w = make_weight({.dtype = DType::f16, .rows = rows, .columns = columns}, 0);
    const EncodedWeight e = encode(w.view);
    format().validate(e);
    EXPECT_EQ(e.bytes(), 8 + 4);
    EXPECT_TRUE(same_matrix(format().decode(e, threads).view, w.view));
  }
}

TEST(TcaBmeRecord, KeepsEveryValueBitByBitButNegativeZero) {
  ThreadPool threads(2);
  for (const int64_t step : {1, 4, 16}) {  // nonzeros to elements: 1, 1/4, 1/16
    for (DType dtype : {DType::f16, DType::bf16}) {
      const OwnedTensor w = make_weight({.dtype = dtype, .rows = 256, .columns = 256 * step}, 0);
      auto* const bits = static_cast<uint16_t*>(w.view.raw());
      for (int64_t i = 0; i < 0x10000; ++i) {
        bits[i * step] = static_cast<uint16_t>(i);
      }
      const EncodedWeight e = encode(w.view);
      EXPECT_EQ(read_record_layout(e), step == 1 ? kSingle4 : step == 4 ? kSingle8 : kPair8);
      format().validate(e);
      EXPECT_EQ(e.nonzeros, 0x10000 - 2);
      bits[0x8000 * step] = 0;
      EXPECT_TRUE(same_matrix(format().decode(e, threads).view, w.view));
    }
  }
}

TEST(TcaBmeRecord, TheSameBytesForAnyNumberOfThreadsAndAnyStride) {
  for (const auto& [layout, density] : kLayouts) {
    const OwnedTensor wide =
        make_weight({.dtype = DType::bf16, .rows = 600, .columns = 710, .density = density}, 84);
    const Tensor strided = wide.view.rows(3, 590).columns(7, 700);
    const OwnedTensor w = testing::copy_of(strided);
    const EncodedWeight expected = encode(w.view);
    format().validate(expected);
    for (int count : {1, 2, 3}) {
      ThreadPool threads(count);
      EXPECT_TRUE(same_encoding(format().encode(w.view, threads), expected)) << count;
      EXPECT_TRUE(same_encoding(format().encode(strided, threads), expected)) << count;
      EXPECT_TRUE(same_matrix(format().decode(expected, threads).view, w.view)) << count;
    }
  }
}

TEST(TcaBmeRecord, BothVersionsHoldTheSameMatrix) {
  CpuContext cpu(2);
  const OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = 70, .columns = 130, .density = 0.4}, 85);
  const EncodedWeight paper = tca_bme::encode_paper(w.view, cpu.threads);
  EXPECT_TRUE(same_matrix(format().decode(paper, cpu.threads).view, w.view));
  const EncodedWeight record = encode(w.view);
  for (const EncodedWeight* e : {&paper, &record}) {
    const GuardedTensor dense(DType::f16, {70, 130});
    format().load(testing::copy_of(*e), {})->expand({0, 70}, dense.view(), cpu.exec);
    EXPECT_TRUE(same_matrix(dense.view(), w.view));
  }
}

// ---------------------------------------------------------------------------------------- damage

EncodedPart& part(EncodedWeight& e, std::string_view name) {
  return *std::ranges::find(e.parts, name, &EncodedPart::name);
}
template <class T>
T& at(EncodedWeight& e, std::string_view name, int64_t index) {
  return static_cast<T*>(part(e, name).memory.data())[index];
}

struct Damage {
  std::string message;
  std::function<void(EncodedWeight&)> apply;
};

void expect_errors(const EncodedWeight& good, std::span<const Damage> cases) {
  for (const Damage& damage : cases) {
    EncodedWeight e = testing::copy_of(good);
    ASSERT_NO_THROW(format().validate(e));
    damage.apply(e);
    EXPECT_TRUE(throws_error([&] { format().validate(e); }, damage.message)) << damage.message;
  }
}

// 2 x 2 records of 64 x 64 elements of which the last has 6 x 3; all but the first of those are
// nonzeros. In words of 16 bits, masks and offsets take 4 * 96 of a record.
OwnedTensor dense_weight() {
  OwnedTensor w = make_weight({.dtype = DType::f16, .rows = 70, .columns = 67, .density = 1.0}, 86);
  w.view.row<Half>(64)[64].bits = 0;
  return w;
}

TEST(TcaBmeRecordDamage, EachFieldIsChecked) {
  using E = EncodedWeight;
  const OwnedTensor w = dense_weight();
  const EncodedWeight good = encode(w.view);
  ASSERT_EQ(read_record_layout(good), kSingle4);
  // Words: where the records begin.
  const auto starts = good.part(kStarts).values<uint32_t>();
  const int64_t second = int64_t{starts[1]} * 8;  // [0 to 63, 64 to 66]
  const int64_t third = int64_t{starts[2]} * 8;   // [64 to 69, 0 to 63]
  const int64_t last = int64_t{starts[3]} * 8;    // [64 to 69, 64 to 66]
  const int64_t values = 4 * 96;
  const Damage cases[] = {
      {"version 0", [](E& e) { e.version = 0; }},
      {"version 3", [](E& e) { e.version = 3; }},
      {"no part values", [](E& e) { e.version = 1; }},
      {"f32 values", [](E& e) { e.dtype = DType::f32; }},
      {"i32 values", [](E& e) { e.dtype = DType::i32; }},
      {"-1 x 67", [](E& e) { e.rows = -1; }},
      {"70 x -1", [](E& e) { e.columns = -1; }},
      {"does not fit", [](E& e) { e.rows = INT64_MAX; }},
      {"part starts", [](E& e) { e.rows = 64, e.nonzeros = 1; }},
      {"part starts", [](E& e) { e.rows = 129; }},
      {"part starts", [](E& e) { e.rows = 0, e.nonzeros = 0; }},
      {"part starts", [](E& e) { e.columns = 64, e.nonzeros = 1; }},
      {"part starts", [](E& e) { e.columns = 129; }},
      {"part starts", [](E& e) { e.columns = 0, e.nonzeros = 0; }},
      {"outside of the matrix", [](E& e) { e.rows = 69, e.nonzeros = 1; }},
      {"outside of the matrix", [](E& e) { e.columns = 66, e.nonzeros = 1; }},
      {"4688 nonzeros", [](E& e) { e.nonzeros = 4688; }},
      {"4690 nonzeros", [](E& e) { e.nonzeros = 4690; }},
      {"-1 nonzeros", [](E& e) { e.nonzeros = -1; }},

      {"no part layout", [](E& e) { e.parts.erase(e.parts.begin()); }},
      {"no part starts", [](E& e) { e.parts.erase(e.parts.begin() + 1); }},
      {"no part records", [](E& e) { e.parts.pop_back(); }},
      {"4 parts", [](E& e) { e.parts.emplace_back().name = "more"; }},
      {"is F32, not U32", [](E& e) { part(e, kStarts).type = PartType::f32; }},
      {"is U16, not U8", [](E& e) { part(e, kRecords).type = PartType::u16; }},
      {"8 bytes of F32", [](E& e) { part(e, kLayout).type = PartType::f32; }},
      {"4 bytes of U32", [](E& e) { part(e, kLayout).bytes = part(e, kLayout).bytes.first(4); }},
      {"20 bytes of U32", [](E& e) { part(e, kLayout).bytes = part(e, kStarts).bytes; }},
      {"0 bytes of U32", [](E& e) { part(e, kLayout).bytes = {}; }},
      {"19 bytes", [](E& e) { part(e, kStarts).bytes = part(e, kStarts).bytes.first(19); }},
      {"16 bytes", [](E& e) { part(e, kStarts).bytes = part(e, kStarts).bytes.first(16); }},
      {"record 3",
       [](E& e) {
         EncodedPart& records = part(e, kRecords);
         records.bytes = records.bytes.first(records.bytes.size() - 1);
       }},
      {"of 0 bytes", [](E& e) { part(e, kRecords).bytes = {}; }},

      {"5 chunks", [](E& e) { at<uint32_t>(e, kLayout, 0) = 5; }},
      {"0 chunks", [](E& e) { at<uint32_t>(e, kLayout, 0) = 0; }},
      {"part starts", [](E& e) { at<uint32_t>(e, kLayout, 0) = 8; }},
      {"kind 2", [](E& e) { at<uint32_t>(e, kLayout, 1) = 2; }},
      {"pairs in records of 4 chunks", [](E& e) { at<uint32_t>(e, kLayout, 1) = 1; }},

      {"the first start is 1", [](E& e) { at<uint32_t>(e, kStarts, 0) = 1; }},
      {"record 0", [](E& e) { at<uint32_t>(e, kStarts, 1) += 1; }},
      {"record 0", [](E& e) { at<uint32_t>(e, kStarts, 1) -= 1; }},
      {"fewer than masks",
       [](E& e) { at<uint32_t>(e, kStarts, 3) = at<uint32_t>(e, kStarts, 2) + 47; }},
      {"record 1 goes", [](E& e) { at<uint32_t>(e, kStarts, 2) = 0; }},
      {"record 1 goes", [](E& e) { at<uint32_t>(e, kStarts, 2) = UINT32_MAX; }},
      {"record 2 has", [](E& e) { at<uint32_t>(e, kStarts, 3) += 1; }},
      {"record 3 goes", [](E& e) { at<uint32_t>(e, kStarts, 4) = 0; }},
      {"record 3 goes", [](E& e) { at<uint32_t>(e, kStarts, 4) += 1; }},
      {"the last start", [](E& e) { at<uint32_t>(e, kStarts, 4) -= 1; }},
      {"the last start",
       [](E& e) {
         const int64_t bytes = std::ssize(part(e, kRecords).bytes);
         Buffer memory(Device{}, bytes + 16, "a test");
         std::memcpy(memory.data(), part(e, kRecords).bytes.data(), static_cast<size_t>(bytes));
         part(e, kRecords).bytes = {static_cast<std::byte*>(memory.data()),
                                    static_cast<size_t>(bytes) + 16};
         part(e, kRecords).memory = std::move(memory);
       }},

      {"more than any",
       [](E& e) {
         const int64_t bytes = std::ssize(part(e, kRecords).bytes);
         constexpr int64_t kMore = 8960;  // as the largest of its layout
         Buffer memory(Device{}, bytes + kMore, "a test");
         std::memcpy(memory.data(), part(e, kRecords).bytes.data(), static_cast<size_t>(bytes));
         part(e, kRecords).bytes = {static_cast<std::byte*>(memory.data()),
                                    static_cast<size_t>(bytes + kMore)};
         part(e, kRecords).memory = std::move(memory);
         at<uint32_t>(e, kStarts, 4) += kMore / 16;
       }},

      {"offset 0 of record 0", [](E& e) { at<uint16_t>(e, kRecords, 256) += 2; }},
      {"offset 1 of record 0", [](E& e) { at<uint16_t>(e, kRecords, 257) = 0xffff; }},
      {"offset 127 of record 3", [&](E& e) { at<uint16_t>(e, kRecords, last + 256 + 127) -= 2; }},
      {"offset 8 of record 0", [](E& e) { at<uint16_t>(e, kRecords, 0) &= 0xfffe; }},
      {"of 4080 bits", [](E& e) { at<uint16_t>(e, kRecords, 0) = 0; }},
      {"offset 8 of record 3",
       [&](E& e) {
         at<uint16_t>(e, kRecords, last) |= 1;
         at<uint16_t>(e, kRecords, last + 2) &= 0xfffe;
       }},
      // A bit that moves out of the matrix.
      {"record 1 has bits outside",
       [&](E& e) {
         at<uint16_t>(e, kRecords, second + 2) &= 0xfffe;
         at<uint16_t>(e, kRecords, second + 2) |= 0x0100;
       }},
      {"record 2 has bits outside",
       [&](E& e) {
         at<uint16_t>(e, kRecords, third) &= 0xfffe;
         at<uint16_t>(e, kRecords, third + 6 * 8) |= 1;
       }},

      {"1 nonzeros of record 0", [&](E& e) { at<uint16_t>(e, kRecords, values + 9) = 0; }},
      {"1 nonzeros of record 1",
       [&](E& e) { at<uint16_t>(e, kRecords, second + values) = 0x8000; }},
      {"padding of record 3", [&](E& e) { at<uint16_t>(e, kRecords, last + values + 17) = 1; }},
      {"padding of record 3",
       [&](E& e) { at<uint16_t>(e, kRecords, last + values + 23) = 0x8000; }},
  };
  expect_errors(good, cases);
}

TEST(TcaBmeRecordDamage, PairsAreChecked) {
  using E = EncodedWeight;
  // One record of 8 chunks: pairs of 1 and 2 at (0, 0), 3 and nothing at (3, 4), 4 and the end of
  // the row at (9, 66). Words of 16 bits, values follow 8 * 64 of masks and offsets.
  const OwnedTensor w = make_weight({.dtype = DType::f16, .rows = 10, .columns = 67}, 0);
  w.view.row<Half>(0)[0].bits = 1;
  w.view.row<Half>(0)[1].bits = 2;
  w.view.row<Half>(3)[4].bits = 3;
  w.view.row<Half>(9)[66].bits = 4;
  const EncodedWeight good = encode(w.view);
  ASSERT_EQ(read_record_layout(good), kPair8);
  constexpr int64_t kFirstValue = 8 * 64;
  const auto value = [](E& e, int64_t index) -> uint16_t& {
    return at<uint16_t>(e, kRecords, kFirstValue + index);
  };
  ASSERT_EQ(part_values<uint16_t>(good, kRecords)[kFirstValue + 4], 4);
  const Damage cases[] = {
      {"1 pairs", [&](E& e) { value(e, 0) = value(e, 1) = 0; }},
      {"1 pairs", [&](E& e) { value(e, 2) = 0; }},
      {"1 pairs, or negative values, of record 0 are 0", [&](E& e) { value(e, 3) = 0x8000; }},
      {"4 nonzeros, but 3", [&](E& e) { value(e, 0) = 0; }},
      {"4 nonzeros, but 5", [&](E& e) { value(e, 3) = 7; }},
      {"value outside of the matrix", [&](E& e) { value(e, 5) = 7; }},
      {"value outside of the matrix", [&](E& e) { value(e, 5) = 0x8000; }},
      {"padding", [&](E& e) { value(e, 6) = 1; }},
      {"offset 9 of record 0", [](E& e) { at<uint16_t>(e, kRecords, 1) = 1; }},
      {"of 5 bits", [](E& e) { at<uint16_t>(e, kRecords, 1) = 3; }},
      {"outside of the matrix",
       [](E& e) {
         std::swap(at<uint16_t>(e, kRecords, 2 * 64 + 8 + 3),
                   at<uint16_t>(e, kRecords, 2 * 64 + 16 + 3));
       }},
      {"outside of the matrix", [](E& e) { e.columns = 66; }},
      {"offset", [](E& e) { at<uint16_t>(e, kRecords, 256 + 5) -= 4; }},
  };
  expect_errors(good, cases);
}

TEST(TcaBmeRecord, RecordsNeedNoAlignment) {
  ThreadPool threads(2);
  for (const auto& [layout, density] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 70, .columns = 130, .density = density}, 87);
    EncodedWeight e = encode(w.view);
    const std::span<const std::byte> records = e.part(kRecords).bytes;
    std::vector<std::byte> shifted(records.size() + 1);
    std::copy(records.begin(), records.end(), shifted.begin() + 1);
    part(e, kRecords).bytes = std::span(shifted).subspan(1);
    EXPECT_NO_THROW(format().validate(e));
    EXPECT_TRUE(same_matrix(format().decode(e, threads).view, w.view));
    EXPECT_TRUE(format().slice(e, Axis::rows, {0, 70}).has_value());
  }
}

// What kernels rely on, as record_layout.h says it.
void expect_values_inside(const EncodedWeight& e) {
  const tca_bme::RecordParts parts(e);
  const RecordLayout& layout = parts.layout;
  for (int64_t r = 0; r < parts.grid.count(); ++r) {
    const std::span<const std::byte> record = parts.record(r);
    ASSERT_LE(std::ssize(record), layout.most_record_bytes());
    int64_t end = layout.header_bytes();
    for (int chunk = 0; chunk < layout.chunks; ++chunk) {
      for (int tile = 0; tile < 8; ++tile) {  // 2 i + par
        for (int t = 0; t < 4; ++t) {
          ASSERT_EQ(tca_bme::load_from<uint16_t>(record.data() + layout.mask_bytes() +
                                                 2 * (chunk * 32 + t * 8 + tile)),
                    end);
          const int matrix = layout.pairs() ? chunk / 2 : chunk;
          const int shift = tile / 2 * 2 + (layout.pairs() ? chunk % 2 * 8 : 0);
          const unsigned bits = layout.pairs() ? 3 : 0x0303;
          for (int g = 0; g < 8; ++g) {
            const unsigned word = tca_bme::load_from<uint16_t>(
                record.data() + 2 * (matrix * 64 + g * 8 + 2 * t + tile % 2));
            end += std::popcount(word >> shift & bits) * layout.value_bytes();
          }
        }
      }
    }
    ASSERT_LE(end, std::ssize(record));
    ASSERT_GT(end + 16, std::ssize(record));
  }
}

// What validate() lets pass is an encoding: one that encode() makes of what it decodes to, unless
// it would take another layout.
void use_if_valid(const EncodedWeight& e) {
  try {
    format().validate(e);
  } catch (const Error&) {
    return;
  }
  expect_values_inside(e);
  CpuContext cpu;
  const OwnedTensor w = format().decode(e, cpu.threads);
  if (read_record_layout(e) == record_layout_for(e.rows * e.columns, e.nonzeros)) {
    EXPECT_TRUE(same_encoding(encode(w.view), e));
  }
  const GuardedTensor x = Random(88).tensor(DType::f32, {2, e.columns});
  const GuardedTensor y(DType::f32, {2, e.rows});
  format().load(testing::copy_of(e), {})->matmul(x.view(), y.view(), {}, cpu.exec);
  EXPECT_TRUE(y.guards_intact());
}

TEST(TcaBmeRecord, ValuesAreInsideOfTheirRecords) {
  for (const Pattern pattern : kPatterns) {
    for (const double density : {0.0, 0.08, 0.25, 0.5, 1.0}) {
      SCOPED_TRACE(fmt::format("{} of {}", name_of(pattern), density));
      const OwnedTensor w = make_weight({.dtype = DType::bf16,
                                         .rows = 577,
                                         .columns = 259,
                                         .density = density,
                                         .pattern = pattern},
                                        97);
      const EncodedWeight e = encode(w.view);
      ASSERT_NO_THROW(format().validate(e));
      expect_values_inside(e);
    }
  }
}

// Of each, and of several at a time, wherever they are.
TEST(TcaBmeRecord, CopiesOfRecordsAreChecked) {
  for (const auto& [layout, density] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 200, .columns = 411, .density = density}, 98);
    EncodedWeight e = encode(w.view);
    ASSERT_EQ(read_record_layout(e), layout);
    const tca_bme::RecordChecker checker(e);
    EXPECT_EQ(checker.layout(), layout);
    EXPECT_EQ(std::vector(checker.starts().begin(), checker.starts().end()),
              part_values<uint32_t>(e, kStarts));
    const auto all = e.part(kRecords).bytes;
    std::vector<std::byte> copy(all.size() + 1);
    std::copy(all.begin(), all.end(), copy.begin() + 1);
    std::memset(part(e, kStarts).memory.data(), 0xff, part(e, kStarts).bytes.size());
    std::memset(part(e, kRecords).memory.data(), 0xff, all.size());

    const int64_t count = std::ssize(checker.starts()) - 1;
    const auto check = [&](int64_t first, int64_t some) {
      const auto at = [&](int64_t r) {
        return size_t{checker.starts()[static_cast<size_t>(r)]} * tca_bme::kRecordAlignment;
      };
      const std::span<const std::byte> bytes(copy);
      return checker.check(first, some, bytes.subspan(1 + at(first), at(first + some) - at(first)));
    };
    for (int64_t step : {int64_t{1}, int64_t{3}, count}) {
      int64_t nonzeros = 0;
      for (int64_t first = 0; first < count; first += step) {
        nonzeros += check(first, std::min(step, count - first));
      }
      EXPECT_EQ(nonzeros, e.nonzeros);
    }
    copy.back() ^= std::byte{0xff};
    EXPECT_GT(check(0, count - 1), 0);
    EXPECT_TRUE(throws_error([&] { check(count - 1, 1); }, fmt::format("record {}", count - 1)));
  }
}

TEST(TcaBmeRecordDamage, AnyByteIsAnErrorOrStaysInBounds) {
  for (const auto& [layout, density] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 66, .columns = 11, .density = density}, 89);
    const EncodedWeight good = encode(w.view);
    ASSERT_EQ(read_record_layout(good), layout);
    for (size_t p = 0; p < good.parts.size(); ++p) {
      for (size_t i = 0; i < good.parts[p].bytes.size(); ++i) {
        for (unsigned flip : {0x01u, 0x80u, 0xffu}) {
          EncodedWeight e = testing::copy_of(good);
          static_cast<std::byte*>(e.parts[p].memory.data())[i] ^= std::byte(flip);
          use_if_valid(e);
        }
      }
    }
  }
}

TEST(TcaBmeRecordDamage, ManyBytesAtOnce) {
  Random random(90);
  for (const auto& [layout, density] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::bf16, .rows = 70, .columns = 67, .density = density}, 91);
    const EncodedWeight good = encode(w.view);
    for (int round = 0; round < 1000; ++round) {
      EncodedWeight e = testing::copy_of(good);
      e.rows += random.below(2) * (random.below(9) - 4);
      e.columns += random.below(2) * (random.below(9) - 4);
      e.nonzeros += random.below(2) * (random.below(3) - 1);
      for (int64_t count = random.below(4); count > 0; --count) {
        EncodedPart& damaged = e.parts[static_cast<size_t>(random.below(3))];
        const int64_t byte = random.below(std::ssize(damaged.bytes));
        static_cast<std::byte*>(damaged.memory.data())[byte] = std::byte(random.below(256));
      }
      use_if_valid(e);
    }
  }
}

TEST(TcaBmeRecordDamage, HeadersOfAnySizeAreErrorsOrStayInBounds) {
  const OwnedTensor w = dense_weight();
  const EncodedWeight good = encode(w.view);
  const EncodedWeight empty =
      encode(make_weight({.dtype = DType::f16, .rows = 0, .columns = 1}, 0).view);
  const int64_t large = INT64_MAX;
  const std::vector<int64_t> sizes = {0,
                                      1,
                                      63,
                                      64,
                                      65,
                                      70,
                                      67,
                                      128,
                                      -1,
                                      129,
                                      512,
                                      large,
                                      large - 1,
                                      INT64_MIN,
                                      int64_t{1} << 31,
                                      int64_t{1} << 32,
                                      int64_t{1} << 60};
  for (int64_t rows : sizes) {
    for (int64_t columns : sizes) {
      for (const EncodedWeight* from : {&good, &empty}) {
        EncodedWeight e = testing::copy_of(*from);
        e.rows = rows;
        e.columns = columns;
        if (from == &empty && (rows > 512 || columns > 512)) {
          // Products of as many tokens or sums would be large; the bounds are those of validate().
          try {
            format().validate(e);
            EXPECT_EQ(rows * columns, 0);
            EXPECT_NO_THROW(format().slice(e, Axis::columns, {0, columns}));
          } catch (const Error&) {
          }
          continue;
        }
        use_if_valid(e);
      }
    }
  }
}

// -------------------------------------------------------------------------------- slice and join

TEST(TcaBmeRecord, SlicesAtBordersWithoutDecoding) {
  for (const auto& [layout, density] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 1100, .columns = 600, .density = density}, 92);
    const EncodedWeight e = encode(w.view);
    for (const Range rows : {Range{0, 1100}, {0, 64}, {64, 512}, {128, 972}, {1088, 12}}) {
      const std::optional<EncodedWeight> sliced = format().slice(e, Axis::rows, rows);
      ASSERT_TRUE(sliced.has_value()) << rows.begin << " " << rows.count;
      format().validate(*sliced);
      EXPECT_TRUE(same_encoding(*sliced, encode(w.view.rows(rows.begin, rows.count))));
    }
    for (const Range columns : {Range{0, 600}, {0, 128}, {128, 256}, {256, 344}, {512, 88}}) {
      const std::optional<EncodedWeight> sliced = format().slice(e, Axis::columns, columns);
      ASSERT_TRUE(sliced.has_value()) << columns.begin << " " << columns.count;
      format().validate(*sliced);
      EXPECT_TRUE(same_encoding(*sliced, encode(w.view.columns(columns.begin, columns.count))));
    }
    EXPECT_EQ(format().slice(e, Axis::columns, {64, 64}).has_value(), layout.chunks == 4);
  }
}

TEST(TcaBmeRecord, SlicesNowhereElse) {
  const OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = 1100, .columns = 600, .density = 0.4}, 93);
  const EncodedWeight e = encode(w.view);
  for (const Range rows : {Range{0, 63}, {0, 1099}, {1, 64}, {32, 1068}, {64, 65}, {1100, 0}}) {
    EXPECT_FALSE(format().slice(e, Axis::rows, rows).has_value()) << rows.begin;
  }
  for (const Range columns : {Range{0, 63}, {0, 599}, {1, 64}, {32, 568}, {600, 0}}) {
    EXPECT_FALSE(format().slice(e, Axis::columns, columns).has_value()) << columns.begin;
  }
}

// Rows from `first` on of w become nonzeros of half of the elements, all others of few.
OwnedTensor half_dense(int64_t rows, int64_t first) {
  OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = rows, .columns = 256, .density = 0.05}, 94);
  const OwnedTensor dense =
      make_weight({.dtype = DType::f16, .rows = rows, .columns = 256, .density = 0.5}, 95);
  for (int64_t row = first; row < rows; ++row) {
    std::copy_n(dense.view.row<Half>(row), 256, w.view.row<Half>(row));
  }
  return w;
}

TEST(TcaBmeRecord, SlicesAndJoinsOnlyWhereTheLayoutStays) {
  const OwnedTensor w = half_dense(1024, 512);
  const EncodedWeight e = encode(w.view);
  ASSERT_EQ(read_record_layout(e), kSingle8);
  EXPECT_FALSE(format().slice(e, Axis::rows, {0, 512}).has_value());
  EXPECT_FALSE(format().slice(e, Axis::rows, {512, 512}).has_value());
  EXPECT_FALSE(format().slice(e, Axis::rows, {0, 0}).has_value());
  EXPECT_TRUE(format().slice(e, Axis::columns, {128, 128}).has_value());

  const EncodedWeight top = encode(w.view.rows(0, 512));
  const EncodedWeight bottom = encode(w.view.rows(512, 512));
  EXPECT_EQ(read_record_layout(top), kPair8);
  EXPECT_EQ(read_record_layout(bottom), kSingle4);
  const EncodedWeight* const parts[] = {&top, &bottom};
  EXPECT_FALSE(format().concat_rows(parts).has_value());
  ThreadPool threads(1);
  EXPECT_TRUE(same_encoding(concat_rows(parts, threads), e));
}

TEST(TcaBmeRecord, JoinsWholeRowBlocksWithoutDecoding) {
  struct Case {
    std::vector<int64_t> rows;
    bool joins;
  };
  const Case cases[] = {{{1100}, true},         {{64, 1036}, true},
                        {{1088, 12}, true},     {{0, 128, 0, 896, 76, 0}, true},
                        {{63, 1037}, false},    {{96, 1004}, false},
                        {{64, 12, 1024}, false}};
  for (const auto& [layout, density] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::bf16, .rows = 1100, .columns = 100, .density = density}, 96);
    for (const Case& c : cases) {
      std::vector<EncodedWeight> parts;
      std::vector<const EncodedWeight*> pointers;
      int64_t row = 0;
      parts.reserve(c.rows.size());
      for (int64_t rows : c.rows) {
        parts.push_back(encode(w.view.rows(row, rows)));
        pointers.push_back(&parts.back());
        row += rows;
      }
      const std::optional<EncodedWeight> joined = format().concat_rows(pointers);
      ASSERT_EQ(joined.has_value(), c.joins) << c.rows.front() << " at " << density;
      if (joined) {
        format().validate(*joined);
        EXPECT_TRUE(same_encoding(*joined, encode(w.view))) << c.rows.front();
      }
    }
    const EncodedWeight none = encode(w.view.rows(0, 0));
    const EncodedWeight* const nothing[] = {&none, &none};
    const std::optional<EncodedWeight> joined = format().concat_rows(nothing);
    ASSERT_TRUE(joined.has_value());
    EXPECT_TRUE(same_encoding(*joined, none));
  }
}

}  // namespace
}  // namespace sparsellm
