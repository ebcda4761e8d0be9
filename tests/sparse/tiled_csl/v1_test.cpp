// Version 1 of tiled_csl, the paper's.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "sparse/registry.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "sparse/tiled_csl/v1/paper_parts.h"
#include "sparse/tiled_csl/v1/paper_tile_encoder.h"
#include "tests/sparse/encodings.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using namespace tiled_csl;

const WeightFormat& format() { return tiled_csl_format(); }

// What every test of one thread uses.
class TiledCslPaper : public ::testing::Test {
 protected:
  EncodedWeight encode(const Tensor& w) { return encode_paper(w, one_); }
  OwnedTensor decode(const EncodedWeight& e) { return format().decode(e, one_); }

  ThreadPool one_{1};
};

// Values in [-1, 1), of which a share `sparsity` is zero at random places.
GuardedTensor random_weight(DType dtype, int64_t rows, int64_t columns, double sparsity,
                            uint64_t seed, Layout layout = Layout::contiguous) {
  Random random(seed);
  GuardedTensor w = random.tensor(dtype, {rows, columns}, layout);
  for (int64_t row = 0; row < rows; ++row) {
    auto* const bits = static_cast<uint16_t*>(w.view().raw()) + row * w.view().row_stride();
    for (int64_t column = 0; column < columns; ++column) {
      const bool zero = random.uniform(0.0, 1.0) < sparsity;
      bits[column] = zero || !is_nonzero(bits[column]) ? uint16_t{0} : bits[column];
    }
  }
  return w;
}

// Equal in everything that a file would hold.
::testing::AssertionResult same_encoding(const EncodedWeight& a, const EncodedWeight& b) {
  if (a.format != b.format || a.version != b.version || a.dtype != b.dtype || a.rows != b.rows ||
      a.columns != b.columns || a.nonzeros != b.nonzeros || a.parts.size() != b.parts.size()) {
    return ::testing::AssertionFailure()
           << a.rows << " x " << a.columns << " with " << a.nonzeros << " nonzeros, not " << b.rows
           << " x " << b.columns << " with " << b.nonzeros << ", or another header field";
  }
  for (size_t i = 0; i < a.parts.size(); ++i) {
    const EncodedPart& p = a.parts[i];
    const EncodedPart& q = b.parts[i];
    if (p.name != q.name || p.dtype != q.dtype || !std::ranges::equal(p.bytes, q.bytes)) {
      return ::testing::AssertionFailure() << "the part " << p.name << " differs";
    }
  }
  return ::testing::AssertionSuccess();
}

int64_t padding_words(const EncodedWeight& e) { return e.part(kWords).count() - e.nonzeros; }

// --- The layout -----------------------------------------------------------------------------

TEST(TiledCslPaperLayout, LocationsAreAPermutationOfTheTile) {
  std::set<uint32_t> locations;
  for (uint32_t row = 0; row < kTileRows; ++row) {
    for (uint32_t column = 0; column < kTileColumns; ++column) {
      const uint32_t location = location_of(row, column);
      EXPECT_LT(location, kTileElements);
      EXPECT_EQ(row_of(location), row);
      EXPECT_EQ(column_of(location), column);
      EXPECT_EQ(bank_of(location), location * 2 / 4 % 32);
      locations.insert(location);
    }
  }
  EXPECT_EQ(std::ssize(locations), kTileElements);
}

TEST(TiledCslPaperLayout, LdmatrixReadsEveryBankOnce) {
  for (uint32_t first_row = 0; first_row < kTileRows; first_row += 8) {
    for (uint32_t first_column = 0; first_column < kTileColumns; first_column += 8) {
      std::array<int, kBanks> reads{};
      for (uint32_t row = first_row; row < first_row + 8; ++row) {
        const uint32_t first = location_of(row, first_column);
        EXPECT_EQ(first % 8, 0u) << "a row of 16 bytes has to be aligned to them";
        for (uint32_t i = 0; i < 8; ++i) {
          EXPECT_EQ(location_of(row, first_column + i), first + i);
        }
        for (uint32_t i = 0; i < 8; i += 2) {
          ++reads[bank_of(first + i)];
        }
      }
      EXPECT_EQ(std::ranges::count(reads, 1), kBanks) << first_row << ", " << first_column;
    }
  }
}

TEST_F(TiledCslPaper, AMatrixOfTwoNonzeros) {
  GuardedTensor w(DType::f16, {130, 70});
  std::memset(w.view().raw(), 0, static_cast<size_t>(w.view().bytes()));
  w.view().row<Half>(9)[17] = {0x3c00};    // tile 0
  w.view().row<Half>(129)[65] = {0xc000};  // tile 3
  const EncodedWeight e = encode(w.view());
  format().validate(e);
  EXPECT_EQ(e.nonzeros, 2);
  const auto offsets = e.part("tile_offsets").values<uint32_t>();
  EXPECT_EQ(std::vector(offsets.begin(), offsets.end()), (std::vector<uint32_t>{0, 4, 4, 4, 8}));
  // Row 9 has its chunk 2 at 2 ^ 1, row 1 its chunk 0 at 1.
  const auto words = e.part("words").values<uint32_t>();
  EXPECT_EQ(std::vector(words.begin(), words.end()),
            (std::vector<uint32_t>{0x3c000000u | (9 * 64 + 3 * 8 + 1), 0, 0, 0,
                                   0xc0000000u | (1 * 64 + 1 * 8 + 1), 0, 0, 0}));
  EXPECT_EQ(format().formula_bytes(e), 4 * 5 + 4 * 2);
  EXPECT_EQ(e.bytes(), 4 * 5 + 4 * 8);
}

TEST_F(TiledCslPaper, PaddingIsAZeroAtTheLowestFreeLocation) {
  GuardedTensor w(DType::bf16, {128, 64});
  for (const int64_t zeros : {0, 1, 2, 3, 4}) {
    auto* const values = w.view().data<BFloat16>();
    std::fill_n(values, kTileElements, BFloat16{0x3f80});
    std::fill_n(values + 5 * 64 + 3, zeros, BFloat16{0});
    const EncodedWeight e = encode(w.view());
    format().validate(e);
    EXPECT_EQ(e.nonzeros, kTileElements - zeros);
    EXPECT_EQ(padding_words(e), zeros % 4);
    const auto words = e.part(kWords).values<uint32_t>();
    for (const uint32_t word : words.last(static_cast<size_t>(zeros % 4))) {
      EXPECT_EQ(word, 5u * 64 + (0 ^ 5) * 8 + 3);
    }
    EXPECT_TRUE(same_bits(decode(e).view, w.view()));
  }
}

// --- Encoding and decoding ------------------------------------------------------------------

struct Shape {
  int64_t rows;
  int64_t columns;
};
constexpr Shape kShapes[] = {{0, 0},    {0, 5},     {5, 0},    {1, 1},    {1, 300},
                             {300, 1},  {128, 64},  {127, 63}, {129, 65}, {257, 200},
                             {64, 129}, {384, 192}, {131, 67}, {7, 13},   {256, 1001}};

TEST_F(TiledCslPaper, DecodeReturnsTheMatrix) {
  uint64_t seed = 1;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const Shape& shape : kShapes) {
      for (const double sparsity : {0.0, 0.1, 0.5, 0.7, 0.98, 1.0}) {
        for (const Layout layout : {Layout::contiguous, Layout::strided}) {
          SCOPED_TRACE(fmt::format("{} [{}, {}] at {}, seed {}", name_of(dtype), shape.rows,
                                   shape.columns, sparsity, seed));
          const GuardedTensor w =
              random_weight(dtype, shape.rows, shape.columns, sparsity, seed++, layout);
          const EncodedWeight e = encode(w.view());
          ASSERT_NO_THROW(format().validate(e));
          EXPECT_TRUE(same_bits(decode(e).view, w.view()));
          const int64_t tiles = (shape.rows + 127) / 128 * ((shape.columns + 63) / 64);
          EXPECT_EQ(format().formula_bytes(e), 4 * (tiles + 1) + 4 * e.nonzeros);
          EXPECT_EQ(e.bytes() - format().formula_bytes(e), 4 * padding_words(e));
          EXPECT_LE(padding_words(e), 3 * tiles);
          EXPECT_TRUE(w.guards_intact());
        }
      }
    }
  }
}

TEST_F(TiledCslPaper, AllValuesKeepTheirBitsButNegativeZero) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    GuardedTensor w(dtype, {256, 256});
    auto* const bits = static_cast<uint16_t*>(w.view().raw());
    for (uint32_t i = 0; i < 65536; ++i) {
      bits[i] = static_cast<uint16_t>(i);
    }
    const EncodedWeight e = encode(w.view());
    format().validate(e);
    EXPECT_EQ(e.nonzeros, 65534);
    bits[0x8000] = 0;
    EXPECT_TRUE(same_bits(decode(e).view, w.view()));
  }
}

TEST_F(TiledCslPaper, TheNumberOfThreadsDoesNotMatter) {
  for (const Shape& shape : {Shape{1, 1}, Shape{1000, 515}, Shape{130, 4100}}) {
    const GuardedTensor w = random_weight(DType::f16, shape.rows, shape.columns, 0.6, 7);
    const EncodedWeight expected = encode(w.view());
    for (const int threads : {2, 3}) {
      ThreadPool pool(threads);
      EXPECT_TRUE(same_encoding(encode_paper(w.view(), pool), expected)) << threads;
      EXPECT_TRUE(same_bits(format().decode(expected, pool).view, w.view())) << threads;
    }
  }
}

TEST_F(TiledCslPaper, OffsetsCountAtMostThirtyTwoBits) {
  EXPECT_EQ(why_too_many(0), "");
  EXPECT_EQ(why_too_many(4294967295), "");
  EXPECT_NE(why_too_many(4294967296).find("4294967296 nonzeros"), std::string::npos);
  const GuardedTensor w = random_weight(DType::f16, 300, 170, 0.7, 2);
  EXPECT_EQ(count_words(w.view()), encode(w.view()).part(kWords).count());
}

// --- Order of the words ---------------------------------------------------------------------

// Of one store by a warp: a bank takes one of its 4-byte words at a time, whole or half.
int64_t wavefronts(std::span<const uint32_t> group) {
  std::array<std::set<uint32_t>, kBanks> bank_words;
  for (const uint32_t word : group) {
    const uint32_t shared_word = location_of_word(word) / 2;
    bank_words[shared_word % kBanks].insert(shared_word);
  }
  size_t most = 0;
  for (const std::set<uint32_t>& bank : bank_words) {
    most = std::max(most, bank.size());
  }
  return static_cast<int64_t>(most);
}

struct WavefrontsPerStore {
  double encoded = 0.0;
  double random = 0.0;  // if the words of each tile are shuffled
};
WavefrontsPerStore count_wavefronts(const EncodedWeight& e, uint64_t seed) {
  Random random(seed);
  const EncodedTiles tiles(e);
  int64_t stores = 0;
  int64_t encoded = 0;
  int64_t shuffled = 0;
  for (int64_t tile = 0; tile < tiles.grid().count(); ++tile) {
    const std::span<const uint32_t> words = tiles.words(tile, 1);
    std::vector<uint32_t> mixed;
    for (const int32_t i : random.permutation(static_cast<int32_t>(words.size()))) {
      mixed.push_back(words[static_cast<size_t>(i)]);
    }
    for (size_t first = 0; first < words.size(); first += kWarp) {
      const size_t count = std::min<size_t>(kWarp, words.size() - first);
      ++stores;
      encoded += wavefronts(words.subspan(first, count));
      shuffled += wavefronts(std::span<const uint32_t>(mixed).subspan(first, count));
    }
  }
  return {.encoded = static_cast<double>(encoded) / static_cast<double>(stores),
          .random = static_cast<double>(shuffled) / static_cast<double>(stores)};
}

TEST_F(TiledCslPaper, AWarpStoresInFewWavefronts) {
  const int64_t size = kSanitized ? 512 : 1024;
  struct Bar {
    double sparsity;
    double most;
  };
  for (const Bar& bar :
       {Bar{0.5, 1.02}, Bar{0.6, 1.02}, Bar{0.7, 1.05}, Bar{0.8, 1.18}, Bar{0.9, 1.35}}) {
    const EncodedWeight e = encode(random_weight(DType::f16, size, size, bar.sparsity, 3).view());
    const WavefrontsPerStore got = count_wavefronts(e, 4);
    RecordProperty(fmt::format("wavefronts_{:.0f}", bar.sparsity * 100),
                   fmt::format("{:.3f}, {:.3f} in random order", got.encoded, got.random));
    EXPECT_LE(got.encoded, bar.most) << bar.sparsity;
    EXPECT_GT(got.random, 3.0) << bar.sparsity;
  }
}

TEST_F(TiledCslPaper, ADenseTileIsStoredWithoutConflicts) {
  const EncodedWeight e = encode(random_weight(DType::f16, 256, 128, 0.0, 5).view());
  EXPECT_LE(count_wavefronts(e, 6).encoded, 1.01);
}

// A bucket is emptied from its last row on: the second group starts with 15 pairs and a single
// nonzero, and then there is no other one to end it with.
TEST_F(TiledCslPaper, APairLiesAcrossTheEndOfAGroupThatNothingElseFits) {
  GuardedTensor w(DType::f16, {128, 64});
  std::fill_n(w.view().data<Half>(), kTileElements, Half{0x3c00});
  w.view().row<Half>(127)[0] = {0};
  const EncodedWeight e = encode(w.view());
  format().validate(e);
  EXPECT_TRUE(same_bits(decode(e).view, w.view()));
  const auto words = e.part(kWords).values<uint32_t>();
  EXPECT_EQ(location_of_word(words[63]) + 1, location_of_word(words[64]));
}

TEST_F(TiledCslPaper, BytesAreThoseOfTheFormula) {
  const int64_t size = kSanitized ? 1024 : 4096;
  struct Bar {
    double sparsity;
    double compression;
  };
  for (const Bar& bar : {Bar{0.5, 0.99}, Bar{0.6, 1.24}, Bar{0.7, 1.65}}) {
    const GuardedTensor w = random_weight(DType::f16, size, size, bar.sparsity, 8);
    const EncodedWeight e = encode(w.view());
    const double compression =
        static_cast<double>(w.view().bytes()) / static_cast<double>(e.bytes());
    EXPECT_GE(compression, bar.compression) << bar.sparsity;
    const int64_t tiles = size / 128 * (size / 64);
    EXPECT_EQ(format().formula_bytes(e), 4 * (tiles + 1) + 4 * e.nonzeros);
    EXPECT_LE(e.bytes() - format().formula_bytes(e), 12 * tiles);
  }
}

// --- Slices ---------------------------------------------------------------------------------

struct Cut {
  Axis axis;
  Range range;
};

TEST_F(TiledCslPaper, SlicesAtTileBordersAreThoseOfTheMatrix) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const GuardedTensor w = random_weight(dtype, 600, 300, 0.6, 9);
    const EncodedWeight e = encode(w.view());
    for (const Cut& cut :
         {Cut{Axis::rows, {0, 600}}, Cut{Axis::rows, {0, 128}}, Cut{Axis::rows, {128, 256}},
          Cut{Axis::rows, {512, 88}}, Cut{Axis::rows, {384, 216}}, Cut{Axis::rows, {256, 0}},
          Cut{Axis::columns, {0, 300}}, Cut{Axis::columns, {0, 64}}, Cut{Axis::columns, {64, 128}},
          Cut{Axis::columns, {256, 44}}, Cut{Axis::columns, {128, 172}},
          Cut{Axis::columns, {64, 0}}}) {
      SCOPED_TRACE(fmt::format("{} from {}", cut.range.count, cut.range.begin));
      const std::optional<EncodedWeight> sliced = format().slice(e, cut.axis, cut.range);
      ASSERT_TRUE(sliced);
      ASSERT_NO_THROW(format().validate(*sliced));
      const Tensor part = cut.axis == Axis::rows
                              ? w.view().rows(cut.range.begin, cut.range.count)
                              : w.view().columns(cut.range.begin, cut.range.count);
      EXPECT_TRUE(same_encoding(*sliced, encode(part)));
    }
  }
}

TEST_F(TiledCslPaper, OtherSlicesAreLeftToTheCaller) {
  const GuardedTensor w = random_weight(DType::f16, 600, 300, 0.6, 10);
  const EncodedWeight e = encode(w.view());
  for (const Cut& cut :
       {Cut{Axis::rows, {1, 127}}, Cut{Axis::rows, {0, 64}}, Cut{Axis::rows, {128, 127}},
        Cut{Axis::rows, {64, 536}}, Cut{Axis::columns, {0, 32}}, Cut{Axis::columns, {32, 64}},
        Cut{Axis::columns, {63, 237}}, Cut{Axis::columns, {256, 43}}, Cut{Axis::rows, {0, 640}},
        Cut{Axis::rows, {-128, 256}}, Cut{Axis::columns, {128, -64}},
        Cut{Axis::columns, {320, 0}}}) {
    EXPECT_FALSE(format().slice(e, cut.axis, cut.range))
        << cut.range.count << " from " << cut.range.begin;
  }
  // sparse/format.h decodes and encodes for those inside of the matrix.
  const EncodedWeight odd = slice(e, Axis::columns, {.begin = 32, .count = 65}, one_);
  EXPECT_TRUE(same_encoding(odd, format().encode(w.view().columns(32, 65), one_)));
}

TEST_F(TiledCslPaper, PartsOfWholeTilesAreJoined) {
  const GuardedTensor w = random_weight(DType::bf16, 700, 90, 0.7, 11);
  const EncodedWeight whole = encode(w.view());
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{700}, {128, 572}, {256, 384, 60}, {0, 640, 0, 60}, {640, 60, 0}}) {
    std::vector<EncodedWeight> parts;
    std::vector<const EncodedWeight*> pointers;
    int64_t first = 0;
    for (const int64_t count : rows) {
      parts.push_back(encode(w.view().rows(first, count)));
      first += count;
    }
    pointers.reserve(parts.size());
    for (const EncodedWeight& part : parts) {
      pointers.push_back(&part);
    }
    const std::optional<EncodedWeight> joined = format().concat_rows(pointers);
    const bool ends_in_empty = rows.size() > 1 && rows.back() == 0;
    ASSERT_EQ(joined.has_value(), !ends_in_empty);
    if (joined) {
      ASSERT_NO_THROW(format().validate(*joined));
      EXPECT_TRUE(same_encoding(*joined, whole));
    }
    const EncodedWeight any = concat_rows(pointers, one_);
    EXPECT_TRUE(same_bits(decode(any).view, w.view()));
  }
}

TEST_F(TiledCslPaper, OtherPartsAreLeftToTheCaller) {
  const EncodedWeight a = encode(random_weight(DType::f16, 128, 64, 0.5, 12).view());
  const EncodedWeight odd = encode(random_weight(DType::f16, 127, 64, 0.5, 13).view());
  const EncodedWeight narrow = encode(random_weight(DType::f16, 128, 63, 0.5, 14).view());
  const EncodedWeight other = encode(random_weight(DType::bf16, 128, 64, 0.5, 15).view());
  const EncodedWeight dense =
      weight_format("dense").encode(random_weight(DType::f16, 128, 64, 0.5, 16).view(), one_);
  using Parts = std::vector<const EncodedWeight*>;
  EXPECT_FALSE(format().concat_rows({}));
  EXPECT_FALSE(format().concat_rows(Parts{&odd, &a}));
  EXPECT_FALSE(format().concat_rows(Parts{&a, &narrow}));
  EXPECT_FALSE(format().concat_rows(Parts{&a, &other}));
  EXPECT_FALSE(format().concat_rows(Parts{&a, &dense}));
  EXPECT_TRUE(format().concat_rows(Parts{&a, &odd}));
}

// --- Damaged encodings ----------------------------------------------------------------------

std::span<uint32_t> writable(EncodedWeight& e, std::string_view name) {
  const EncodedPart& part = e.part(name);
  return {static_cast<uint32_t*>(part.memory.data()), static_cast<size_t>(part.count())};
}

// Of 200 x 100 elements, 2 x 2 tiles; the last word of tile 0 is padding, and none is in tile 1.
class DamagedTiledCslPaper : public TiledCslPaper {
 protected:
  DamagedTiledCslPaper() {
    for (uint64_t seed = 1;; ++seed) {
      e_ = encode(random_weight(DType::f16, 200, 100, 0.8, seed).view());
      const EncodedTiles tiles(e_);
      if (tiles.words(0, 1).size() == tiles.nonzeros(0).size() + 1 &&
          tiles.words(1, 1).size() == tiles.nonzeros(1).size()) {
        break;
      }
    }
    format().validate(e_);
  }

  // Whether the encoding is refused with such a message after the change.
  ::testing::AssertionResult refused(const std::function<void(EncodedWeight&)>& damage,
                                     std::string_view message) {
    EncodedWeight e = copy_of(e_);
    damage(e);
    return throws_error([&] { format().validate(e); }, message);
  }
  ::testing::AssertionResult refused_offset(size_t index, uint32_t value,
                                            std::string_view message) {
    return refused([&](EncodedWeight& e) { writable(e, kTileOffsets)[index] = value; }, message);
  }
  ::testing::AssertionResult refused_word(size_t index, uint32_t value, std::string_view message) {
    return refused([&](EncodedWeight& e) { writable(e, kWords)[index] = value; }, message);
  }

  // Views without the last bytes.
  static void shorten(EncodedWeight& e, size_t part, size_t bytes) {
    e.parts[part].bytes = e.parts[part].bytes.first(e.parts[part].bytes.size() - bytes);
  }

  uint32_t offset(size_t i) const { return e_.part(kTileOffsets).values<uint32_t>()[i]; }
  uint32_t word(size_t i) const { return e_.part(kWords).values<uint32_t>()[i]; }

  EncodedWeight e_;
};

TEST_F(DamagedTiledCslPaper, Header) {
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.format = "dense"; }, "dense"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.version = 3; }, "version 3"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.dtype = DType::f32; }, "f32"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.dtype = DType::i32; }, "i32"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.rows = -1; }, "-1 x 100"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.columns = -1; }, "200 x -1"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.rows = 300; }, "tile_offsets"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.columns = 64; }, "tile_offsets"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.rows = int64_t{1} << 50; }, "tile_offsets"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.rows = int64_t{1} << 62; }, "does not fit"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.rows = 190; }, "outside of the matrix"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.columns = 90; }, "outside of the matrix"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { ++e.nonzeros; }, "nonzeros"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { --e.nonzeros; }, "nonzeros"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.nonzeros = -1; }, "-1 nonzeros"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.nonzeros = 20001; }, "20001 nonzeros"));
}

TEST_F(DamagedTiledCslPaper, Parts) {
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.parts.clear(); }, "no part"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.parts.pop_back(); }, "no part words"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.parts[0].name = "words"; }, "tile_offsets"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.parts[0].dtype = DType::f32; }, "F32"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.parts[1].dtype = DType::u8; }, "U8"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.parts.emplace_back().name = "more"; }, "3 parts"));
  for (const size_t bytes : {1, 2, 3, 4, 16}) {
    EXPECT_TRUE(refused([&](EncodedWeight& e) { shorten(e, 0, bytes); }, "tile_offsets"));
    EXPECT_TRUE(refused([&](EncodedWeight& e) { shorten(e, 1, bytes); }, "word"));
  }
}

TEST_F(DamagedTiledCslPaper, Offsets) {
  EXPECT_TRUE(refused_offset(0, 4, "from word 4"));
  EXPECT_TRUE(refused_offset(4, offset(4) - 4, "of"));
  EXPECT_TRUE(refused_offset(4, offset(4) + 4, "of"));
  EXPECT_TRUE(refused_offset(2, offset(1) - 4, "tile 1"));  // before its tile
  EXPECT_TRUE(refused_offset(1, offset(4) + 4, "tile 0"));  // after the last word
  EXPECT_TRUE(refused_offset(1, 0xffffffffu, "tile 0"));    // far after it
  EXPECT_TRUE(refused_offset(1, offset(1) + 1, "tile 0"));  // not a multiple of 4
  EXPECT_TRUE(refused_offset(1, offset(1) - 1, "tile 0"));  // without its padding
  EXPECT_TRUE(refused_offset(2, offset(2) + 4, "tile 1"));  // takes words of the next tile
  // Of one tile alone: more words than it has elements.
  EncodedWeight e = encode(random_weight(DType::f16, 128, 128, 0.0, 1).view());
  writable(e, kTileOffsets)[1] += 4;
  EXPECT_TRUE(throws_error([&] { format().validate(e); }, "tile 0: words 0 to 8196"));
}

TEST_F(DamagedTiledCslPaper, Words) {
  const uint32_t first = word(0);
  EXPECT_TRUE(refused_word(0, location_of_word(first), "a zero among the nonzeros"));
  EXPECT_TRUE(refused_word(0, 0x80000000u | location_of_word(first), "a zero among"));
  EXPECT_TRUE(refused_word(0, (first & 0xffff0000u) | 8192u, "location 8192"));
  EXPECT_TRUE(refused_word(0, first | 0xffffu, "location 65535"));
  EXPECT_TRUE(refused_word(0, word(1), "two values"));
  EXPECT_TRUE(refused_word(0, (first & 0xffff0000u) | location_of_word(word(1)), "two values"));
  // Tile 3 has 72 rows and 36 columns of the matrix.
  EXPECT_TRUE(refused_word(offset(3), make_word(0x3c00, location_of(72, 0)), "row 72, column 0"));
  EXPECT_TRUE(refused_word(offset(3), make_word(0x3c00, location_of(0, 36)), "row 0, column 36"));
}

TEST_F(DamagedTiledCslPaper, Padding) {
  const size_t padding = offset(1) - 1;
  EXPECT_EQ(value_bits_of(word(padding)), 0u);
  EXPECT_TRUE(refused_word(padding, word(padding) + 1, "fills it up"));
  EXPECT_TRUE(refused_word(padding, word(padding) | 0x80000000u, "fills it up"));
  EXPECT_TRUE(refused_word(padding, location_of_word(word(0)), "fills it up"));
  EXPECT_TRUE(refused_word(padding, 0x0000ffffu, "fills it up"));
  EXPECT_TRUE(refused_word(padding, word(padding) | 0x3c000000u, "words that are not padding"));
  // Four of it are a tile too long.
  EncodedWeight e = encode(random_weight(DType::f16, 3, 3, 1.0, 1).view());
  EncodedPart& words = e.parts[1];
  words = std::move(new_part<uint32_t>("words", DType::u32, 4).part);
  std::ranges::fill(writable(e, kWords), 0u);
  writable(e, kTileOffsets)[1] = 4;
  EXPECT_TRUE(throws_error([&] { format().validate(e); }, "4 words for 0 nonzeros"));
}

// Damaged bytes are refused, or are a valid encoding of another matrix.
TEST_F(DamagedTiledCslPaper, AnyByte) {
  Random random(17);
  int64_t refusals = 0;
  const auto check = [&](const EncodedWeight& e) {
    try {
      format().validate(e);
    } catch (const Error&) {
      ++refusals;
      return;
    }
    const OwnedTensor w = decode(e);
    const EncodedWeight again = encode(w.view);
    EXPECT_EQ(again.nonzeros, e.nonzeros);
    EXPECT_TRUE(same_bits(decode(again).view, w.view));
    EXPECT_TRUE(format().slice(e, Axis::columns, {.begin = 64, .count = e.columns - 64}));
  };
  EncodedWeight e = encode(random_weight(DType::f16, 140, 70, 0.97, 18).view());
  for (const std::string_view name : {kTileOffsets, kWords}) {
    const EncodedPart& part = e.part(name);
    auto* const bytes = static_cast<uint8_t*>(part.memory.data());
    for (size_t i = 0; i < part.bytes.size(); ++i) {
      const uint8_t good = bytes[i];
      for (const int64_t bad :
           {int64_t{good ^ 1}, int64_t{good ^ 0x80}, int64_t{0}, int64_t{255}, random.below(256)}) {
        bytes[i] = static_cast<uint8_t>(bad);
        check(e);
      }
      bytes[i] = good;
    }
  }
  EXPECT_GT(refusals, 100);
  // Several words at once.
  for (int round = 0; round < 300; ++round) {
    EncodedWeight damaged = copy_of(e);
    for (int64_t i = random.below(4); i >= 0; --i) {
      const std::span<uint32_t> values =
          writable(damaged, random.below(2) == 0 ? kTileOffsets : kWords);
      const size_t from = static_cast<size_t>(random.below(std::ssize(values)));
      const size_t to = static_cast<size_t>(random.below(std::ssize(values)));
      values[to] = random.below(2) == 0 ? values[from] : static_cast<uint32_t>(random.below(1000));
    }
    check(damaged);
  }
}

// --- The product ----------------------------------------------------------------------------

Expected reference(const Tensor& x, const Tensor& w) {
  const std::vector<double> a = values_of(x);
  const std::vector<double> b = values_of(w);
  const auto in = static_cast<size_t>(w.size(1));
  Expected result;
  for (size_t t = 0; t < static_cast<size_t>(x.size(0)); ++t) {
    for (size_t o = 0; o < static_cast<size_t>(w.size(0)); ++o) {
      double sum = 0.0;
      double magnitude = 0.0;
      for (size_t i = 0; i < in; ++i) {
        sum += a[t * in + i] * b[o * in + i];
        magnitude += std::abs(a[t * in + i] * b[o * in + i]);
      }
      result.values.push_back(sum);
      result.magnitudes.push_back(magnitude);
    }
  }
  return result;
}

TEST_F(TiledCslPaper, ProductsAndExpandedRows) {
  CpuContext cpu(2);
  Random random(19);
  for (const Shape& shape : {Shape{1, 1}, Shape{128, 64}, Shape{129, 65}, Shape{300, 200}}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const GuardedTensor w = random_weight(dtype, shape.rows, shape.columns, 0.6, 20);
      const std::unique_ptr<WeightMatrix> weight =
          format().load(encode(w.view()), {.threads = cpu.threads});
      EXPECT_EQ(weight->format(), "tiled_csl");
      for (const int64_t tokens : {1, 3, 17, 40}) {
        const GuardedTensor x = random.tensor(DType::f32, {tokens, shape.columns});
        const GuardedTensor y(DType::f32, {tokens, shape.rows});
        weight->matmul(x.view(), y.view(), {}, cpu.exec);
        EXPECT_TRUE(
            all_close(y.view(), reference(x.view(), w.view()), static_cast<double>(shape.columns)));
        EXPECT_TRUE(y.guards_intact());
      }
      const Range rows{.begin = shape.rows / 3, .count = shape.rows - shape.rows / 3};
      const GuardedTensor dense(dtype, {rows.count, shape.columns});
      weight->expand(rows, dense.view(), cpu.exec);
      EXPECT_TRUE(same_bits(dense.view(), w.view().rows(rows.begin, rows.count)));
    }
  }
}

// Padding is no nonzero: an infinity in x at its column must not make a NaN.
TEST_F(TiledCslPaper, PaddingIsNoTermOfAProduct) {
  GuardedTensor w(DType::f16, {2, 2});
  std::fill_n(w.view().data<Half>(), 4, Half{0});
  w.view().data<Half>()[3] = {0x3c00};
  CpuContext cpu;
  GuardedTensor x(DType::f32, {1, 2});
  x.view().data<float>()[0] = 3.0f;
  x.view().data<float>()[1] = 2.0f;
  const GuardedTensor y(DType::f32, {1, 2});
  format()
      .load(encode(w.view()), {.threads = cpu.threads})
      ->matmul(x.view(), y.view(), {}, cpu.exec);
  EXPECT_EQ(values_of(y.view()), (std::vector<double>{0.0, 2.0}));
}

}  // namespace
}  // namespace sparsellm
