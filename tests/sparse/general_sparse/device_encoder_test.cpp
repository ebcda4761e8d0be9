// The device code of the encoder, lane after lane on the host, against the encoder of the host.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/host/bank_order.h"
#include "tests/sparse/general_sparse/host_encoder.h"
#include "tests/sparse/general_sparse/naive_encoding.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace general_sparse;
using testing::NamedMatrix;
using testing::Random;
using PanelLayout = general_sparse::Layout;

size_t at(int64_t index) { return static_cast<size_t>(index); }

// ---------------------------------------------------------------------------------------- orders

class Group {
 public:
  Group(const std::vector<uint32_t>& positions, int64_t columns)
      : words_(at(ceil_div(columns, kBitsOfWord))) {
    for (const uint32_t position : positions) {
      words_[position / kBitsOfWord] |= uint64_t{1} << position % kBitsOfWord;
    }
  }
  GroupBits bits() const {
    return {.first = words_.data(),
            .row_words = std::ssize(words_),
            .rows = 1,
            .words = static_cast<int>(words_.size())};
  }

 private:
  std::vector<uint64_t> words_;
};

// Columns of a panel with densities and gaps of their own here and there.
std::vector<uint32_t> uneven_positions(int64_t columns, Random& random) {
  std::vector<uint32_t> positions;
  const double whole = random.uniform(0.0, 1.0);
  for (int64_t column = 0; column < columns;) {
    const int64_t end = std::min(columns, column + 1 + random.below(400));
    const int64_t kind = random.below(4);
    const double density = kind == 0 ? 0.0 : kind == 1 ? 1.0 : whole * random.uniform(0.0, 1.0);
    const int64_t step = kind == 3 ? 8 : 1;  // columns of one bank
    for (; column < end; column += step) {
      if (random.uniform(0.0, 1.0) < density) {
        positions.push_back(static_cast<uint32_t>(column));
      }
    }
  }
  return positions;
}

TEST(GeneralSparseDeviceEncoder, TakesNearbyColumnsInTheOrderOfTheHost) {
  Random random(11);
  NearbyBankOrder order;
  for (int round = 0; round < 600; ++round) {
    const int64_t columns = 1 + random.below(round % 3 == 0 ? 200 : 3000);
    const std::vector<uint32_t> positions = uneven_positions(columns, random);
    const int lane = static_cast<int>(random.below(32));
    const Group group(positions, columns);
    NearbyEntries<HostWordBits> entries(group.bits(), lane);
    int64_t taken = 0;
    order.for_each(group.bits(), lane, [&](int column, int code) {
      const LaneEntry entry = entries.next();
      taken += column == kNoColumnOfPanel ? 0 : 1;
      EXPECT_EQ(entry.column, column == kNoColumnOfPanel ? kNoColumn : column);
      EXPECT_EQ(entry.code, code);
      EXPECT_GE(code, -128);
      EXPECT_LE(code, 127);
    });
    ASSERT_EQ(taken, std::ssize(positions));
    ASSERT_FALSE(HasFailure()) << "round " << round;
    for (int i = 0; i < 3; ++i) {
      const LaneEntry filler = entries.next();
      ASSERT_EQ(filler.column, kNoColumn);
      ASSERT_EQ(filler.code, 0);
    }
  }
}

TEST(GeneralSparseDeviceEncoder, TakesColumnsOfBanksInTheOrderOfTheHost) {
  Random random(12);
  BankOrder order;
  for (int round = 0; round < 300; ++round) {
    const int64_t columns = round % 50 == 0 ? 65536 : 1 + random.below(round % 3 == 0 ? 200 : 9000);
    const std::vector<uint32_t> positions = uneven_positions(columns, random);
    const int lane = static_cast<int>(random.below(32));
    const int64_t class_words = BankMemory::class_words_for(columns);
    const int stride = round % 2 == 0 ? 1 : 32;
    std::vector<uint64_t> classes(at(32 * class_words * stride), ~uint64_t{0});
    std::vector<uint16_t> left(at(32 * stride), 77);
    const Group group(positions, columns);
    BankEntries<HostWordBits> entries(group.bits(), lane,
                                      {.classes = classes.data(),
                                       .left = left.data(),
                                       .class_words = static_cast<int>(class_words),
                                       .stride = stride});
    int last = 0;
    int64_t taken = 0;
    order.for_each(group.bits(), lane, [&](int column, int code) {
      const LaneEntry entry = entries.next();
      EXPECT_EQ(entry.column, column);
      EXPECT_EQ(entry.code, code);
      last = column;
      ++taken;
    });
    ASSERT_EQ(taken, std::ssize(positions));
    ASSERT_FALSE(HasFailure()) << "round " << round;
    for (int i = 0; i < 3; ++i) {
      const LaneEntry filler = entries.next();
      ASSERT_EQ(filler.column, kNoColumn);
      ASSERT_EQ(filler.code, last);
    }
  }
}

// ------------------------------------------------------------------------------------- encodings

// A matrix of f16 or bf16, and what a device knows of it.
class HostMatrix {
 public:
  explicit HostMatrix(const Tensor& w)
      : elements_(static_cast<const uint16_t*>(w.raw())), stride_(w.row_stride()) {
    bits_ = {
        .rows = w.size(0), .columns = w.size(1), .row_words = ceil_div(w.size(1), kBitsOfWord)};
    words_.resize(at(bits_.rows * bits_.row_words));
    bits_.words = words_.data();
    for (int64_t row = 0; row < bits_.rows; ++row) {
      for (int64_t column = 0; column < bits_.columns; ++column) {
        if ((elements_[row * stride_ + column] & 0x7fffu) != 0) {
          words_[at(row * bits_.row_words + column / kBitsOfWord)] |= uint64_t{1}
                                                                      << column % kBitsOfWord;
        }
      }
    }
  }
  HostMatrix(const HostMatrix&) = delete;
  HostMatrix& operator=(const HostMatrix&) = delete;

  const RowBits& bits() const { return bits_; }
  GroupElements elements(const Chunk& chunk, const GroupBits& group, int64_t row) const {
    return {.first = elements_ + row * stride_ + chunk.first_column,
            .row_stride = stride_,
            .rows = group.rows};
  }

 private:
  const uint16_t* elements_;
  int64_t stride_;
  std::vector<uint64_t> words_;
  RowBits bits_;
};

// The positions before the borders of a slice, by their definition.
std::vector<uint16_t> naive_borders(const Parts& parts, const Chunk& chunk, int64_t slice) {
  std::vector<uint16_t> borders(at((kMostParts - 1) * kSliceLanes));
  for (int64_t lane = 0; lane < kSliceLanes; ++lane) {
    const Lane of = parts.lane(chunk, slice * kSliceLanes + lane);
    std::vector<int64_t> positions{0};
    parts.for_each_entry(chunk, of,
                         [&](int64_t position, size_t) { positions.push_back(position); });
    const auto units = static_cast<uint32_t>(of.entries / parts.layout.vector);
    for (uint32_t border = 1; border < uint32_t{kMostParts}; ++border) {
      borders[at((border - 1) * kSliceLanes + lane)] =
          static_cast<uint16_t>(positions[at(part_border(units, border) * parts.layout.vector)]);
    }
  }
  return borders;
}

template <class Position>
void check_groups_apart(const HostMatrix& m, const EncodedWeight& e) {
  const Parts parts(e);
  const std::span<const Position> positions = parts.positions.values<Position>();
  const std::span<const uint16_t> values = parts.values.values<uint16_t>();
  std::vector<Position> made_positions(positions.size(), Position{0x5a});
  std::vector<uint16_t> made_values(values.size(), 0x5a5a);
  for (int64_t number = 0; number < parts.grid.slices(); ++number) {
    const auto [chunk, place] = parts.grid.slice(number);
    const uint32_t* const start = parts.starts.data() + number;
    const int64_t group = chunk.first_group + parts.row_order[at(chunk.first_place + place)];
    const GroupBits bits = group_bits(m.bits(), parts.layout.shared_rows, chunk, group);
    AscendingEntries<HostWordBits> entries(bits);
    write_lane(entries, m.elements(chunk, bits, group * parts.layout.shared_rows),
               LaneTarget<Position>{.positions = made_positions.data(),
                                    .values = made_values.data(),
                                    .first_unit = start[0],
                                    .units = start[1] - start[0],
                                    .lanes = 1,
                                    .vector = parts.layout.vector,
                                    .shared_rows = parts.layout.shared_rows});
  }
  EXPECT_TRUE(std::ranges::equal(made_positions, positions));
  EXPECT_TRUE(std::ranges::equal(made_values, values));
}

template <class Position>
void check_lanes(const HostMatrix& m, const EncodedWeight& e) {
  const Parts parts(e);
  const PanelLayout& layout = parts.layout;
  const std::span<const Position> positions = parts.positions.values<Position>();
  const std::span<const uint16_t> values = parts.values.values<uint16_t>();
  std::vector<Position> made_positions(positions.size(), Position{0x5a});
  std::vector<uint16_t> made_values(values.size(), 0x5a5a);
  const int64_t class_words =
      BankMemory::class_words_for(std::min(parts.grid.panel_columns(), e.columns));
  std::vector<uint64_t> classes(at(32 * class_words));
  std::vector<uint16_t> left(32);
  for (int64_t number = 0; number < parts.grid.slices(); ++number) {
    const auto [chunk, slice] = parts.grid.slice(number);
    ASSERT_EQ(chunk.first_slice + slice, number);
    std::vector<uint16_t> borders(at((kMostParts - 1) * kSliceLanes), 0x5a5a);
    const uint32_t* const start = parts.starts.data() + number;
    for (int lane = 0; lane < kSliceLanes; ++lane) {
      const int64_t place = slice * kSliceLanes + lane;
      GroupBits bits;
      GroupElements elements;
      if (place < chunk.groups) {
        const int64_t group = chunk.first_group + parts.row_order[at(chunk.first_place + place)];
        bits = group_bits(m.bits(), layout.shared_rows, chunk, group);
        elements = m.elements(chunk, bits, group * layout.shared_rows);
      }
      const LaneTarget<Position> to{.positions = made_positions.data(),
                                    .values = made_values.data(),
                                    .border_positions = borders.data(),
                                    .first_unit = start[0],
                                    .units = start[1] - start[0],
                                    .lane = lane,
                                    .vector = layout.vector,
                                    .shared_rows = layout.shared_rows};
      if constexpr (sizeof(Position) == 1) {
        NearbyEntries<HostWordBits> entries(bits, lane);
        write_lane(entries, elements, to);
      } else {
        BankEntries<HostWordBits> entries(bits, lane,
                                          {.classes = classes.data(),
                                           .left = left.data(),
                                           .class_words = static_cast<int>(class_words)});
        write_lane(entries, elements, to);
      }
    }
    if (sizeof(Position) == 1) {
      ASSERT_EQ(borders, naive_borders(parts, chunk, slice));
    }
  }
  EXPECT_TRUE(std::ranges::equal(made_positions, positions));
  EXPECT_TRUE(std::ranges::equal(made_values, values));
}

class GeneralSparseDeviceLanes : public ::testing::Test {
 protected:
  // Lengths, and all lanes.
  void check(const Tensor& w, const PanelLayout& layout) {
    SCOPED_TRACE(to_text(layout));
    const EncodedWeight e = general_sparse::encode(compress_rows(w, threads_), layout, threads_);
    const HostMatrix m(w);
    const Parts parts(e);
    const bool differences = has_differences(layout.positions);
    const int most = differences ? static_cast<int>(most_difference(layout.positions)) : 0;
    for (int64_t number = 0; number < parts.grid.chunks(); ++number) {
      const Chunk chunk = parts.grid.chunk(number);
      for (int64_t place = 0; place < chunk.groups; place += layout.interleave) {
        const int64_t group = chunk.first_group + parts.row_order[at(chunk.first_place + place)];
        const uint32_t length = count_entries<HostWordBits>(
            group_bits(m.bits(), layout.shared_rows, chunk, group), most);
        ASSERT_EQ(parts.lane(chunk, place).entries,
                  ceil_div(length, layout.vector) * layout.vector);
      }
    }
    if (layout.interleave > 1) {
      differences ? check_lanes<uint8_t>(m, e) : check_lanes<uint16_t>(m, e);
    } else if (layout.positions == PositionCode::u32) {
      check_groups_apart<uint32_t>(m, e);
    } else {
      check_groups_apart<uint16_t>(m, e);
    }
  }

  void check_layouts(const Tensor& w) {
    for (const PositionCode code : {PositionCode::i8, PositionCode::u16}) {
      for (const int shared_rows : {1, 2, 4, 8}) {
        for (const int64_t panel : {64, 256, 8192, 65536}) {
          check(w, {.positions = code,
                    .shared_rows = shared_rows,
                    .panel_columns = panel,
                    .window_rows = (panel == 64 ? 32 : 256) * shared_rows,
                    .sorted = true,
                    .interleave = 32,
                    .vector = 8 / shared_rows});
        }
      }
    }
    for (const PositionCode code : {PositionCode::u16, PositionCode::u32}) {
      for (const int shared_rows : {1, 2, 4, 8}) {
        check(w, {.positions = code,
                  .shared_rows = shared_rows,
                  .panel_columns = 65536,
                  .window_rows = 256 * shared_rows,
                  .sorted = true,
                  .vector = shared_rows == 1 ? 4 : 1});
      }
    }
  }

  void check_statistics(const CompressedRows& m, const HostMatrix& bits) {
    NonzeroSums sums;
    for (int64_t row = 0; row < m.rows(); ++row) {
      add_row<HostWordBits>(bits.bits(), row, sums);
      if (row % kMostBlockRows == 0) {
        add_blocks<HostWordBits>(bits.bits(), row, sums);
      }
    }
    const RowStatistics got = statistics_of(sums);
    const RowStatistics expected = row_statistics(m, threads_);
    EXPECT_EQ(got.nonzeros, expected.nonzeros);
    EXPECT_EQ(got.mean_gap, expected.mean_gap);
    EXPECT_EQ(got.bridges, expected.bridges);
    EXPECT_EQ(got.first_bridges, expected.first_bridges);
    for (size_t i = 0; i < got.shared.size(); ++i) {
      EXPECT_EQ(got.shared[i].blocks, expected.shared[i].blocks);
    }
    EXPECT_EQ(testing::layout_by_rule(m, got, LayoutFor::speed, threads_),
              testing::layout_by_rule(m, expected, LayoutFor::speed, threads_));
  }

  ThreadPool threads_{2};
};

TEST_F(GeneralSparseDeviceLanes, AreThoseOfTheHost) {
  Random random(13);
  for (const double density : {0.0, 0.003, 0.02, 0.1, 0.5, 1.0}) {
    SCOPED_TRACE(density);
    check_layouts(testing::special_matrix(DType::f16, 71, 700, density, random).view);
  }
  check_layouts(testing::special_matrix(DType::bf16, 19, 9001, 0.02, random).view);
}

TEST_F(GeneralSparseDeviceLanes, OfAllKindsOfMatrices) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const NamedMatrix& matrix : testing::small_matrices(dtype, threads_)) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), matrix.name));
      if (matrix.w.view.element_count() > 0) {
        check_layouts(matrix.w.view);
        check_statistics(compress_rows(matrix.w.view, threads_), HostMatrix(matrix.w.view));
      }
    }
  }
}

TEST_F(GeneralSparseDeviceLanes, StatisticsAreThoseOfTheHost) {
  Random random(14);
  for (const double density : {0.0, 0.001, 0.02, 0.1, 0.5, 1.0}) {
    SCOPED_TRACE(density);
    const OwnedTensor w = testing::special_matrix(DType::f16, 45, 3001, density, random);
    check_statistics(compress_rows(w.view, threads_), HostMatrix(w.view));
  }
}

}  // namespace
}  // namespace sparsellm
