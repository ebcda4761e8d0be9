// What a piece of a tensor looks like to the kernels that send it.

#include "kernels/base/comm_stream.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class CommStreamTest : public ::testing::Test {
 protected:
  Tensor tensor(int64_t offset, DType dtype, std::initializer_list<int64_t> sizes) {
    return {memory_ + offset, dtype, sizes, Device{}};
  }
  int64_t offset_of(const CommStream& stream) const { return stream.row - memory_; }

  alignas(64) std::byte memory_[4096] = {};
};

TEST_F(CommStreamTest, AContiguousTensorIsOneRow) {
  const CommStream stream = CommStream::of(tensor(0, DType::f16, {3, 35}), 16, 48);
  EXPECT_TRUE(stream.one_row);
  EXPECT_EQ(offset_of(stream), 16);
  EXPECT_EQ(stream.bytes, 48u);
  EXPECT_EQ(stream.skip, 0u);
  EXPECT_TRUE(stream.vectors);
  EXPECT_EQ(stream.element, 2u);
}

TEST_F(CommStreamTest, APieceMayBeginInTheMiddleOfARow) {
  const Tensor x = tensor(0, DType::f32, {10, 64}).columns(4, 12);  // 48 bytes of 256
  const CommStream stream = CommStream::of(x, 5 * 48 + 16, 64);
  EXPECT_FALSE(stream.one_row);
  EXPECT_EQ(offset_of(stream), 5 * 256 + 16);
  EXPECT_EQ(stream.skip, 16u);
  EXPECT_EQ(stream.row_bytes, 48u);
  EXPECT_EQ(stream.stride, 256);
  EXPECT_TRUE(stream.vectors);
  EXPECT_EQ(stream.element, 4u);
}

TEST_F(CommStreamTest, VectorsNeedAlignmentOfAllThatAddressesAreMadeOf) {
  EXPECT_FALSE(CommStream::of(tensor(8, DType::f32, {1, 64}), 0, 256).vectors);
  EXPECT_FALSE(CommStream::of(tensor(0, DType::f32, {4, 64}).columns(1, 8), 0, 128).vectors);
  EXPECT_FALSE(CommStream::of(tensor(0, DType::f32, {4, 64}).columns(0, 9), 0, 144).vectors);
  EXPECT_FALSE(CommStream::of(tensor(0, DType::f32, {4, 63}).columns(0, 8), 0, 128).vectors);
  EXPECT_TRUE(CommStream::of(tensor(0, DType::f32, {4, 64}).columns(0, 8), 0, 128).vectors);
  EXPECT_EQ(CommStream::of(tensor(3, DType::u8, {1, 64}), 0, 64).element, 1u);
}

TEST_F(CommStreamTest, NothingIsNothing) {
  const Tensor x = tensor(0, DType::f32, {4, 64});
  EXPECT_EQ(CommStream::of(x.columns(7, 0), 0, 0).bytes, 0u);
  EXPECT_EQ(CommStream::of(x, x.bytes(), 0).bytes, 0u);
}

TEST_F(CommStreamTest, ElementsHaveToBeAligned) {
  EXPECT_TRUE(throws_error(
      [&] {
        CommStream::of(tensor(2, DType::f32, {1, 4}), 0, 16);
      },
      "f32 that are not aligned"));
}

}  // namespace
}  // namespace sparsellm
