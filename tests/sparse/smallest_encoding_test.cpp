#include "sparse/smallest_encoding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sparse/dense/dense.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/tca_bme.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/tensor_values.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class SmallestEncoding : public ::testing::Test {
 protected:
  std::optional<EncodedWeight> of_bitmaps(const Tensor& w) {
    const WeightFormat* const formats[] = {&dense_format(), &tca_bme_format()};
    return encode_smallest(w, formats, threads_);
  }
  std::optional<EncodedWeight> of_all(const Tensor& w) {
    return encode_smallest(w, smallest_formats(), threads_);
  }
  ThreadPool threads_{2};
};

std::vector<WeightSpec> specs() {
  std::vector<WeightSpec> specs;
  for (const auto& [rows, columns] :
       {std::pair{512, 512}, {64, 64}, {63, 192}, {1, 1000}, {300, 40}, {1, 1}, {0, 7}}) {
    for (Pattern pattern : kPatterns) {
      for (double density : {0.0, 0.003, 0.02, 0.1, 0.21, 0.35, 0.36, 0.5, 0.8, 0.92, 1.0}) {
        specs.push_back({.dtype = DType::bf16,
                         .rows = rows,
                         .columns = columns,
                         .density = density,
                         .pattern = pattern});
      }
    }
  }
  return specs;
}

TEST_F(SmallestEncoding, HasTheFewestBytesOfAllLayouts) {
  for (const WeightSpec& spec : specs()) {
    SCOPED_TRACE(fmt::format("[{}, {}], density {}, {}", spec.rows, spec.columns, spec.density,
                             name_of(spec.pattern)));
    const OwnedTensor w = make_weight(spec, 101);
    for (const bool all : {false, true}) {
      const std::optional<EncodedWeight> e = all ? of_all(w.view) : of_bitmaps(w.view);
      const int64_t bytes = e ? e->bytes() : w.view.bytes();
      EXPECT_LE(bytes, w.view.bytes());
      for (const WeightFormat* format : smallest_formats()) {
        if (all || format == &tca_bme_format()) {
          for (LayoutFor goal : {LayoutFor::speed, LayoutFor::size}) {
            EXPECT_LE(bytes, format->encode(w.view, {.goal = goal}, threads_).bytes())
                << format->name();
          }
        }
      }
      if (e) {
        const WeightFormat& format = weight_format(e->format);
        ASSERT_NO_THROW(format.validate(*e));
        EXPECT_TRUE(all || &format == &tca_bme_format());
        const OwnedTensor decoded = format.decode(*e, threads_);
        const OwnedTensor exact = testing::copy_of(w.view);
        clear_negative_zeros(decoded.view);
        clear_negative_zeros(exact.view);
        EXPECT_TRUE(same_matrix(decoded.view, exact.view));
      }
    }
  }
}

// What a kernel likes best decides nothing: there, with few nonzeros, are pairs.
TEST_F(SmallestEncoding, IsNotInTheFastestLayout) {
  const OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = 512, .columns = 512, .density = 0.1}, 101);
  const std::optional<EncodedWeight> e = of_bitmaps(w.view);
  ASSERT_TRUE(e.has_value());
  EXPECT_EQ(e->format, "tca_bme");
  EXPECT_LT(5 * e->bytes(), 4 * tca_bme_format().encode(w.view, threads_).bytes());
}

TEST_F(SmallestEncoding, IsOneOfTheFormatsThatAreGiven) {
  const OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = 512, .columns = 512, .density = 0.02}, 101);
  EXPECT_EQ(of_bitmaps(w.view)->format, "tca_bme");
  EXPECT_EQ(of_all(w.view)->format, "tiled_csl");
  EXPECT_LT(of_all(w.view)->bytes(), of_bitmaps(w.view)->bytes());
}

TEST_F(SmallestEncoding, HasTheRecordsThatAreAskedFor) {
  const OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = 512, .columns = 512, .density = 0.1}, 101);
  const WeightFormat* const only[] = {&tca_bme_format()};
  for (const char* records : {"speed", "size"}) {
    const std::optional<EncodedWeight> e = encode_smallest(w.view, only, threads_, records);
    ASSERT_TRUE(e.has_value());
    EXPECT_TRUE(same_encoding(*e, tca_bme_format().encode(w.view, {.layout = records}, threads_)));
  }
}

TEST_F(SmallestEncoding, IsInAFormatThatTakesTheMatrix) {
  const OwnedTensor f32 = allocate_tensor({}, DType::f32, {64, 64}, "a test");
  std::fill_n(f32.view.data<float>(), 64 * 64, 0.0f);
  EXPECT_FALSE(of_all(f32.view).has_value());
}

TEST(Registry, CandidatesOfSmallestRunOnAllDevices) {
  const std::vector<const WeightFormat*> candidates = smallest_formats();
  EXPECT_EQ(candidates.front(), &dense_format());
  EXPECT_NE(std::ranges::find(candidates, &tca_bme_format()), candidates.end());
  EXPECT_NE(std::ranges::find(candidates, &tiled_csl_format()), candidates.end());
  for (const WeightFormat* format : candidates) {
    EXPECT_TRUE(format->runs_on({.kind = Device::Kind::cpu}));
    EXPECT_TRUE(format->runs_on({.kind = Device::Kind::cuda}));
  }
  for (const WeightFormat* format : weight_formats()) {
    EXPECT_TRUE(format->runs_on({.kind = Device::Kind::cpu})) << format->name();
    for (DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      const OwnedTensor w = allocate_tensor({}, dtype, {1, 1}, "a test");
      EXPECT_EQ(format->holds(dtype), format->why_not(w.view).empty()) << format->name();
    }
  }
}

// tca_bme alone holds them, and takes fewer bytes than dense weights without a single zero.
TEST_F(SmallestEncoding, NarrowValuesAreInOneFormat) {
  for (const double density : {0.01, 0.5, 1.0}) {
    const OwnedTensor w =
        make_weight({.dtype = DType::f16, .rows = 256, .columns = 512, .density = density}, 102);
    for (const char* values : {"i8", "f8", "i4", "i4:32", "i4:64"}) {
      const std::optional<EncodedWeight> e =
          encode_smallest(w.view, smallest_formats(), threads_, values);
      ASSERT_TRUE(e.has_value());
      EXPECT_EQ(e->format, tca_bme_format().name());
      EXPECT_EQ(e->version, 3);
    }
    const WeightFormat* const others[] = {&dense_format(), &tiled_csl_format()};
    EXPECT_FALSE(encode_smallest(w.view, others, threads_, "i8").has_value());
  }
}

}  // namespace
}  // namespace sparsellm
