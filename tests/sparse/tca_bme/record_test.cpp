// Version 2 of tca_bme: the records that encode() makes.

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/host/record_uploads.h"
#include "sparse/tca_bme/tca_bme.h"
#include "sparse/tca_bme/v1/paper_layout.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/tca_bme/records.h"
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
using tca_bme::RecordsFor;

uint16_t bits_at(const Tensor& w, int64_t row, int64_t column) {
  return row < w.size(0) && column < w.size(1) ? w.row<Half>(row)[column].bits : uint16_t{0};
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
        for (const RecordsFor goal : {RecordsFor::speed, RecordsFor::size}) {
          SCOPED_TRACE(fmt::format("{} of {} in [{}, {}] for {}", name_of(pattern), density, rows,
                                   columns, name_of(goal)));
          const OwnedTensor w = make_weight({.dtype = DType::f16,
                                             .rows = rows,
                                             .columns = columns,
                                             .density = density,
                                             .pattern = pattern},
                                            81);
          const EncodedWeight e = encode(w.view, name_of(goal));
          ASSERT_NO_THROW(format().validate(e));
          const RecordLayout layout = read_record_layout(e);
          EXPECT_EQ(layout, record_layout_for(int64_t{rows} * columns, nonzeros_of(w.view), goal));
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
  for (int64_t nonzeros = 0; nonzeros <= 100; ++nonzeros) {
    const RecordLayout fastest = record_layout_for(100, nonzeros);
    EXPECT_EQ(record_layout_for(100, nonzeros, RecordsFor::speed), fastest);
    EXPECT_EQ(record_layout_for(100, nonzeros, RecordsFor::size),
              fastest.pairs() ? kSingle8 : fastest);
  }
  for (const auto& [layout, density, goal] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::bf16, .rows = 200, .columns = 300, .density = density}, 82);
    EXPECT_EQ(read_record_layout(encode(w.view, goal)), layout) << density;
  }
}

// What says which layout it is goes with slices, joins and headers.
TEST(TcaBmeRecord, TellsWhatItIsFor) {
  ThreadPool threads(2);
  const LayoutOptions size{.layout = "size"};
  EXPECT_EQ(tca_bme::records_for(""), RecordsFor::speed);
  for (const RecordsFor goal : {RecordsFor::speed, RecordsFor::size}) {
    EXPECT_EQ(tca_bme::records_for(name_of(goal)), goal);
    ASSERT_NO_THROW(format().check_layout(name_of(goal)));
  }
  for (const char* text : {"Size", "size ", "pairs", "4"}) {
    EXPECT_TRUE(throws_error([&] { format().check_layout(text); },
                             fmt::format("records for \"{}\"; they are for speed or size", text)));
  }
  for (const auto& [layout, density, goal] : kLayouts) {
    const bool tells = density == 0.08 && goal == "size";
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 300, .columns = 600, .density = density}, 85);
    const EncodedWeight e = encode(w.view, goal);
    EXPECT_EQ(format().layout_like(e), tells ? size : LayoutOptions()) << density;
    // Where nothing is at a border it is encoded again.
    const EncodedWeight rows = slice(e, Axis::rows, {10, 200}, threads);
    const EncodedWeight part = slice(rows, Axis::columns, {1, 500}, threads);
    EXPECT_EQ(read_record_layout(part), layout) << density;
    const EncodedWeight* const parts[] = {&part, &part};
    const EncodedWeight joined = concat_rows(parts, threads);
    EXPECT_EQ(read_record_layout(joined), layout) << density;
    ASSERT_NO_THROW(format().validate(joined));
    EncodedWeight header = view_of(e);
    header.parts.clear();
    format().tell_layout(header, {.layout = std::string(goal)});
    EXPECT_EQ(tca_bme::layout_of(header), layout) << density;
    const auto bytes = static_cast<double>(e.bytes());
    EXPECT_NEAR(static_cast<double>(format().expected_bytes(header)), bytes, 0.01 * bytes);
    const EncodedSize cut =
        format().expected_size(e, {.rows = {.begin = 10, .count = 200}, .columns = {1, 500}});
    EXPECT_FALSE(cut.exact);
    const auto cut_bytes = static_cast<double>(part.bytes());
    EXPECT_NEAR(static_cast<double>(cut.bytes), cut_bytes, 0.03 * cut_bytes);
  }
  const EncodedWeight paper = tca_bme::encode_paper(
      make_weight({.dtype = DType::f16, .rows = 64, .columns = 64, .density = 0.1}, 85).view,
      threads);
  EXPECT_EQ(format().layout_like(paper), LayoutOptions());
}

// At 80 % zeros: masks and offsets of 1,536 bytes and 7 of padding for 8,192 elements, a start of
// 4, and 2 bytes for each nonzero.
TEST(TcaBmeRecord, SizeIsWhatTheFormulaSays) {
  constexpr int64_t kElements = int64_t{4096} * 4096;
  EncodedWeight header{.format = "tca_bme",
                       .version = 2,
                       .dtype = DType::f16,
                       .rows = 4096,
                       .columns = 4096,
                       .nonzeros = kElements / 5,
                       .parts = {}};
  const auto bytes_an_element = [&] {
    return static_cast<double>(format().expected_bytes(header)) / static_cast<double>(kElements);
  };
  EXPECT_NEAR(bytes_an_element(), 0.85, 0.0085);
  format().tell_layout(header, {.layout = "size"});
  EXPECT_NEAR(bytes_an_element(), 0.59, 0.0059);
  EXPECT_NEAR(bytes_an_element(), (1536.0 + 7.0 + 4.0) / 8192.0 + 0.2 * 2.0, 1e-4);
  const OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = 4096, .columns = 4096, .density = 0.2}, 86);
  header.nonzeros = nonzeros_of(w.view);
  EXPECT_NEAR(static_cast<double>(encode(w.view, "size").bytes()),
              static_cast<double>(format().expected_bytes(header)), 1000.0);
}

// Pairs only where most have two nonzeros, or hardly any has one; fewer chunks in a record where
// more would lie beside the matrix.
TEST(TcaBmeRecord, TheLayoutForSizeHasTheFewestBytes) {
  ThreadPool threads(2);
  const auto layout_of = [&](int64_t rows, int64_t columns, double density) {
    const OwnedTensor w = make_weight(
        {.dtype = DType::bf16, .rows = rows, .columns = columns, .density = density}, 82);
    const EncodedWeight e = format().encode(w.view, {.goal = LayoutFor::size}, threads);
    EXPECT_NO_THROW(format().validate(e));
    EXPECT_TRUE(same_matrix(format().decode(e, threads).view, w.view));
    return read_record_layout(e);
  };
  for (const auto& [density, layout] : {std::pair{0.6, kSingle4},
                                        {0.4, kSingle4},
                                        {0.3, kSingle8},
                                        {0.2, kSingle8},
                                        {0.1, kSingle8},
                                        {0.05, kSingle8},
                                        {0.01, kPair8},
                                        {0.0, kPair8}}) {
    EXPECT_EQ(layout_of(640, 1024, density), layout) << density;
  }
  for (const double density : {0.6, 0.4, 0.2, 0.1}) {
    EXPECT_EQ(layout_of(640, 192, density), kSingle4) << density;
    EXPECT_EQ(layout_of(640, 64, density), kSingle4) << density;
  }
  const OwnedTensor twins =
      make_weight({.dtype = DType::f16, .rows = 256, .columns = 256, .density = 0.2}, 83);
  for (int64_t i = 0; i < 256 * 256; i += 2) {
    twins.view.data<Half>()[i + 1] = twins.view.data<Half>()[i];
  }
  EXPECT_EQ(read_record_layout(format().encode(twins.view, {.goal = LayoutFor::size}, threads)),
            kPair8);
}

// As a converter writes them: q, k and v are joined when a model is loaded.
TEST(TcaBmeRecord, LayoutsForSizeAreJoinedAsTheyAre) {
  ThreadPool threads(2);
  const OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = 320, .columns = 256, .density = 0.1}, 84);
  const EncodedWeight top =
      format().encode(w.view.rows(0, 192), {.goal = LayoutFor::size}, threads);
  const EncodedWeight bottom =
      format().encode(w.view.rows(192, 128), {.goal = LayoutFor::size}, threads);
  const EncodedWeight* const parts[] = {&top, &bottom};
  const std::optional<EncodedWeight> joined = format().concat_rows(parts);
  ASSERT_TRUE(joined.has_value());
  ASSERT_NO_THROW(format().validate(*joined));
  EXPECT_TRUE(same_encoding(*joined, format().encode(w.view, {.goal = LayoutFor::size}, threads)));
  EXPECT_LT(joined->bytes(), encode(w.view).bytes());
}

TEST(TcaBmeRecord, OffsetsFit16Bits) {
  EXPECT_EQ(kSingle4.max_record_bytes(), 4 * (192 + 2048));
  EXPECT_EQ(kSingle8.max_record_bytes(), 8 * (192 + 2048));
  EXPECT_EQ(kPair8.max_record_bytes(), 8 * (128 + 2048));
}

TEST(TcaBmeRecord, StartsHoldLessThan64GiB) {
  const int64_t rows = int64_t{1} << 17;
  EXPECT_TRUE(tca_bme::starts_hold_any(rows, rows));
  EXPECT_TRUE(tca_bme::starts_hold(rows, rows, rows * rows));
  EXPECT_FALSE(tca_bme::starts_hold_any(2 * rows, rows));
  EXPECT_FALSE(tca_bme::starts_hold(2 * rows, rows, 2 * rows * rows));
  EXPECT_TRUE(tca_bme::starts_hold(2 * rows, rows, rows * rows / 2));
  const int64_t records = record_grid(2 * rows, rows, kSingle4).count();
  const int64_t most = (int64_t{UINT32_MAX} * 16 - records * (kSingle4.header_bytes() + 15)) / 2;
  EXPECT_TRUE(tca_bme::starts_hold(2 * rows, rows, most));
  EXPECT_FALSE(tca_bme::starts_hold(2 * rows, rows, most + 1));
  const int64_t large = int64_t{1} << 31;
  for (const auto& [long_rows, long_columns] : {std::pair{large, int64_t{1}}, {1, large}}) {
    EXPECT_TRUE(tca_bme::starts_hold_any(long_rows, long_columns));
    EXPECT_TRUE(tca_bme::starts_hold(long_rows, long_columns, large));
    EXPECT_TRUE(tca_bme::starts_hold(long_rows, long_columns, 0));
  }
  EXPECT_FALSE(tca_bme::starts_hold_any(large, large));
  EXPECT_FALSE(tca_bme::starts_hold(large, large, large * large));
  EXPECT_FALSE(tca_bme::starts_hold(large, large, 0));
  // The headers of single values are larger than those of pairs.
  const int64_t high = int64_t{64} * 50'000'000;
  EXPECT_TRUE(tca_bme::starts_hold(high, 128, 0, RecordsFor::speed));
  EXPECT_FALSE(tca_bme::starts_hold(high, 128, 0, RecordsFor::size));
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
  for (const auto& [layout, density, goal] : kLayouts) {
    const OwnedTensor wide =
        make_weight({.dtype = DType::bf16, .rows = 600, .columns = 710, .density = density}, 84);
    const Tensor strided = wide.view.rows(3, 590).columns(7, 700);
    const OwnedTensor w = testing::copy_of(strided);
    const EncodedWeight expected = encode(w.view, goal);
    format().validate(expected);
    for (int count : {1, 2, 3}) {
      ThreadPool threads(count);
      const LayoutOptions options{.layout = std::string(goal)};
      EXPECT_TRUE(same_encoding(format().encode(w.view, options, threads), expected)) << count;
      EXPECT_TRUE(same_encoding(format().encode(strided, options, threads), expected)) << count;
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
    format()
        .load(testing::copy_of(*e), {.threads = cpu.threads})
        ->expand({0, 70}, dense.view(), cpu.exec);
    EXPECT_TRUE(same_matrix(dense.view(), w.view));
  }
}

// -------------------------------------------------------------------------------- slice and join

TEST(TcaBmeRecord, PartsOfWholeRecordsAreJoinedByCopies) {
  const auto uploads_of = [](std::span<EncodedWeight> encoded) {
    std::vector<WeightPart> parts;
    for (EncodedWeight& e : encoded) {
      parts.push_back({.weight = &e});
    }
    return record_uploads<tca_bme::RecordChecker>(parts);
  };
  for (const auto& [layout, density, goal] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 600, .columns = 710, .density = density}, 86);
    const EncodedWeight whole = encode(w.view, goal);
    const auto encode_rows = [&](const std::vector<int64_t>& counts) {
      std::vector<EncodedWeight> parts;
      int64_t row = 0;
      for (int64_t count : counts) {
        parts.push_back(encode(w.view.rows(row, count), goal));
        row += count;
      }
      return parts;
    };
    for (const std::vector<int64_t>& counts :
         std::vector<std::vector<int64_t>>{{600}, {64, 536}, {128, 192, 280}}) {
      std::vector<EncodedWeight> parts = encode_rows(counts);
      const tca_bme::RecordUploads uploads = uploads_of(parts);
      EXPECT_TRUE(tca_bme::can_be_joined(uploads));
      EXPECT_EQ(joined_starts(uploads), part_values<uint32_t>(whole, kStarts));
    }
    for (const std::vector<int64_t>& counts :
         std::vector<std::vector<int64_t>>{{100, 500}, {64, 65, 471}}) {
      std::vector<EncodedWeight> parts = encode_rows(counts);
      EXPECT_FALSE(tca_bme::can_be_joined(uploads_of(parts)));
    }
  }
  std::vector<EncodedWeight> unlike;
  for (const auto& [layout, density, goal] : kLayouts) {
    unlike.push_back(encode(
        make_weight({.dtype = DType::f16, .rows = 64, .columns = 710, .density = density}, 87).view,
        goal));
  }
  EXPECT_FALSE(tca_bme::can_be_joined(uploads_of(unlike)));
}

TEST(TcaBmeRecord, SlicesAtBordersWithoutDecoding) {
  for (const auto& [layout, density, goal] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 1100, .columns = 600, .density = density}, 92);
    const EncodedWeight e = encode(w.view, goal);
    for (const Range rows : {Range{0, 1100}, {0, 64}, {64, 512}, {128, 972}, {1088, 12}}) {
      const std::optional<EncodedWeight> sliced = format().slice(e, Axis::rows, rows);
      ASSERT_TRUE(sliced.has_value()) << rows.begin << " " << rows.count;
      format().validate(*sliced);
      EXPECT_TRUE(same_encoding(*sliced, encode(w.view.rows(rows.begin, rows.count), goal)));
    }
    for (const Range columns : {Range{0, 600}, {0, 128}, {128, 256}, {256, 344}, {512, 88}}) {
      const std::optional<EncodedWeight> sliced = format().slice(e, Axis::columns, columns);
      ASSERT_TRUE(sliced.has_value()) << columns.begin << " " << columns.count;
      format().validate(*sliced);
      EXPECT_TRUE(
          same_encoding(*sliced, encode(w.view.columns(columns.begin, columns.count), goal)));
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
  for (const Range rows : {Range{0, 512}, {512, 512}}) {  // alone, they would have another
    const std::optional<EncodedWeight> sliced = format().slice(e, Axis::rows, rows);
    ASSERT_TRUE(sliced.has_value());
    ASSERT_NO_THROW(format().validate(*sliced));
    EXPECT_EQ(read_record_layout(*sliced), kSingle8);
    ThreadPool threads(1);
    EXPECT_TRUE(
        same_matrix(format().decode(*sliced, threads).view, w.view.rows(rows.begin, rows.count)));
  }
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
  for (const auto& [layout, density, goal] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::bf16, .rows = 1100, .columns = 100, .density = density}, 96);
    for (const Case& c : cases) {
      std::vector<EncodedWeight> parts;
      std::vector<const EncodedWeight*> pointers;
      int64_t row = 0;
      parts.reserve(c.rows.size());
      for (int64_t rows : c.rows) {
        parts.push_back(encode(w.view.rows(row, rows), goal));
        pointers.push_back(&parts.back());
        row += rows;
      }
      const std::optional<EncodedWeight> joined = format().concat_rows(pointers);
      ASSERT_EQ(joined.has_value(), c.joins) << c.rows.front() << " at " << density;
      if (joined) {
        format().validate(*joined);
        EXPECT_TRUE(same_encoding(*joined, encode(w.view, goal))) << c.rows.front();
      }
    }
    const EncodedWeight none = encode(w.view.rows(0, 0), goal);
    const EncodedWeight* const nothing[] = {&none, &none};
    const std::optional<EncodedWeight> joined = format().concat_rows(nothing);
    ASSERT_TRUE(joined.has_value());
    EXPECT_TRUE(same_encoding(*joined, none));
  }
}

}  // namespace
}  // namespace sparsellm
