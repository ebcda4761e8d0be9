// Version 2 of tca_bme: what is refused of records, and what the others keep to.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/tca_bme.h"
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
      {"8 bytes of U32, not 12", [](E& e) { e.version = 3; }},
      {"version 4", [](E& e) { e.version = 4; }},
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
      {"is F32, not U32", [](E& e) { part(e, kStarts).dtype = DType::f32; }},
      {"is U16, not U8", [](E& e) { part(e, kRecords).dtype = DType::u16; }},
      {"8 bytes of F32", [](E& e) { part(e, kLayout).dtype = DType::f32; }},
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
      {"fewer than any",
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

// The first element of a lane's word is the first one outside.
TEST(TcaBmeRecordDamage, ElementsJustOutside) {
  using E = EncodedWeight;
  for (const auto& [row, column] : {std::pair{80, 0}, {72, 5}, {3, 66}, {5, 80}}) {
    SCOPED_TRACE(::testing::Message() << row << ", " << column);
    const OwnedTensor w = make_weight(
        {.dtype = DType::f16, .rows = std::max(row + 1, 70), .columns = std::max(column + 1, 67)},
        0);
    w.view.row<Half>(row)[column].bits = 1;
    std::vector<Damage> cases;
    if (row + 1 > 70) {
      cases.push_back({"outside of the matrix", [row = row](E& e) { e.rows = row; }});
    }
    if (column + 1 >= 67) {
      cases.push_back({"outside of the matrix", [column = column](E& e) { e.columns = column; }});
    }
    expect_errors(encode(w.view), cases);
  }
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
  for (const auto& [layout, density, goal] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 70, .columns = 130, .density = density}, 87);
    EncodedWeight e = encode(w.view, goal);
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
    ASSERT_LE(std::ssize(record), layout.max_record_bytes());
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
  const tca_bme::RecordsFor goal = tca_bme::goal_of(e);
  if (read_record_layout(e) == record_layout_for(e.rows * e.columns, e.nonzeros, goal)) {
    EXPECT_TRUE(same_encoding(encode(w.view, name_of(goal)), e));
  }
  const GuardedTensor x = Random(88).tensor(DType::f32, {2, e.columns});
  const GuardedTensor y(DType::f32, {2, e.rows});
  format()
      .load(testing::copy_of(e), {.threads = cpu.threads})
      ->matmul(x.view(), y.view(), {}, cpu.exec);
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
  for (const auto& [layout, density, goal] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 200, .columns = 411, .density = density}, 98);
    EncodedWeight e = encode(w.view, goal);
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
  for (const auto& [layout, density, goal] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 66, .columns = 11, .density = density}, 89);
    const EncodedWeight good = encode(w.view, goal);
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
  for (const auto& [layout, density, goal] : kLayouts) {
    const OwnedTensor w =
        make_weight({.dtype = DType::bf16, .rows = 70, .columns = 67, .density = density}, 91);
    const EncodedWeight good = encode(w.view, goal);
    for (int round = 0; round < 1000; ++round) {
      use_if_valid(damaged_copy_of(good, random));
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

}  // namespace
}  // namespace sparsellm
