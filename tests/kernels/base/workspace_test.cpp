#include "kernels/base/workspace.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr int64_t kHuge = int64_t{1} << 40;

TEST(Workspace, TensorsAreAlignedAndApart) {
  Workspace arena({}, 4096);
  auto scratch = arena.scope();
  const Tensor a = scratch.tensor(DType::f16, {3, 7});
  const Tensor b = scratch.tensor(DType::f32, {64});
  const Tensor c = scratch.tensor(DType::i32, {1, 1, 1, 1});
  for (const Tensor& x : {a, b, c}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.raw()) % 256, 0u);
    EXPECT_TRUE(x.contiguous());
    std::memset(x.raw(), 0x11, static_cast<size_t>(x.bytes()));
  }
  EXPECT_EQ(static_cast<std::byte*>(b.raw()) - static_cast<std::byte*>(a.raw()), 256);
  EXPECT_EQ(static_cast<std::byte*>(c.raw()) - static_cast<std::byte*>(b.raw()), 256);
  EXPECT_EQ(arena.peak_bytes(), 768);
}

TEST(Workspace, ScopesNestAndGiveTheSameAddressesAgain) {
  Workspace arena({}, 4096);
  auto outer = arena.scope();
  const Tensor a = outer.tensor(DType::f32, {10});
  void* inner_address = nullptr;
  for (int i = 0; i < 3; ++i) {
    auto inner = arena.scope();
    const Tensor b = inner.tensor(DType::f32, {100});
    EXPECT_NE(b.raw(), a.raw());
    if (i > 0) {
      EXPECT_EQ(b.raw(), inner_address);
    }
    inner_address = b.raw();
  }
  EXPECT_EQ(outer.tensor(DType::f32, {1}).raw(), inner_address);
  EXPECT_EQ(arena.peak_bytes(), 256 + 512);
  EXPECT_EQ(arena.bytes(), 4096);
}

TEST(Workspace, LikeIsContiguousEvenForASlice) {
  Workspace arena({}, 4096);
  auto scratch = arena.scope();
  const Tensor x = scratch.tensor(DType::bf16, {4, 20});
  const Tensor y = scratch.like(x.columns(3, 5));
  EXPECT_EQ(y.shape_string(), "[4, 5]");
  EXPECT_EQ(y.dtype(), DType::bf16);
  EXPECT_TRUE(y.contiguous());
}

TEST(Workspace, RefusesWhatDoesNotFitAndStaysUsable) {
  Workspace arena({}, 1024);
  auto scratch = arena.scope();
  scratch.tensor(DType::f32, {65});  // takes 512
  EXPECT_TRUE(throws_error([&] { scratch.tensor(DType::f32, {129}); },
                           "the workspace of 1024 bytes is too small: 512 in use, 768 requested"));
  EXPECT_NO_THROW(scratch.tensor(DType::f32, {128}));
  EXPECT_TRUE(throws_error([&] { scratch.tensor(DType::f32, {1}); }, "1024 in use"));
  EXPECT_TRUE(throws_error([&] { scratch.tensor(DType::f32, {kHuge, kHuge}); }, "does not fit"));
  EXPECT_TRUE(throws_error([&] { scratch.tensor(DType::f32, {-1000}); }, "negative size -1000"));
  EXPECT_EQ(scratch.tensor(DType::f32, {0, 3}).element_count(), 0);
  EXPECT_EQ(arena.peak_bytes(), 1024);
}

TEST(Workspace, OfNoBytes) {
  Workspace arena({}, 0);
  auto scratch = arena.scope();
  EXPECT_TRUE(throws_error([&] { scratch.tensor(DType::f32, {1}); }, "too small"));
}

TEST(Workspace, TensorBytesAreWhatATensorTakes) {
  EXPECT_EQ(Workspace::tensor_bytes(DType::f32, {1}), 256);
  EXPECT_EQ(Workspace::tensor_bytes(DType::f16, {128}), 256);
  EXPECT_EQ(Workspace::tensor_bytes(DType::f16, {129}), 512);
  EXPECT_EQ(Workspace::tensor_bytes(DType::f32, {7, 0}), 0);
  EXPECT_TRUE(throws_error(
      [] {
        Workspace::tensor_bytes(DType::f32, {kHuge, kHuge});
      },
      "does not fit"));
}

}  // namespace
}  // namespace sparsellm
