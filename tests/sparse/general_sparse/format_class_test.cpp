// The class of the format: what it encodes, checks and loads on the host.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/workspace.h"
#include "sparse/cpu/compressed_rows_weight.h"
#include "sparse/cpu/panels/panel_weight.h"
#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/matrices/random_matrix.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/general_sparse/naive_encoding.h"
#include "tests/testing/compare.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::GuardedTensor;
using testing::Random;
using testing::same_encoding;
using testing::same_matrix;
using testing::throws_error;
using PositionCode = general_sparse::PositionCode;
using PanelLayout = general_sparse::Layout;

constexpr Device kCuda{.kind = Device::Kind::cuda};

class GeneralSparseClass : public ::testing::Test {
 protected:
  OwnedTensor matrix(DType dtype, int64_t rows, int64_t columns, double density) {
    return testing::special_matrix(dtype, rows, columns, density, random_);
  }
  // Without NaN and infinities.
  EncodedWeight encoded(DType dtype, int64_t rows, int64_t columns, int64_t nonzeros) {
    const CompressedRows of_f32 =
        random_matrix({.rows = rows, .columns = columns, .nonzeros = nonzeros}, threads_);
    const OwnedTensor wide = dense_matrix(of_f32, threads_);
    OwnedTensor w = allocate_tensor({}, dtype, {rows, columns}, "a test");
    visit_float(dtype, [&]<class T>(T) {
      for (int64_t i = 0; i < w.view.element_count(); ++i) {
        w.view.data<T>()[i] = from_float<T>(wide.view.data<float>()[i]);
      }
    });
    return format_.encode(w.view, threads_);
  }

  // Of an encoding of w with more rows than a window and one panel.
  void check_slices(const Tensor& w, const EncodedWeight& e) {
    const int64_t window = general_sparse::Parts(e).layout.window_rows;
    ASSERT_LT(window, 700);
    const auto upper = format_.slice(e, Axis::rows, {.begin = 0, .count = window});
    const auto lower = format_.slice(e, Axis::rows, {.begin = window, .count = 700 - window});
    ASSERT_TRUE(upper && lower);
    EXPECT_TRUE(same_matrix(
        format_.decode(*lower, threads_).view,
        dense_matrix(compress_rows(w.rows(window, 700 - window), threads_), threads_).view));
    const std::vector<const EncodedWeight*> parts{&*upper, &*lower};
    const auto joined = format_.concat_rows(parts);
    ASSERT_TRUE(joined);
    EXPECT_TRUE(same_encoding(*joined, e));
    EXPECT_FALSE(format_.slice(e, Axis::rows, {.begin = 1, .count = window}));
    EXPECT_TRUE(format_.slice(e, Axis::columns, {.begin = 0, .count = 500}));
    EXPECT_FALSE(format_.slice(e, Axis::columns, {.begin = 0, .count = 499}));
  }

  const WeightFormat& format_ = general_sparse_format();
  ThreadPool threads_{2};
  Random random_{71};
};

TEST_F(GeneralSparseClass, SaysWhatItHolds) {
  EXPECT_EQ(format_.name(), "general_sparse");
  EXPECT_EQ(format_.version(), 1);
  EXPECT_TRUE(format_.runs_on({}));
  EXPECT_TRUE(format_.runs_on(kCuda));
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    EXPECT_TRUE(format_.holds(dtype));
    EXPECT_EQ(format_.why_not(matrix(dtype, 3, 5, 1.0).view), "");
  }
  EXPECT_FALSE(format_.holds(DType::i32));
  const OwnedTensor integers = allocate_tensor({}, DType::i32, {3, 5}, "a test");
  EXPECT_EQ(format_.why_not(integers.view),
            "general_sparse holds f16, bf16 and f32 values, not i32");
  EXPECT_TRUE(throws_error([&] { format_.encode(integers.view, threads_); }, "not i32"));
}

TEST_F(GeneralSparseClass, RefusesTooManyColumns) {
  float element = 1.0f;  // no others are looked at
  const Tensor wide(&element, DType::f32, {1, int64_t{1} << 31}, {});
  EXPECT_NE(format_.why_not(wide), "");
}

TEST_F(GeneralSparseClass, EncodesInTheLayoutOfTheRule) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    for (const double density : {0.0, 0.02, 0.4, 1.0}) {
      const OwnedTensor w = matrix(dtype, 77, 333, density);
      const CompressedRows m = compress_rows(w.view, threads_);
      for (const LayoutFor goal : {LayoutFor::speed, LayoutFor::size}) {
        const EncodedWeight e = format_.encode(w.view, {.goal = goal}, threads_);
        const PanelLayout layout =
            testing::layout_by_rule(m, row_statistics(m, threads_), goal, threads_);
        EXPECT_TRUE(same_encoding(e, general_sparse::encode(m, layout, threads_)));
        ASSERT_NO_THROW(format_.validate(e));
        EXPECT_EQ(e.nonzeros, m.nonzeros());
        EXPECT_TRUE(same_matrix(format_.decode(e, threads_).view, dense_matrix(m, threads_).view));
      }
    }
  }
}

TEST_F(GeneralSparseClass, EncodesInTheLayoutThatItIsTold) {
  const OwnedTensor w = matrix(DType::bf16, 40, 140, 0.2);
  for (const PanelLayout& layout : testing::layout_grid()) {
    const std::string text = to_text(layout);
    ASSERT_NO_THROW(format_.check_layout(text));
    const EncodedWeight e =
        format_.encode(w.view, {.goal = LayoutFor::size, .layout = text}, threads_);
    EXPECT_TRUE(same_encoding(e, general_sparse::encode(w.view, layout, threads_))) << text;
  }
}

TEST_F(GeneralSparseClass, LoadsWhatItEncodesInALayout) {
  const OwnedTensor w = matrix(DType::f16, 77, 333, 0.2);
  const OwnedTensor expected =
      dense_matrix(compress_rows(w.view, threads_), threads_);  // without negative zeros
  const std::string text = to_text(PanelLayout{.positions = PositionCode::bits});
  const auto weight = format_.encode_on_device(w.view, {.layout = text}, {.threads = threads_});
  Workspace workspace({}, 0);
  ExecContext exec{.device = {}, .workspace = workspace, .threads = threads_};
  const GuardedTensor dense(DType::f16, {77, 333});
  weight->expand({.begin = 0, .count = 77}, dense.view(), exec);
  EXPECT_TRUE(testing::same_bits(dense.view(), expected.view));
}

TEST_F(GeneralSparseClass, RefusesTextsOfNoLayout) {
  const OwnedTensor w = matrix(DType::f16, 3, 5, 1.0);
  const std::string good = to_text(PanelLayout());
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"fastest", "layout: expected 'positions=', found 'fastest'"},
           {" ", "layout: expected 'positions=', found ''"},
           {good + " ", "layout: nothing should follow, but ' ' does"},
           {good + "\n", "layout: vector is '1?'"},
           {to_text(PanelLayout{.vector = 3}), "layout: vector=3 is no power of 2 from 1 to 8"},
           {std::string(1000, 'x'), "xxxxx..."}}) {
    EXPECT_TRUE(throws_error([&, &text = text] { format_.check_layout(text); }, message)) << text;
    EXPECT_TRUE(throws_error(
        [&, &text = text] { format_.encode(w.view, {.layout = text}, threads_); }, message));
    EXPECT_TRUE(throws_error(
        [&, &text = text] {
          format_.encode_on_device(w.view, {.layout = text}, {.threads = threads_});
        },
        message));
  }
}

TEST_F(GeneralSparseClass, ValidatesHeaders) {
  const EncodedWeight good = encoded(DType::f16, 20, 50, 100);
  const auto refuses = [&](auto&& damage, const char* text) {
    EncodedWeight e = testing::copy_of(good);
    damage(e);
    return throws_error([&] { format_.validate(e); }, text);
  };
  EXPECT_TRUE(refuses([](EncodedWeight& e) { e.format = "tca_bme"; }, "tca_bme"));
  EXPECT_TRUE(refuses([](EncodedWeight& e) { e.version = 2; }, "version 2"));
  EXPECT_TRUE(refuses([](EncodedWeight& e) { e.rows = -1; }, "-1 x 50"));
  EXPECT_TRUE(refuses([](EncodedWeight& e) { e.rows = INT64_MAX; }, "elements"));
  EXPECT_TRUE(refuses([](EncodedWeight& e) { e.nonzeros = 1001; }, "1001 nonzeros"));
  EXPECT_TRUE(refuses([](EncodedWeight& e) { e.parts.pop_back(); }, "values"));
}

TEST_F(GeneralSparseClass, HasTheFormulaOfCompressedRows) {
  const EncodedWeight e = encoded(DType::f16, 20, 50, 100);
  EXPECT_EQ(format_.formula_bytes(e), e.nonzeros * (2 + 4) + 21 * 4);
  const EncodedWeight f32 = encoded(DType::f32, 20, 50, 100);
  EXPECT_EQ(format_.formula_bytes(f32), f32.nonzeros * (4 + 4) + 21 * 4);
}

TEST_F(GeneralSparseClass, ExpectsTheBytesOfUniformZeros) {
  constexpr double kMostDifference = 0.04;
  struct Case {
    DType dtype;
    int64_t rows;
    int64_t columns;
    double density;
  };
  for (const auto& [dtype, rows, columns, density] :
       {Case{DType::f16, 256, 512, 0.9}, Case{DType::f16, 350, 500, 0.3},
        Case{DType::f32, 256, 512, 0.2}, Case{DType::f16, 256, 1024, 0.1},
        Case{DType::f16, 256, 2048, 0.02}, Case{DType::f32, 300, 5000, 0.01},
        Case{DType::bf16, 40, 9000, 0.05}, Case{DType::f16, 500, 1000, 0.002}}) {
    const EncodedWeight e = encoded(
        dtype, rows, columns, static_cast<int64_t>(density * static_cast<double>(rows * columns)));
    const auto expected = static_cast<double>(format_.expected_bytes(e));
    EXPECT_NEAR(expected / static_cast<double>(e.bytes()), 1.0, kMostDifference)
        << name_of(dtype) << ", " << rows << " x " << columns << ", density " << density << ": "
        << e.bytes() << " bytes, expected " << expected << ", layout "
        << to_text(general_sparse::Parts(e).layout);
  }
}

TEST_F(GeneralSparseClass, ExpectsSomethingOfAnyHeader) {
  constexpr int64_t kMaxSize = CompressedRows::kMaxSize;
  for (const int64_t rows : {int64_t{0}, int64_t{1}, kMaxSize, kMaxSize + 1}) {
    for (const int64_t columns : {int64_t{0}, int64_t{1}, int64_t{1000000}}) {
      for (const int64_t nonzeros : {int64_t{0}, rows * columns}) {
        const EncodedWeight e{.format = "general_sparse",
                              .version = 1,
                              .dtype = DType::f32,
                              .rows = rows,
                              .columns = columns,
                              .nonzeros = nonzeros,
                              .parts = {}};
        EXPECT_GT(format_.expected_bytes(e), 0);
        EXPECT_GT(format_.bytes_on_cpu(e), 0);
      }
    }
  }
}

TEST_F(GeneralSparseClass, LoadsPanelsOfManyNonzeros) {
  struct Case {
    DType dtype;
    int64_t nonzeros;  // of 80 x 512
    bool panels;
  };
  for (const auto& [dtype, nonzeros, panels] :
       {Case{DType::f16, 400, false}, Case{DType::f16, 3000, false}, Case{DType::f16, 6000, true},
        Case{DType::bf16, 400, false}, Case{DType::bf16, 20000, true}, Case{DType::f32, 400, false},
        Case{DType::f32, 20000, false}}) {
    EncodedWeight e = encoded(dtype, 80, 512, nonzeros);
    const OwnedTensor w = format_.decode(e, threads_);
    const int64_t bytes = format_.bytes_on_cpu(e);
    const int64_t workspace_bytes = format_.workspace_bytes(e, {}, 7, Sums::fastest);
    EXPECT_EQ(e.nonzeros, compress_rows(w.view, threads_).nonzeros());
    const auto weight = format_.load(std::move(e), {.threads = threads_});
    EXPECT_EQ(dynamic_cast<const PanelWeight*>(weight.get()) != nullptr, panels) << nonzeros;
    EXPECT_EQ(dynamic_cast<const CompressedRowsWeight*>(weight.get()) != nullptr, !panels);
    EXPECT_EQ(weight->format(), "general_sparse");
    EXPECT_EQ(weight->bytes(), bytes);
    EXPECT_EQ(weight->workspace_bytes(7, Sums::fastest), workspace_bytes);
    Workspace workspace({}, 0);
    ExecContext exec{.device = {}, .workspace = workspace, .threads = threads_};
    const GuardedTensor dense(dtype, {80, 512});
    weight->expand({.begin = 0, .count = 80}, dense.view(), exec);
    EXPECT_TRUE(testing::same_bits(dense.view(), w.view));
  }
}

TEST_F(GeneralSparseClass, EncodesOnTheCpuAsADevice) {
  const OwnedTensor w = matrix(DType::f32, 30, 40, 0.2);
  const auto weight = format_.encode_on_device(w.view, {.threads = threads_});
  Workspace workspace({}, 0);
  ExecContext exec{.device = {}, .workspace = workspace, .threads = threads_};
  const GuardedTensor dense(DType::f32, {30, 40});
  weight->expand({.begin = 0, .count = 30}, dense.view(), exec);
  EXPECT_TRUE(testing::same_bits(dense.view(),
                                 dense_matrix(compress_rows(w.view, threads_), threads_).view));
}

TEST_F(GeneralSparseClass, SlicesAndJoinsInTheLayoutOfTheWhole) {
  const OwnedTensor w = matrix(DType::f16, 700, 500, 0.1);
  for (const std::string& text :
       {std::string(), to_text(PanelLayout{.positions = PositionCode::u8, .window_rows = 128})}) {
    check_slices(w.view, format_.encode(w.view, {.layout = text}, threads_));
  }
}

}  // namespace
}  // namespace sparsellm
