// Slices and joins of general_sparse, which are copies where they fall at borders.

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/general_sparse/general_sparse.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/general_sparse/naive_encoding.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using general_sparse::concat_rows;
using general_sparse::slice_columns;
using general_sparse::slice_rows;
using testing::Random;
using testing::same_encoding;
using PanelLayout = general_sparse::Layout;

class GeneralSparseSlice : public ::testing::Test {
 protected:
  EncodedWeight encode(const Tensor& w, const PanelLayout& layout) {
    return general_sparse::encode(compress_rows(w, threads_), layout, threads_);
  }

  // That the slice is what encode() makes of these elements, or is none as it should be.
  void expect_slice(const std::optional<EncodedWeight>& slice, const Tensor& w,
                    const PanelLayout& layout, bool at_borders) {
    ASSERT_EQ(slice.has_value(), at_borders);
    if (slice) {
      ASSERT_NO_THROW(general_sparse::validate(*slice, threads_));
      EXPECT_TRUE(same_encoding(*slice, encode(w, layout)));
    }
  }

  ThreadPool threads_{2};
};

// Some layouts with narrow panels, of each kind.
std::vector<PanelLayout> few_layouts() {
  std::vector<PanelLayout> few;
  const std::vector<PanelLayout> all = testing::layout_grid();
  for (size_t i = 0; i < all.size(); i += testing::kSanitized ? 35 : 7) {
    few.push_back(all[i]);
  }
  return few;
}

TEST_F(GeneralSparseSlice, OfRowsAtBordersOfWindows) {
  Random random(11);
  const OwnedTensor w = testing::special_matrix(DType::bf16, 300, 150, 0.1, random);
  for (const PanelLayout& layout : few_layouts()) {
    SCOPED_TRACE(to_text(layout));
    const EncodedWeight e = encode(w.view, layout);
    const int64_t window = layout.window_rows;
    for (const Range& rows :
         {Range{0, 300}, Range{0, window}, Range{window, 300 - window}, Range{window, window},
          Range{window, 0}, Range{1, window}, Range{0, 299}, Range{window, window - 1}}) {
      if (rows.count < 0 || rows.begin + rows.count > 300) {
        continue;
      }
      const int64_t end = rows.begin + rows.count;
      expect_slice(slice_rows(e, rows), w.view.rows(rows.begin, rows.count), layout,
                   rows.begin % window == 0 && (end % window == 0 || end == 300));
    }
  }
}

TEST_F(GeneralSparseSlice, OfColumnsAtBordersOfPanels) {
  Random random(12);
  const OwnedTensor w = testing::special_matrix(DType::f32, 50, 300, 0.1, random);
  for (const PanelLayout& layout : few_layouts()) {
    SCOPED_TRACE(to_text(layout));
    const EncodedWeight e = encode(w.view, layout);
    const int64_t panel = layout.panel_columns == 0 ? 300 : layout.panel_columns;
    for (const Range& columns :
         {Range{0, 300}, Range{0, panel}, Range{panel, 300 - panel}, Range{panel, panel},
          Range{1, panel}, Range{0, 299}, Range{0, 10}, Range{2 * panel, 300 - 2 * panel}}) {
      if (columns.count < 0 || columns.begin + columns.count > 300) {
        continue;
      }
      const int64_t end = columns.begin + columns.count;
      expect_slice(
          slice_columns(e, columns), w.view.columns(columns.begin, columns.count), layout,
          columns.count > 0 && columns.begin % panel == 0 && (end % panel == 0 || end == 300));
    }
    EXPECT_EQ(slice_columns(e, {0, 0}), std::nullopt);
  }
}

TEST_F(GeneralSparseSlice, OutsideIsRefused) {
  const EncodedWeight e = encode(
      testing::ones_matrix(DType::f16, 3, 64, [](auto, auto) { return true; }).view, PanelLayout());
  EXPECT_THROW(slice_rows(e, {0, 4}), Error);
  EXPECT_THROW(slice_rows(e, {-256, 256}), Error);
  EXPECT_THROW(slice_columns(e, {64, 1}), Error);
}

TEST_F(GeneralSparseSlice, JoinsOfWholeWindows) {
  Random random(13);
  const OwnedTensor w = testing::special_matrix(DType::f16, 150, 130, 0.1, random);
  for (const PanelLayout& layout : few_layouts()) {
    SCOPED_TRACE(to_text(layout));
    const int64_t window = layout.window_rows;
    for (const std::vector<int64_t>& row_counts : std::vector<std::vector<int64_t>>{
             {150}, {window, 150 - window}, {0, window, 0, window, 150 - 2 * window}, {0, 0}}) {
      std::vector<EncodedWeight> parts;
      int64_t row = 0;
      bool fits = true;
      for (const int64_t count : row_counts) {
        fits = fits && count >= 0 && row + count <= 150;
        if (fits) {
          // Without rows any layout will do.
          parts.push_back(encode(w.view.rows(row, count),
                                 count == 0 && row > 0 ? PanelLayout{.vector = 8} : layout));
          row += count;
        }
      }
      if (!fits) {
        continue;
      }
      std::vector<const EncodedWeight*> pointers;
      pointers.reserve(parts.size());
      for (const EncodedWeight& part : parts) {
        pointers.push_back(&part);
      }
      const std::optional<EncodedWeight> joined = concat_rows(pointers);
      ASSERT_TRUE(joined);
      ASSERT_NO_THROW(general_sparse::validate(*joined, threads_));
      EXPECT_TRUE(same_encoding(*joined, encode(w.view.rows(0, row), layout)));
    }
  }
}

TEST_F(GeneralSparseSlice, NoJoinsOfOtherLayoutsAndPiecesOfWindows) {
  Random random(14);
  const OwnedTensor w = testing::special_matrix(DType::f16, 64, 100, 0.1, random);
  const PanelLayout layout{.window_rows = 32};
  const EncodedWeight whole = encode(w.view.rows(0, 32), layout);
  const EncodedWeight piece = encode(w.view.rows(0, 31), layout);
  const EncodedWeight other = encode(w.view.rows(0, 32), {.window_rows = 32, .vector = 2});
  const EncodedWeight narrow = encode(w.view.columns(0, 99), layout);
  const auto join = [](const EncodedWeight& a, const EncodedWeight& b) {
    const std::vector<const EncodedWeight*> parts{&a, &b};
    return concat_rows(parts);
  };
  EXPECT_TRUE(join(whole, piece));
  EXPECT_FALSE(join(piece, whole));
  EXPECT_FALSE(join(whole, other));
  EXPECT_TRUE(testing::throws_error([&] { join(whole, narrow); },
                                    "a weight of 99 columns of f16 cannot be joined"));
}

}  // namespace
}  // namespace sparsellm
