// Encodings of general_sparse, byte by byte, and what they decode to.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/host/arrange.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/general_sparse/naive_encoding.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using general_sparse::PositionCode;
using testing::NamedMatrix;
using testing::Random;
using testing::same_encoding;
using testing::same_matrix;
using PanelLayout = general_sparse::Layout;

::testing::AssertionResult same_rows(const CompressedRows& got, const CompressedRows& expected) {
  const auto same = [](auto a, auto b) {
    return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
  };
  if (got.dtype() != expected.dtype() || got.rows() != expected.rows() ||
      got.columns() != expected.columns() || got.nonzeros() != expected.nonzeros()) {
    return ::testing::AssertionFailure() << "another matrix";
  }
  bool values = false;
  visit_float(got.dtype(),
              [&]<class T>(T) { values = same(got.values<T>(), expected.values<T>()); });
  return same(got.starts(), expected.starts()) &&
                 same(got.column_indices(), expected.column_indices()) && values
             ? ::testing::AssertionSuccess()
             : ::testing::AssertionFailure() << "other nonzeros";
}

class GeneralSparseEncoding : public ::testing::Test {
 protected:
  void check(const Tensor& w, const PanelLayout& layout) {
    SCOPED_TRACE(to_text(layout));
    const CompressedRows m = compress_rows(w, threads_);
    const EncodedWeight e = general_sparse::encode(m, layout, threads_);
    EXPECT_TRUE(same_encoding(e, testing::naive_encoding(w, layout)));
    EXPECT_TRUE(same_encoding(general_sparse::encode(w, layout, threads_), e));
    EXPECT_EQ(e.bytes(),
              encoded_size(general_sparse::EncoderInput(m, layout), m.dtype(), threads_));
    ASSERT_NO_THROW(general_sparse::validate(e, threads_));
    EXPECT_TRUE(
        same_matrix(general_sparse::decode(e, threads_).view, dense_matrix(m, threads_).view));
    EXPECT_TRUE(same_rows(general_sparse::to_compressed_rows(e, threads_), m));
  }

  ThreadPool threads_{2};
};

TEST_F(GeneralSparseEncoding, OfAllLayouts) {
  Random random(1);
  const std::vector<PanelLayout> layouts = testing::layout_grid();
  const OwnedTensor w = testing::special_matrix(DType::f16, 45, 140, 0.2, random);
  for (size_t i = 0; i < layouts.size() && !HasFailure(); i += testing::kSanitized ? 5 : 1) {
    check(w.view, layouts[i]);
  }
}

TEST_F(GeneralSparseEncoding, OfAllKindsOfMatrices) {
  const std::vector<PanelLayout> layouts = testing::layout_grid();
  size_t next = 0;
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    for (const NamedMatrix& matrix : testing::small_matrices(dtype, threads_)) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), matrix.name));
      for (int i = 0; i < (testing::kSanitized ? 5 : 24) && !HasFailure(); ++i) {
        next += 31;  // layouts with all values of each field come by
        check(matrix.w.view, layouts[next % layouts.size()]);
      }
    }
  }
}

TEST_F(GeneralSparseEncoding, IsAlikeOnAnyNumberOfThreads) {
  Random random(2);
  const OwnedTensor w = testing::special_matrix(DType::f32, 700, 130, 0.1, random);
  for (const PositionCode code : {PositionCode::u8, PositionCode::i8, PositionCode::u16,
                                  PositionCode::u32, PositionCode::bits}) {
    for (const int interleave : {1, 32}) {
      const PanelLayout layout{.positions = code,
                               .shared_rows = 2,
                               .panel_columns = 64,
                               .window_rows = 64,
                               .sorted = true,
                               .interleave = interleave,
                               .vector = 2};
      ThreadPool one(1);
      ThreadPool three(3);
      const CompressedRows m = compress_rows(w.view, one);
      const EncodedWeight e = general_sparse::encode(m, layout, one);
      EXPECT_TRUE(same_encoding(general_sparse::encode(m, layout, three), e));
      EXPECT_TRUE(same_encoding(general_sparse::encode(w.view, layout, three), e));
      EXPECT_TRUE(
          same_matrix(general_sparse::decode(e, three).view, general_sparse::decode(e, one).view));
      EXPECT_TRUE(same_rows(general_sparse::to_compressed_rows(e, three), m));
    }
  }
}

TEST_F(GeneralSparseEncoding, LeavesZerosOut) {
  CompressedRows m(DType::f32, 2, 10, 4);
  std::ranges::copy(std::vector<int64_t>{0, 2, 4}, m.starts().begin());
  std::ranges::copy(std::vector<uint32_t>{1, 3, 0, 9}, m.column_indices().begin());
  std::ranges::copy(std::vector<float>{0.0f, 2.0f, 3.0f, -0.0f}, m.values<float>().begin());
  const OwnedTensor w = dense_matrix(m, threads_);
  for (const PanelLayout& layout : {PanelLayout(), PanelLayout{.positions = PositionCode::bits},
                                    PanelLayout{.shared_rows = 2}}) {
    const EncodedWeight e = general_sparse::encode(m, layout, threads_);
    EXPECT_EQ(e.nonzeros, 2);
    EXPECT_TRUE(same_encoding(e, testing::naive_encoding(w.view, layout)));
  }
}

TEST_F(GeneralSparseEncoding, RefusesInvalidLayouts) {
  const CompressedRows m = compress_rows(
      testing::ones_matrix(DType::f16, 3, 3, [](auto, auto) { return true; }).view, threads_);
  const PanelLayout layout{.vector = 3};
  EXPECT_TRUE(testing::throws_error([&] { general_sparse::encode(m, layout, threads_); },
                                    "layout: vector=3 is no power of 2 from 1 to 8"));
}

// Positions of u16 and u32 may be in any order, with zeros among them.
TEST_F(GeneralSparseEncoding, DecodesEntriesInAnyOrder) {
  Random random(5);
  const OwnedTensor w = testing::special_matrix(DType::f16, 50, 200, 0.3, random);
  const CompressedRows m = compress_rows(w.view, threads_);
  for (const PositionCode code : {PositionCode::u16, PositionCode::u32}) {
    for (const bool sorted : {false, true}) {
      const PanelLayout layout{
          .positions = code, .panel_columns = 64, .window_rows = 32, .sorted = sorted, .vector = 4};
      EncodedWeight e = general_sparse::encode(m, layout, threads_);
      const auto starts = e.part("starts").values<uint32_t>();
      auto* const values =
          static_cast<Half*>(const_cast<EncodedPart&>(e.part("values")).memory.data());
      void* const positions = const_cast<EncodedPart&>(e.part("positions")).memory.data();
      const auto swap_entries = [&](size_t a, size_t b) {
        std::swap(values[a], values[b]);
        code == PositionCode::u16
            ? std::swap(static_cast<uint16_t*>(positions)[a], static_cast<uint16_t*>(positions)[b])
            : std::swap(static_cast<uint32_t*>(positions)[a], static_cast<uint32_t*>(positions)[b]);
      };
      for (size_t slice = 0; slice + 1 < starts.size(); ++slice) {  // of one group
        const int64_t first = int64_t{starts[slice]} * 4;
        const int64_t count = int64_t{starts[slice + 1]} * 4 - first;
        for (int64_t i = 1; i < count; ++i) {
          swap_entries(static_cast<size_t>(first + i),
                       static_cast<size_t>(first + random.below(i + 1)));
        }
      }
      ASSERT_NO_THROW(general_sparse::validate(e, threads_));
      EXPECT_FALSE(same_encoding(e, general_sparse::encode(m, layout, threads_)));
      EXPECT_TRUE(same_rows(general_sparse::to_compressed_rows(e, threads_), m));
      EXPECT_TRUE(
          same_matrix(general_sparse::decode(e, threads_).view, dense_matrix(m, threads_).view));
    }
  }
}

}  // namespace
}  // namespace sparsellm
