// Version 1 of tca_bme, and what both versions share.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/upload.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/tca_bme.h"
#include "sparse/tca_bme/v1/paper_layout.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tca_bme::kBitmaps;
using tca_bme::kOffsets;
using tca_bme::kValues;

const WeightFormat& format() { return tca_bme_format(); }

struct Element {
  int64_t row;
  int64_t column;
  uint16_t bits;
};
OwnedTensor weight_with(int64_t rows, int64_t columns, const std::vector<Element>& elements) {
  OwnedTensor w = make_weight({.dtype = DType::f16, .rows = rows, .columns = columns}, 0);
  for (const Element& element : elements) {
    w.view.row<Half>(element.row)[element.column].bits = element.bits;
  }
  return w;
}

EncodedWeight encode(const Tensor& w) {
  ThreadPool threads(1);
  return tca_bme::encode_paper(w, threads);
}

// 7 nonzeros in the first GroupTile, one in the second, one in the last of 2 x 3.
OwnedTensor hand_written() {
  return weight_with(70, 130,
                     {{0, 0, 1},
                      {8, 0, 2},
                      {0, 8, 3},
                      {9, 15, 4},
                      {0, 16, 5},
                      {16, 0, 6},
                      {63, 63, 7},
                      {3, 64, 8},
                      {69, 129, 9}});
}

template <class T>
std::vector<T> part_values(const EncodedWeight& e, std::string_view name) {
  const std::span<const T> values = e.part(name).values<T>();
  return {values.begin(), values.end()};
}

TEST(TcaBme, IsRegistered) { EXPECT_EQ(&weight_format("tca_bme"), &format()); }

TEST(TcaBme, LaysTilesOutAsThePaper) {
  const OwnedTensor w = hand_written();
  const EncodedWeight e = encode(w.view);
  EXPECT_EQ(e.format, "tca_bme");
  EXPECT_EQ(e.version, 1);
  EXPECT_EQ(e.dtype, DType::f16);
  EXPECT_EQ(e.rows, 70);
  EXPECT_EQ(e.columns, 130);
  EXPECT_EQ(e.nonzeros, 9);
  EXPECT_EQ(part_values<uint32_t>(e, kOffsets), (std::vector<uint32_t>{0, 8, 16, 16, 16, 16, 24}));
  std::vector<uint64_t> bitmaps(6 * 64);
  bitmaps[0] = 1;                       // (0, 0)
  bitmaps[1] = 1;                       // (8, 0): the 8 x 8 tiles of a 16 x 16 tile go down first
  bitmaps[2] = 1;                       // (0, 8)
  bitmaps[3] = uint64_t{1} << 15;       // (9, 15): row 1, column 7
  bitmaps[4] = 1;                       // (0, 16): the 16 x 16 tiles go to the right first
  bitmaps[16] = 1;                      // (16, 0)
  bitmaps[63] = uint64_t{1} << 63;      // (63, 63)
  bitmaps[64] = uint64_t{1} << 24;      // (3, 64)
  bitmaps[5 * 64] = uint64_t{1} << 41;  // (69, 129): the 64 x 64 tiles go to the right first
  EXPECT_EQ(part_values<uint64_t>(e, kBitmaps), bitmaps);
  EXPECT_EQ(part_values<uint16_t>(e, kValues), (std::vector<uint16_t>{1, 2, 3, 4, 5, 6, 7, 0,  //
                                                                      8, 0, 0, 0, 0, 0, 0, 0,  //
                                                                      9, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(e.part(kOffsets).dtype, DType::u32);
  EXPECT_EQ(e.part(kBitmaps).dtype, DType::u64);
  EXPECT_EQ(e.part(kValues).dtype, DType::f16);
}

TEST(TcaBme, CountsBytesAsThePaper) {
  const OwnedTensor w = hand_written();
  const EncodedWeight e = encode(w.view);
  EXPECT_EQ(format().formula_bytes(e), 4 * 7 + 8 * 384 + 2 * 9);
  EXPECT_EQ(e.bytes(), format().formula_bytes(e) + 2 * (1 + 7 + 7));
}

TEST(TcaBme, CompressesAsThePaperSays) {
  struct Bar {
    double density;
    double compression;
  };
  ThreadPool threads(2);
  for (const Bar& bar : {Bar{0.5, 1.76}, Bar{0.4, 2.13}, Bar{0.3, 2.70}}) {
    const OwnedTensor w = make_weight(
        {.dtype = DType::bf16, .rows = 4096, .columns = 4096, .density = bar.density}, 61);
    const EncodedWeight e = tca_bme::encode_paper(w.view, threads);
    EXPECT_GE(static_cast<double>(w.view.bytes()) / static_cast<double>(e.bytes()), bar.compression)
        << bar.density;
  }
}

TEST(TcaBme, EmptyMatrices) {
  for (const auto& [rows, columns] : {std::pair{0, 0}, {0, 70}, {70, 0}}) {
    const OwnedTensor w = make_weight({.dtype = DType::f16, .rows = rows, .columns = columns}, 0);
    const EncodedWeight e = encode(w.view);
    format().validate(e);
    EXPECT_EQ(e.bytes(), 4);
    EXPECT_EQ(format().formula_bytes(e), 4);
    ThreadPool threads(1);
    EXPECT_TRUE(same_matrix(format().decode(e, threads).view, w.view));
  }
}

TEST(TcaBme, KeepsEveryValueBitByBitButNegativeZero) {
  for (DType dtype : {DType::f16, DType::bf16}) {
    const OwnedTensor w = make_weight({.dtype = dtype, .rows = 256, .columns = 256}, 0);
    auto* const bits = static_cast<uint16_t*>(w.view.raw());
    for (int i = 0; i < 0x10000; ++i) {
      bits[i] = static_cast<uint16_t>(i);
    }
    const EncodedWeight e = encode(w.view);
    format().validate(e);
    EXPECT_EQ(e.nonzeros, 0x10000 - 2);
    ThreadPool threads(2);
    bits[0x8000] = 0;
    EXPECT_TRUE(same_matrix(format().decode(e, threads).view, w.view));
  }
}

TEST(TcaBme, SaysWhyNot) {
  const OwnedTensor f32 = allocate_tensor({}, DType::f32, {2, 3}, "a test");
  std::fill_n(f32.view.data<float>(), 6, 1.0f);
  EXPECT_EQ(format().why_not(f32.view), "tca_bme holds f16 and bf16 values, not f32");
  EXPECT_TRUE(throws_error(
      [&] {
        ThreadPool threads(1);
        format().encode(f32.view, threads);
      },
      "not f32"));
  EXPECT_EQ(format().why_not(hand_written().view), "");
}

TEST(TcaBme, OffsetsHoldLessThan32BitsOfValues) {
  const int64_t most = int64_t{UINT32_MAX};
  EXPECT_TRUE(tca_bme::offsets_hold(most - 7, 1));
  EXPECT_FALSE(tca_bme::offsets_hold(most - 6, 1));
  EXPECT_TRUE(tca_bme::offsets_hold(most - 7000, 1000));
  EXPECT_FALSE(tca_bme::offsets_hold(most - 6999, 1000));
}

TEST(TcaBme, TheSameBytesForAnyNumberOfThreadsAndAnyStride) {
  for (DType dtype : {DType::f16, DType::bf16}) {
    const OwnedTensor wide =
        make_weight({.dtype = dtype, .rows = 500, .columns = 710, .density = 0.4}, 62);
    const Tensor strided = wide.view.rows(3, 490).columns(7, 700);
    const OwnedTensor w = testing::copy_of(strided);
    const EncodedWeight expected = encode(w.view);
    format().validate(expected);
    for (int count : {1, 2, 3}) {
      ThreadPool threads(count);
      EXPECT_TRUE(same_encoding(tca_bme::encode_paper(w.view, threads), expected)) << count;
      EXPECT_TRUE(same_encoding(tca_bme::encode_paper(strided, threads), expected)) << count;
      EXPECT_TRUE(same_matrix(format().decode(expected, threads).view, w.view)) << count;
    }
  }
}

// ---------------------------------------------------------------------------------------- damage

template <class T>
T& at(EncodedWeight& e, std::string_view name, int64_t index) {
  for (EncodedPart& part : e.parts) {
    if (part.name == name) {
      return static_cast<T*>(part.memory.data())[index];
    }
  }
  fail("no part {}", name);
}
EncodedPart& part(EncodedWeight& e, std::string_view name) {
  return *std::ranges::find(e.parts, name, &EncodedPart::name);
}

struct Damage {
  std::string message;
  std::function<void(EncodedWeight&)> apply;
};

TEST(TcaBmeDamage, EachFieldIsChecked) {
  using E = EncodedWeight;
  const Damage cases[] = {
      {"format dense", [](E& e) { e.format = "dense"; }},
      {"version 0", [](E& e) { e.version = 0; }},
      {"no part layout", [](E& e) { e.version = 3; }},
      {"version 4", [](E& e) { e.version = 4; }},
      {"no part layout", [](E& e) { e.version = 2; }},
      {"f32 values", [](E& e) { e.dtype = DType::f32; }},
      {"i32 values", [](E& e) { e.dtype = DType::i32; }},
      {"values", [](E& e) { e.dtype = DType::bf16; }},
      {"-1 x 130", [](E& e) { e.rows = -1; }},
      {"70 x -1", [](E& e) { e.columns = -1; }},
      {"does not fit", [](E& e) { e.rows = INT64_MAX; }},
      {"gtile_offsets", [](E& e) { e.rows = 129; }},
      {"gtile_offsets", [](E& e) { e.rows = 64; }},
      {"outside of the matrix", [](E& e) { e.rows = 69; }},
      {"outside of the matrix", [](E& e) { e.columns = 129; }},
      {"gtile_offsets", [](E& e) { e.columns = 0, e.nonzeros = 0; }},
      {"outside of the matrix", [](E& e) { e.rows = 130, e.columns = 70; }},
      {"8 nonzeros", [](E& e) { e.nonzeros = 8; }},
      {"10 nonzeros", [](E& e) { e.nonzeros = 10; }},
      {"-1 nonzeros", [](E& e) { e.nonzeros = -1; }},
      {"9101 nonzeros", [](E& e) { e.nonzeros = 70 * 130 + 1; }},

      {"no part gtile_offsets", [](E& e) { e.parts.erase(e.parts.begin()); }},
      {"no part bitmaps", [](E& e) { e.parts.erase(e.parts.begin() + 1); }},
      {"no part values", [](E& e) { e.parts.pop_back(); }},
      {"4 parts", [](E& e) { e.parts.emplace_back().name = "more"; }},
      {"no part bitmaps", [](E& e) { part(e, kBitmaps).name = "bitmap"; }},
      {"is F32, not U32", [](E& e) { part(e, kOffsets).dtype = DType::f32; }},
      {"is U32, not U64", [](E& e) { part(e, kBitmaps).dtype = DType::u32; }},
      {"is BF16, not F16", [](E& e) { part(e, kValues).dtype = DType::bf16; }},
      {"gtile_offsets", [](E& e) { part(e, kOffsets).bytes = {}; }},
      {"27 bytes", [](E& e) { part(e, kOffsets).bytes = part(e, kOffsets).bytes.first(27); }},
      {"3064 bytes", [](E& e) { part(e, kBitmaps).bytes = part(e, kBitmaps).bytes.first(3064); }},
      {"47 bytes", [](E& e) { part(e, kValues).bytes = part(e, kValues).bytes.first(47); }},
      {"after 20 values", [](E& e) { part(e, kValues).bytes = part(e, kValues).bytes.first(40); }},
      {"after 0 values", [](E& e) { part(e, kValues).bytes = {}; }},
      {"not aligned",
       [](E& e) {
         EncodedPart& bitmaps = part(e, kBitmaps);
         const int64_t bytes = std::ssize(bitmaps.bytes);
         Buffer memory(Device{}, bytes + 4, "a test");
         std::memcpy(static_cast<std::byte*>(memory.data()) + 4, bitmaps.bytes.data(),
                     static_cast<size_t>(bytes));
         bitmaps.bytes = {static_cast<std::byte*>(memory.data()) + 4, static_cast<size_t>(bytes)};
         bitmaps.memory = std::move(memory);
       }},
      {"24 values, but the last offset is 16",
       [](E& e) {
         e.nonzeros = 8;
         at<uint64_t>(e, kBitmaps, 5 * 64) = 0;
         at<uint32_t>(e, kOffsets, 6) = 16;
       }},

      {"the first offset is 8", [](E& e) { at<uint32_t>(e, kOffsets, 0) = 8; }},
      {"GroupTile 0", [](E& e) { at<uint32_t>(e, kOffsets, 1) = 16; }},
      {"GroupTile 0", [](E& e) { at<uint32_t>(e, kOffsets, 1) = 7; }},
      {"GroupTile 1", [](E& e) { at<uint32_t>(e, kOffsets, 2) = 0; }},
      {"GroupTile 2", [](E& e) { at<uint32_t>(e, kOffsets, 3) = 8; }},
      {"GroupTile 5", [](E& e) { at<uint32_t>(e, kOffsets, 6) = UINT32_MAX; }},
      {"GroupTile 5", [](E& e) { at<uint32_t>(e, kOffsets, 6) = 16; }},

      {"padding of GroupTile 0", [](E& e) { at<uint64_t>(e, kBitmaps, 1) = 0; }},
      {"are 0", [](E& e) { at<uint64_t>(e, kBitmaps, 7) = 1; }},
      {"not those of 10 nonzeros", [](E& e) { at<uint64_t>(e, kBitmaps, 7) = 7; }},
      {"bitmap 0 of GroupTile 2 has bits outside",
       [](E& e) { at<uint64_t>(e, kBitmaps, 128) = 4; }},
      {"bitmap 4 of GroupTile 2 has bits outside",
       [](E& e) { at<uint64_t>(e, kBitmaps, 132) = 1; }},
      {"bitmap 1 of GroupTile 3 has bits outside",
       [](E& e) { at<uint64_t>(e, kBitmaps, 193) = 1; }},
      {"bitmap 0 of GroupTile 3 has bits outside",
       [](E& e) { at<uint64_t>(e, kBitmaps, 192) = uint64_t{1} << 48; }},

      {"1 nonzeros of GroupTile 0 are 0", [](E& e) { at<uint16_t>(e, kValues, 6) = 0; }},
      {"1 nonzeros of GroupTile 5 are 0", [](E& e) { at<uint16_t>(e, kValues, 16) = 0x8000; }},
      {"padding of GroupTile 0", [](E& e) { at<uint16_t>(e, kValues, 7) = 1; }},
      {"padding of GroupTile 1", [](E& e) { at<uint16_t>(e, kValues, 15) = 0x8000; }},
  };
  const OwnedTensor w = hand_written();
  const EncodedWeight good = encode(w.view);
  for (const Damage& damage : cases) {
    EncodedWeight e = testing::copy_of(good);
    ASSERT_NO_THROW(format().validate(e));
    damage.apply(e);
    EXPECT_TRUE(throws_error([&] { format().validate(e); }, damage.message)) << damage.message;
  }
}

// What validate() lets pass is an encoding: one that encode_paper() makes of what it decodes to.
void use_if_valid(const EncodedWeight& e) {
  try {
    format().validate(e);
  } catch (const Error&) {
    return;
  }
  CpuContext cpu;
  const OwnedTensor w = format().decode(e, cpu.threads);
  EXPECT_TRUE(same_encoding(encode(w.view), e));
  const GuardedTensor x = Random(63).tensor(DType::f32, {2, e.columns});
  const GuardedTensor y(DType::f32, {2, e.rows});
  format()
      .load(testing::copy_of(e), {.threads = cpu.threads})
      ->matmul(x.view(), y.view(), {}, cpu.exec);
  EXPECT_TRUE(y.guards_intact());
}

TEST(TcaBmeDamage, AnyByteIsAnErrorOrStaysInBounds) {
  for (int64_t rows : {9, 64, 66}) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = rows, .columns = 11, .density = 0.3}, 64);
    const EncodedWeight good = encode(w.view);
    for (size_t p = 0; p < good.parts.size(); ++p) {
      for (size_t i = 0; i < good.parts[p].bytes.size(); ++i) {
        for (unsigned flip : {0x01u, 0x08u, 0x80u, 0xffu}) {
          EncodedWeight e = testing::copy_of(good);
          static_cast<std::byte*>(e.parts[p].memory.data())[i] ^= std::byte(flip);
          use_if_valid(e);
        }
      }
    }
  }
}

TEST(TcaBmeDamage, ManyBytesAtOnce) {
  const OwnedTensor w =
      make_weight({.dtype = DType::bf16, .rows = 70, .columns = 67, .density = 0.5}, 65);
  const EncodedWeight good = encode(w.view);
  Random random(66);
  for (int round = 0; round < 2000; ++round) {
    use_if_valid(damaged_copy_of(good, random));
  }
}

TEST(TcaBmeDamage, HeadersOfAnySizeAreErrorsOrStayInBounds) {
  const OwnedTensor w = hand_written();
  const EncodedWeight good = encode(w.view);
  constexpr int64_t kSizes[] = {0,
                                1,
                                63,
                                64,
                                65,
                                128,
                                70,
                                130,
                                int64_t{1} << 31,
                                int64_t{1} << 32,
                                int64_t{1} << 60,
                                -1,
                                INT64_MAX - 1,
                                INT64_MAX,
                                INT64_MIN};
  for (int64_t rows : kSizes) {
    for (int64_t columns : kSizes) {
      EncodedWeight e = testing::copy_of(good);
      e.rows = rows;
      e.columns = columns;
      use_if_valid(e);
    }
  }
}

// -------------------------------------------------------------------------------- slice and join

TEST(TcaBme, SlicesAtGroupBordersWithoutDecoding) {
  const OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = 200, .columns = 300, .density = 0.4}, 67);
  const EncodedWeight e = encode(w.view);
  for (const Range rows : {Range{0, 200}, {0, 64}, {64, 128}, {128, 72}, {192, 8}, {64, 0}}) {
    const std::optional<EncodedWeight> sliced = format().slice(e, Axis::rows, rows);
    ASSERT_TRUE(sliced.has_value()) << rows.begin;
    format().validate(*sliced);
    EXPECT_TRUE(same_encoding(*sliced, encode(w.view.rows(rows.begin, rows.count)))) << rows.begin;
  }
  for (const Range columns : {Range{0, 300}, {0, 64}, {64, 192}, {128, 172}, {256, 44}, {64, 0}}) {
    const std::optional<EncodedWeight> sliced = format().slice(e, Axis::columns, columns);
    ASSERT_TRUE(sliced.has_value()) << columns.begin;
    format().validate(*sliced);
    EXPECT_TRUE(same_encoding(*sliced, encode(w.view.columns(columns.begin, columns.count))))
        << columns.begin;
  }
}

TEST(TcaBme, SlicesNowhereElse) {
  const OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = 200, .columns = 200, .density = 0.4}, 68);
  const EncodedWeight e = encode(w.view);
  for (Axis axis : {Axis::rows, Axis::columns}) {
    for (const Range range : {Range{0, 63}, {0, 199}, {1, 63}, {32, 168}, {64, 1}, {200, 0}}) {
      EXPECT_FALSE(format().slice(e, axis, range).has_value()) << range.begin << " " << range.count;
    }
  }
}

TEST(TcaBme, JoinsWholeRowsOfGroupTilesWithoutDecoding) {
  const OwnedTensor w =
      make_weight({.dtype = DType::bf16, .rows = 210, .columns = 100, .density = 0.4}, 69);
  struct Case {
    std::vector<int64_t> rows;
    bool joins;
  };
  const Case cases[] = {{{210}, true},           {{64, 146}, true},    {{128, 64, 18}, true},
                        {{0, 64, 0, 146}, true}, {{63, 147}, false},   {{64, 18, 128}, false},
                        {{65, 145}, false},      {{64, 146, 0}, false}};
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
    ASSERT_EQ(joined.has_value(), c.joins) << c.rows.front();
    if (joined) {
      format().validate(*joined);
      EXPECT_TRUE(same_encoding(*joined, encode(w.view))) << c.rows.front();
    }
  }
}

TEST(TcaBme, ExpectsTheBytesOfRandomWeights) {
  ThreadPool threads(2);
  for (double density : {0.0, 0.05, 0.1, 0.3, 0.4, 0.5, 1.0}) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 1000, .columns = 700, .density = density}, 7);
    EncodedWeight e = format().encode(w.view, threads);
    const auto bytes = static_cast<double>(e.bytes());
    e.parts.clear();
    EXPECT_NEAR(static_cast<double>(format().expected_bytes(e)), bytes, 0.01 * bytes) << density;
  }
}

TEST(TcaBme, IsRefusedForADeviceThatIsNotThere) {
  const OwnedTensor w = hand_written();
  const Device none{.kind = Device::Kind::cuda, .index = cuda_device_count()};
  const auto load = [&] {
    ThreadPool threads(1);
    Uploader uploads(none);
    format().load(
        encode(w.view),
        {.device = none, .compute = w.view.dtype(), .threads = threads, .uploads = &uploads});
  };
  EXPECT_THROW(load(), Error);
}

}  // namespace
}  // namespace sparsellm
