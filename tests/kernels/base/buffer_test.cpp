#include "kernels/base/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

static_assert(!std::is_copy_constructible_v<Buffer>);
static_assert(std::is_nothrow_move_constructible_v<Buffer>);
static_assert(std::is_nothrow_move_assignable_v<Buffer>);

TEST(Buffer, IsAlignedAndWritable) {
  for (int64_t bytes : {1, 63, 64, 257, 100000}) {
    const Buffer buffer({}, bytes, "a test");
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
    std::memset(buffer.data(), 0x5a, static_cast<size_t>(bytes));
  }
}

TEST(Buffer, OfNoBytesHasNoMemory) {
  EXPECT_EQ(Buffer({}, 0, "a test").data(), nullptr);
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer().bytes(), 0);
}

TEST(Buffer, MovesItsMemory) {
  Buffer a({}, 100, "a test");
  void* data = a.data();
  Buffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.bytes(), 100);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): is empty
  EXPECT_EQ(a.bytes(), 0);
  Buffer c({}, 50, "a test");
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.bytes(), 100);
  Buffer& self = c;
  c = std::move(self);
  EXPECT_EQ(c.data(), data);
}

TEST(Buffer, RefusalsNameThePurpose) {
  EXPECT_TRUE(throws_error([] { Buffer({}, -1, "the KV cache"); }, "the KV cache"));
  // 2^60 bytes are more than any address space has.
  EXPECT_TRUE(throws_error([] { Buffer({}, int64_t{1} << 60, "the KV cache"); },
                           "out of memory on cpu: the KV cache needs 1073741824.00 GiB"));
  EXPECT_TRUE(throws_error([] { Buffer({}, std::numeric_limits<int64_t>::max(), "the KV cache"); },
                           "out of memory on cpu: the KV cache needs"));
}

TEST(AllocateTensor, IsContiguous) {
  const OwnedTensor x = allocate_tensor({}, DType::bf16, {3, 5}, "a test");
  EXPECT_EQ(x.buffer.bytes(), 30);
  EXPECT_EQ(x.view.raw(), x.buffer.data());
  EXPECT_EQ(x.view.shape_string(), "[3, 5]");
  EXPECT_EQ(x.view.dtype(), DType::bf16);
  EXPECT_TRUE(x.view.contiguous());
  EXPECT_EQ(allocate_tensor({}, DType::f32, {0, 5}, "a test").view.element_count(), 0);
}

TEST(AllocateTensor, RefusesImpossibleSizes) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  EXPECT_TRUE(throws_error(
      [] {
        allocate_tensor({}, DType::f32, {kHuge, kHuge}, "a test");
      },
      "does not fit"));
  EXPECT_TRUE(throws_error(
      [] {
        allocate_tensor({}, DType::f32, {0, kHuge, kHuge}, "a test");
      },
      "does not fit"));
  EXPECT_THROW(allocate_tensor({}, DType::f32, {-1, 4}, "a test"), Error);
  EXPECT_THROW(allocate_tensor({}, DType::f32, {-1, -4}, "a test"), Error);
}

}  // namespace
}  // namespace sparsellm
