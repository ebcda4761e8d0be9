#include "kernels/base/tensor.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(Tensor, DefaultIsEmpty) {
  const Tensor x;
  EXPECT_TRUE(x.empty());
  EXPECT_EQ(x.rank(), 0);
  EXPECT_EQ(x.element_count(), 0);
  EXPECT_EQ(x.bytes(), 0);
  EXPECT_EQ(x.shape_string(), "[]");
}

TEST(Tensor, SizesOfAllRanks) {
  float memory[120] = {};
  const Tensor a(memory, DType::f32, {5}, {});
  EXPECT_EQ(a.rank(), 1);
  EXPECT_EQ(a.row_size(), 1);
  EXPECT_EQ(a.row_stride(), 1);
  EXPECT_EQ(a.element_count(), 5);
  EXPECT_TRUE(a.contiguous());
  EXPECT_FALSE(a.empty());
  const Tensor b(memory, DType::f16, {3, 7}, {});
  EXPECT_EQ(b.row_size(), 7);
  EXPECT_EQ(b.bytes(), 42);
  EXPECT_EQ(b.shape_string(), "[3, 7]");
  const Tensor c(memory, DType::f32, {2, 3, 4, 5}, {});
  EXPECT_EQ(c.rank(), 4);
  EXPECT_EQ(c.size(0), 2);
  EXPECT_EQ(c.size(3), 5);
  EXPECT_EQ(c.row_size(), 60);
  EXPECT_EQ(c.row_stride(), 60);
  EXPECT_EQ(c.bytes(), 480);
  EXPECT_EQ(c.row<float>(1), memory + 60);
  EXPECT_EQ(c.shape_string(), "[2, 3, 4, 5]");
}

TEST(Tensor, RefusesImpossibleSizes) {
  EXPECT_TRUE(throws_error([] { Tensor(nullptr, DType::f32, {}, {}); }, "1 to 4 dimensions"));
  EXPECT_TRUE(throws_error(
      [] {
        Tensor(nullptr, DType::f32, {1, 1, 1, 1, 1}, {});
      },
      "dimensions, not 5"));
  EXPECT_TRUE(throws_error([] { Tensor(nullptr, DType::f32, {3, -1}, {}); }, "negative size -1"));
  EXPECT_TRUE(throws_error([] { Tensor(nullptr, DType::f32, {kMax}, {}); }, "does not fit"));
  EXPECT_TRUE(throws_error([] { Tensor(nullptr, DType::f16, {kMax, kMax}, {}); }, "does not fit"));
  // No product of any of the sizes may overflow, though the tensor as a whole has no element.
  EXPECT_TRUE(throws_error(
      [] {
        Tensor(nullptr, DType::f32, {0, kMax, kMax}, {});
      },
      "does not fit"));
}

TEST(Tensor, ElementsAreUsedAsTheirOwnTypeOnly) {
  int32_t memory[4] = {};
  const Tensor x(memory, DType::i32, {4}, {});
  EXPECT_EQ(x.data<int32_t>(), memory);
  EXPECT_TRUE(throws_error([&] { x.data<float>(); }, "dtype i32 is used as f32"));
  EXPECT_TRUE(throws_error([&] { x.data<Half>(); }, "f16"));
  EXPECT_TRUE(throws_error([&] { x.row<BFloat16>(0); }, "bf16"));
}

TEST(Tensor, RowsAndColumnsViewTheSameMemory) {
  std::vector<float> memory(40);
  const Tensor x(memory.data(), DType::f32, {5, 8}, {});
  const Tensor rows = x.rows(1, 3);
  EXPECT_EQ(rows.data<float>(), memory.data() + 8);
  EXPECT_EQ(rows.shape_string(), "[3, 8]");
  EXPECT_TRUE(rows.contiguous());
  const Tensor columns = x.columns(2, 4);
  EXPECT_EQ(columns.data<float>(), memory.data() + 2);
  EXPECT_EQ(columns.shape_string(), "[5, 4]");
  EXPECT_EQ(columns.row_stride(), 8);
  EXPECT_EQ(columns.element_count(), 20);
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(columns.row<float>(3), memory.data() + 26);
  const Tensor both = columns.rows(4, 1).columns(1, 2);
  EXPECT_EQ(both.data<float>(), memory.data() + 35);
  EXPECT_TRUE(both.contiguous());  // a single row
  EXPECT_EQ(x.rows(5, 0).element_count(), 0);
  EXPECT_EQ(x.columns(8, 0).element_count(), 0);
}

TEST(Tensor, ColumnsOf16BitElements) {
  std::vector<Half> memory(12);
  const Tensor x(memory.data(), DType::f16, {3, 4}, {});
  EXPECT_EQ(x.columns(1, 2).row<Half>(2), memory.data() + 9);
}

TEST(Tensor, RowsOfHigherRanks) {
  std::vector<float> memory(48);
  const Tensor x(memory.data(), DType::f32, {4, 3, 2, 2}, {});
  const Tensor last = x.rows(3, 1);
  EXPECT_EQ(last.data<float>(), memory.data() + 36);
  EXPECT_EQ(last.shape_string(), "[1, 3, 2, 2]");
}

TEST(Tensor, SlicesStayInside) {
  float memory[40] = {};
  const Tensor x(memory, DType::f32, {5, 8}, {});
  struct Case {
    int64_t begin;
    int64_t count;
  };
  for (const Case& c : {Case{0, 9}, Case{-1, 2}, Case{0, -1}, Case{9, 0}, Case{1, 8}, Case{1, kMax},
                        Case{kMax, 1}, Case{kMax, kMax}}) {
    EXPECT_TRUE(throws_error([&] { x.rows(c.begin, c.count); },
                             fmt::format("{} rows from row {}", c.count, c.begin)));
    EXPECT_TRUE(throws_error([&] { x.columns(c.begin, c.count); },
                             fmt::format("{} columns from column {}", c.count, c.begin)));
  }
  const Tensor vector(memory, DType::f32, {8}, {});
  EXPECT_TRUE(throws_error([&] { vector.columns(0, 1); }, "of a tensor [8]"));
  EXPECT_TRUE(throws_error([] { Tensor().rows(0, 1); }, "with 0 rows"));
}

TEST(Tensor, KeepsItsDevice) {
  float memory[8] = {};
  const Device gpu{Device::Kind::cuda, 3};
  const Tensor x(memory, DType::f32, {2, 4}, gpu);
  EXPECT_EQ(x.rows(1, 1).device(), gpu);
  EXPECT_EQ(x.columns(1, 1).device(), gpu);
}

}  // namespace
}  // namespace sparsellm
