// Version 2 of tiled_csl.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sparse/registry.h"
#include "sparse/tiled_csl/format/record_plan.h"
#include "sparse/tiled_csl/host/record_encoder.h"
#include "sparse/tiled_csl/host/tile_records.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "sparse/tiled_csl/v1/paper_parts.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/compare.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using namespace tiled_csl;

const WeightFormat& format() { return tiled_csl_format(); }

class TiledCslRecord : public ::testing::Test {
 protected:
  EncodedWeight encode(const Tensor& w) { return format().encode(w, one_); }
  OwnedTensor decode(const EncodedWeight& e) { return format().decode(e, one_); }

  // Of f16 ones, zeros elsewhere.
  template <class IsNonzero>
  static GuardedTensor ones(int64_t rows, int64_t columns, IsNonzero&& is_nonzero) {
    GuardedTensor w(DType::f16, {rows, columns});
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        w.view().row<Half>(row)[column] = {
            static_cast<uint16_t>(is_nonzero(row, column) ? 0x3c00 : 0)};
      }
    }
    return w;
  }

  ThreadPool one_{1};
};

std::vector<Piece> pieces_of(const EncodedWeight& e, int64_t tile) {
  std::vector<Piece> pieces;
  for_each_piece(TileRecords(e).record(tile), [&](const Piece& piece) { pieces.push_back(piece); });
  return pieces;
}

// --- The layout -----------------------------------------------------------------------------

TEST(TiledCslRecordLayout, PositionsAreAPermutationOfARow) {
  std::set<uint32_t> positions;
  for (uint32_t column = 0; column < kTileColumns; ++column) {
    const uint32_t position = record_position(column);
    EXPECT_LT(position, kTileColumns);
    EXPECT_EQ(column_at(position), column);
    positions.insert(position);
  }
  EXPECT_EQ(std::ssize(positions), kTileColumns);
}

// What mma.m16n8k16 takes of x from lane t in step s: positions 16 s + 2 t, the next one, and both
// 8 further on. All steps together are the 16 columns from 16 t on.
TEST(TiledCslRecordLayout, ALaneHasNeighbouringColumns) {
  for (uint32_t t = 0; t < 4; ++t) {
    std::vector<uint32_t> columns;
    for (uint32_t s = 0; s < 4; ++s) {
      for (const uint32_t k : {2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9}) {
        columns.push_back(column_at(16 * s + k));
      }
    }
    for (uint32_t i = 0; i < 16; ++i) {
      EXPECT_EQ(columns[i], 16 * t + i);
    }
  }
}

TEST(TiledCslRecordLayout, AByteNamesTheElementsOfABank) {
  std::set<uint32_t> locations;
  for (uint32_t bank = 0; bank < kBanks; ++bank) {
    uint32_t before = 0;
    for (uint32_t row = 0; row < kTileRows; ++row) {
      for (uint32_t e = 0; e < 2; ++e) {
        const uint32_t location = row * kTileColumns + 2 * bank + e;
        EXPECT_EQ(bank_of(location), bank);
        EXPECT_EQ(location_in(bank, location_byte(location)), location);
        EXPECT_TRUE(location >= before);
        before = location;
        locations.insert(location);
      }
    }
  }
  EXPECT_EQ(std::ssize(locations), kTileElements);
}

TEST(TiledCslRecordLayout, PiecesHaveRoomForAllOfTheRecord) {
  for (const int groups : {0, 1, 7, 8, 9, 16, 31, 32}) {
    for (const int words : {0, 1, 22, 23, 24, 31, 32, 1559, 1560, 8192}) {
      int left_groups = groups;
      int left_words = words;
      int bytes = 0;
      bool hosts = groups > 0;
      for (;; bytes += kPieceBytes) {
        const PieceSizes piece = next_piece(left_groups, left_words, hosts);
        EXPECT_LE(piece_bytes(piece.groups, hosts, piece.words), kPieceBytes);
        left_groups -= piece.groups;
        left_words -= piece.words;
        if (left_groups == 0 && left_words == 0) {
          EXPECT_EQ(record_bytes(groups, words),
                    bytes + piece_bytes(piece.groups, hosts, piece.words));
          break;
        }
        hosts = false;
      }
    }
  }
  EXPECT_EQ(record_bytes(0, 0), 16);
  EXPECT_EQ(kPieceBytes % 128, 0);  // bulk copies are the fastest to multiples of it
}

// --- What a record consists of --------------------------------------------------------------

static_assert(plan_record({}).bytes() == 16, "kernels plan records by the same code");

int nonzeros_of(const BankCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0);
}

// That the plan has a place for each nonzero and no more hosts than places.
void check_plan(const BankCounts& counts) {
  const RecordPlan plan = plan_record(counts);
  const int places = plan.groups * kSlots;
  BankCounts placed{};
  for (int lane = 0; lane < kWarp; ++lane) {
    const int own = std::min(counts[static_cast<size_t>(lane)], places);
    placed[static_cast<size_t>(lane)] += own;
    EXPECT_LE(own + plan.hosted[static_cast<size_t>(lane)], places);
    EXPECT_LE(plan.hosted[static_cast<size_t>(lane)], kSlots);
    EXPECT_GE(plan.hosted[static_cast<size_t>(lane)], 0);
  }
  for (size_t lane = 0; lane < kWarp; ++lane) {
    placed[static_cast<size_t>(plan.donor[lane])] += plan.hosted[lane];
    EXPECT_TRUE(plan.hosted[lane] == 0 || plan.donor[lane] != static_cast<int>(lane));
  }
  for (size_t bank = 0; bank < kBanks; ++bank) {
    EXPECT_LE(placed[bank], counts[bank]);
  }
  EXPECT_EQ(nonzeros_of(placed) + plan.words, nonzeros_of(counts));
  EXPECT_LE(plan.bytes(), record_bytes(0, nonzeros_of(counts)));
  EXPECT_LE(plan.bytes(), record_bytes(kMaxGroups, 0));
}

TEST(TiledCslPlan, HasAPlaceForEachNonzero) {
  BankCounts counts{};
  check_plan(counts);
  EXPECT_EQ(plan_record(counts).bytes(), 16);
  counts.fill(kBankElements);
  check_plan(counts);
  for (size_t bank = 0; bank < kBanks; ++bank) {
    for (const int many : {1, 7, 8, 9, 255, 256}) {
      counts.fill(0);
      counts[bank] = many;
      check_plan(counts);
    }
  }
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    const int64_t most = random.below(257);
    for (int& count : counts) {
      count = static_cast<int>(random.below(5) == 0 ? random.below(257) : random.below(most + 1));
    }
    check_plan(counts);
  }
}

TEST(TiledCslPlan, EmptyLanesTakeWhatFullBanksHaveTooMany) {
  BankCounts counts;
  counts.fill(16);
  counts[3] = 20;
  counts[5] = 12;
  const RecordPlan plan = plan_record(counts);
  EXPECT_EQ(plan.groups, 2);
  EXPECT_EQ(plan.words, 0);
  EXPECT_EQ(plan.donor[5], 3);
  EXPECT_EQ(plan.hosted[5], 4);
  EXPECT_EQ(plan.donor[3], 3);
  EXPECT_EQ(plan.hosted[3], 0);
}

TEST_F(TiledCslRecord, OfThreeNonzeros) {
  GuardedTensor w = ones(130, 70, [](int64_t row, int64_t column) {
    return (row == 9 && column == 17) || (row == 129 && column == 65) || (row == 0 && column == 0);
  });
  const EncodedWeight e = encode(w.view());
  format().validate(e);
  EXPECT_EQ(e.version, 2);
  EXPECT_EQ(e.nonzeros, 3);
  const auto starts = e.part(kStarts).values<uint32_t>();
  EXPECT_EQ(std::vector(starts.begin(), starts.end()), (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  const auto record = pieces_of(e, 0);
  ASSERT_EQ(record.size(), 1u);
  EXPECT_EQ(record[0].groups(), 0);
  EXPECT_EQ(record[0].flags(), kLastPiece);
  ASSERT_EQ(record[0].words(), 2);
  EXPECT_EQ(record[0].word(0), 0x3c00u);
  // Column 17 is t = 1, s = 0, e = 1: position 3, chunk 0, which row 9 has at chunk 1.
  EXPECT_EQ(record[0].word(1), 0x3c00u | (9 * 128 + 16 + 2 * 3) << 16);
  // Row 129 is row 1 of its tile, column 65 column 1: position 1 in chunk 0 ^ 1.
  EXPECT_EQ(pieces_of(e, 3)[0].word(0), 0x3c00u | (1 * 128 + 16 + 2 * 1) << 16);
  EXPECT_EQ(pieces_of(e, 1)[0].words(), 0);
  EXPECT_TRUE(same_bits(decode(e).view, w.view()));
}

// --- Encoding and decoding ------------------------------------------------------------------

TEST_F(TiledCslRecord, DecodeReturnsTheMatrix) {
  struct Shape {
    int64_t rows;
    int64_t columns;
  };
  constexpr Shape kShapes[] = {{0, 0},    {0, 5},     {5, 0},    {1, 1},    {1, 300},
                               {300, 1},  {128, 64},  {127, 63}, {129, 65}, {257, 200},
                               {64, 129}, {384, 192}, {131, 67}, {7, 13},   {256, 1001}};
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const Shape& shape : kShapes) {
      for (const Pattern pattern : kPatterns) {
        for (const double density : {0.0, 0.02, 0.1, 0.32, 0.5, 0.9, 1.0}) {
          const WeightSpec spec{.dtype = dtype,
                                .rows = shape.rows,
                                .columns = shape.columns,
                                .density = density,
                                .pattern = pattern};
          SCOPED_TRACE(fmt::format("{} [{}, {}] at {}, {}", name_of(dtype), shape.rows,
                                   shape.columns, density, name_of(pattern)));
          const OwnedTensor w = make_weight(spec, 1);
          const EncodedWeight e = encode(w.view);
          ASSERT_NO_THROW(format().validate(e));
          const OwnedTensor decoded = decode(e);
          clear_negative_zeros(w.view);
          ASSERT_TRUE(same_matrix(decoded.view, w.view));
        }
      }
    }
  }
}

TEST_F(TiledCslRecord, AllValuesKeepTheirBitsButNegativeZero) {
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

// Tiles that are full, empty, and have all nonzeros in one row, column, bank or quarter.
TEST_F(TiledCslRecord, UnevenTiles) {
  const auto all_kinds = [](int64_t row, int64_t column) {
    switch (column / kTileColumns) {
      case 0:
        return true;
      case 1:
        return false;
      case 2:
        return row == 77;
      case 3:
        return column % kTileColumns == 33;
      case 4:
        return bank_of(swizzled(static_cast<uint32_t>(row),
                                record_position(static_cast<uint32_t>(column) % kTileColumns))) ==
               13;
      case 5:
        return bank_of(swizzled(static_cast<uint32_t>(row),
                                record_position(static_cast<uint32_t>(column) % kTileColumns))) < 9;
      default:
        return row < 64 && column % kTileColumns < 32;
    }
  };
  const GuardedTensor w = ones(128, 7 * kTileColumns, all_kinds);
  const EncodedWeight e = encode(w.view());
  format().validate(e);
  EXPECT_TRUE(same_bits(decode(e).view, w.view()));
  EXPECT_EQ(pieces_of(e, 0).size(), 4u);  // 8 groups each
  EXPECT_EQ(pieces_of(e, 1).size(), 1u);
  EXPECT_EQ(pieces_of(e, 2)[0].words() + pieces_of(e, 2)[0].groups() * 256, 64);
}

TEST_F(TiledCslRecord, WhatCannotBeEncoded) {
  const GuardedTensor f32(DType::f32, {4, 4});
  EXPECT_NE(format().why_not(f32.view()).find("f32"), std::string::npos);
  EXPECT_TRUE(throws_error([&] { encode(f32.view()); }, "f32"));
  const GuardedTensor vector(DType::f16, {4});
  EXPECT_NE(format().why_not(vector.view()).find("1 dimensions"), std::string::npos);
  EXPECT_EQ(format().why_not(GuardedTensor(DType::bf16, {3, 7}).view()), "");
}

TEST_F(TiledCslRecord, StartsReachSixtyFourGigabytes) {
  EXPECT_EQ(why_too_large(0), "");
  EXPECT_EQ(why_too_large(int64_t{4294967295} * 16), "");
  EXPECT_NE(why_too_large(int64_t{4294967296} * 16).find("68719476736 bytes"), std::string::npos);
  EXPECT_TRUE(starts_hold_any(49152, 12288));
  EXPECT_FALSE(starts_hold_any(int64_t{1} << 20, int64_t{1} << 20));
  const OwnedTensor w = make_weight({.dtype = DType::f16, .rows = 300, .columns = 170}, 2);
  EXPECT_EQ(count_record_bytes(w.view), encode(w.view).part(kRecords).count());
}

TEST_F(TiledCslRecord, ANonzeroTakesAboutThreeBytes) {
  constexpr int64_t kSize = 2048;  // with fewer tiles the mean varies by more than the bars allow
  struct Bar {
    double density;
    double most;  // bytes of a nonzero, all in
  };
  for (const Bar& bar : {Bar{0.5, 3.05}, Bar{0.4, 3.08}, Bar{0.3, 3.10}, Bar{0.25, 3.15},
                         Bar{0.2, 3.11}, Bar{0.15, 3.15}, Bar{0.1, 3.15}, Bar{0.05, 3.50}}) {
    const OwnedTensor w = make_weight(
        {.dtype = DType::f16, .rows = kSize, .columns = kSize, .density = bar.density}, 3);
    const EncodedWeight e = encode(w.view);
    const double bytes = static_cast<double>(e.bytes()) / static_cast<double>(e.nonzeros);
    RecordProperty(fmt::format("bytes_{:.0f}", bar.density * 100), fmt::format("{:.3f}", bytes));
    EXPECT_LE(bytes, bar.most) << bar.density;
    EXPECT_NEAR(static_cast<double>(format().expected_bytes(e)), static_cast<double>(e.bytes()),
                0.02 * static_cast<double>(e.bytes()))
        << bar.density;
  }
}

// --- Slices ---------------------------------------------------------------------------------

TEST_F(TiledCslRecord, SlicesAndPartsOfWholeTilesAreCopied) {
  const OwnedTensor w =
      make_weight({.dtype = DType::bf16, .rows = 700, .columns = 300, .density = 0.3}, 4);
  const EncodedWeight e = encode(w.view);
  struct Cut {
    Axis axis;
    Range range;
    bool whole_tiles;
  };
  for (const Cut& cut : {Cut{Axis::rows, {128, 256}, true}, Cut{Axis::rows, {384, 316}, true},
                         Cut{Axis::rows, {0, 64}, false}, Cut{Axis::columns, {64, 128}, true},
                         Cut{Axis::columns, {256, 44}, true}, Cut{Axis::columns, {256, 43}, false},
                         Cut{Axis::rows, {128, 0}, true}, Cut{Axis::columns, {-64, 64}, false}}) {
    const std::optional<EncodedWeight> sliced = format().slice(e, cut.axis, cut.range);
    ASSERT_EQ(sliced.has_value(), cut.whole_tiles);
    if (sliced) {
      const Tensor part = cut.axis == Axis::rows ? w.view.rows(cut.range.begin, cut.range.count)
                                                 : w.view.columns(cut.range.begin, cut.range.count);
      EXPECT_TRUE(same_encoding(*sliced, encode(part)));
    }
  }
  const EncodedWeight top = encode(w.view.rows(0, 256));
  const EncodedWeight rest = encode(w.view.rows(256, 444));
  const EncodedWeight odd = encode(w.view.rows(0, 100));
  const EncodedWeight paper = encode_paper(w.view.rows(256, 444), one_);
  using Parts = std::vector<const EncodedWeight*>;
  const std::optional<EncodedWeight> joined = format().concat_rows(Parts{&top, &rest});
  ASSERT_TRUE(joined);
  EXPECT_TRUE(same_encoding(*joined, e));
  EXPECT_FALSE(format().concat_rows(Parts{&odd, &rest}));
  EXPECT_FALSE(format().concat_rows(Parts{&top, &paper}));
}

// --- Damaged encodings ----------------------------------------------------------------------

std::span<std::byte> writable(EncodedWeight& e, std::string_view name) {
  const EncodedPart& part = e.part(name);
  return {static_cast<std::byte*>(part.memory.data()), part.bytes.size()};
}

// Of 200 x 100 elements: 2 x 2 tiles, each of one piece with groups, hosts and words.
class DamagedTiledCslRecord : public TiledCslRecord {
 protected:
  DamagedTiledCslRecord() {
    e_ = encode(
        make_weight({.dtype = DType::f16, .rows = 200, .columns = 100, .density = 0.25}, 5).view);
    format().validate(e_);
  }

  ::testing::AssertionResult refused(const std::function<void(EncodedWeight&)>& damage,
                                     std::string_view message) {
    EncodedWeight e = testing::copy_of(e_);
    damage(e);
    return throws_error([&] { format().validate(e); }, message);
  }
  template <class T>
  ::testing::AssertionResult refused_at(size_t byte, T value, std::string_view message) {
    return refused(
        [&](EncodedWeight& e) {
          std::memcpy(writable(e, kRecords).data() + byte, &value, sizeof(value));
        },
        message);
  }
  ::testing::AssertionResult refused_start(size_t index, uint32_t value, std::string_view message) {
    return refused(
        [&](EncodedWeight& e) {
          std::memcpy(writable(e, kStarts).data() + 4 * index, &value, sizeof(value));
        },
        message);
  }
  Piece first() const { return Piece(e_.part(kRecords).bytes.data()); }
  uint32_t start(size_t i) const { return e_.part(kStarts).values<uint32_t>()[i]; }

  EncodedWeight e_;
};

TEST_F(DamagedTiledCslRecord, HeaderAndParts) {
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.version = 3; }, "version 3"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.version = 1; }, "no part words"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.dtype = DType::f32; }, "f32"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.rows = 300; }, "starts"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.rows = 190; }, "outside of the matrix"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.columns = 90; }, "outside of the matrix"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { ++e.nonzeros; }, "nonzeros"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.parts.pop_back(); }, "no part records"));
  EXPECT_TRUE(refused([](EncodedWeight& e) { e.parts.emplace_back().name = "more"; }, "3 parts"));
  for (const size_t bytes : {1, 15, 16}) {
    EXPECT_TRUE(refused(
        [&](EncodedWeight& e) {
          e.parts[1].bytes = e.parts[1].bytes.first(e.parts[1].bytes.size() - bytes);
        },
        "bytes"));
  }
}

TEST_F(DamagedTiledCslRecord, Starts) {
  EXPECT_TRUE(refused_start(0, 1, "first start is 1"));
  EXPECT_TRUE(refused_start(1, 0, "tile 0"));
  EXPECT_TRUE(refused_start(1, 0xffffffffu, "tile 0"));
  EXPECT_TRUE(refused_start(2, start(1), "tile 1"));
  EXPECT_TRUE(refused_start(2, start(1) - 1, "tile 1"));
  EXPECT_TRUE(refused_start(1, start(1) + 1, "tile 0"));
  EXPECT_TRUE(refused_start(1, start(1) - 1, "tile 0"));
  EXPECT_TRUE(refused_start(4, start(4) - 1, "bytes"));
  EXPECT_TRUE(refused_start(4, start(4) + 1, "bytes"));
}

TEST_F(DamagedTiledCslRecord, Pieces) {
  ASSERT_TRUE(first().has_hosts() && first().last());
  ASSERT_GT(first().words(), 1);
  const auto groups = static_cast<uint8_t>(first().groups());
  EXPECT_TRUE(refused_at(0, uint8_t{9}, "9 groups"));
  EXPECT_TRUE(refused_at(0, static_cast<uint8_t>(groups + 1), "tile 0"));
  EXPECT_TRUE(refused_at(0, static_cast<uint8_t>(groups - 1), "tile 0"));
  EXPECT_TRUE(refused_at(1, uint8_t{4 | kLastPiece | kHasHosts}, "flags 7"));
  EXPECT_TRUE(refused_at(1, uint8_t{kLastPiece}, "hosts"));
  EXPECT_TRUE(refused_at(1, uint8_t{kHasHosts}, "tile 0"));  // its last piece is missing
  EXPECT_TRUE(refused_at(2, uint16_t{0}, "tile 0"));
  EXPECT_TRUE(refused_at(2, uint16_t{0xffff}, "tile 0"));
  EXPECT_TRUE(refused_at(2, static_cast<uint16_t>(first().words() + 16), "tile 0"));
  for (const auto head = static_cast<size_t>(kPieceHeader + kWarp + first().words() * kWordBytes);
       head % 16 != 0;) {
    EXPECT_TRUE(refused_at(head, uint8_t{1}, "fills up the words"));
    break;
  }
}

TEST_F(DamagedTiledCslRecord, PlacesAndValues) {
  const size_t words = kPieceHeader + kWarp;
  const uint32_t word = first().word(0);
  EXPECT_TRUE(refused_at(words, word & 0xffff0000u, "the word"));              // a zero
  EXPECT_TRUE(refused_at(words, (word & 0xffff0000u) | 0x8000u, "the word"));  // another one
  EXPECT_TRUE(refused_at(words, word | 0x10000u, "the word"));                 // between elements
  EXPECT_TRUE(refused_at(words, (word & 0xffffu) | 16384u << 16, "the word"));
  EXPECT_TRUE(refused_at(words, first().word(1), "two values"));
  const auto values = static_cast<size_t>(head_bytes(true, first().words()));
  const size_t locations = values + static_cast<size_t>(first().groups()) * kGroupValueBytes;
  const auto bytes = e_.part(kRecords).bytes;
  // Slots of group 1, which hosts do not change.
  ASSERT_GT(first().groups(), 1);
  const size_t slot = 32 * kSlots;
  EXPECT_TRUE(refused_at(locations + slot, bytes[locations + slot + 1], "two values"));
  EXPECT_TRUE(refused_at(values + 2 * slot, uint16_t{0x8000}, "negative zero"));
  EXPECT_TRUE(refused_at(values + 2 * slot, uint16_t{0}, "nonzeros, but"));
  // A zero in the place of the next value.
  EXPECT_TRUE(refused(
      [&](EncodedWeight& e) {
        const uint16_t zero = 0;
        std::memcpy(writable(e, kRecords).data() + values + 2 * slot, &zero, 2);
        writable(e, kRecords)[locations + slot] = bytes[locations + slot + 1];
      },
      "in the place of a nonzero"));
}

// Damaged bytes are refused, or are a valid encoding of another matrix.
TEST_F(DamagedTiledCslRecord, AnyByte) {
  Random random(6);
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
  };
  const EncodedWeight good = encode(
      make_weight({.dtype = DType::f16, .rows = 140, .columns = 70, .density = 0.05}, 7).view);
  for (int round = 0; round < (kSanitized ? 300 : 3000); ++round) {
    check(damaged_copy_of(good, random));
    check(damaged_copy_of(e_, random));
  }
  EXPECT_GT(refusals, 100);
}

TEST_F(TiledCslRecord, IsRegistered) { EXPECT_EQ(&weight_format("tiled_csl"), &format()); }

}  // namespace
}  // namespace sparsellm
