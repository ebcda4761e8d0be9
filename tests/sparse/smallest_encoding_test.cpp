#include "sparse/smallest_encoding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "sparse/tca_bme/tca_bme.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/weight_patterns.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

OwnedTensor weight(double density) {
  return make_weight({.dtype = DType::f16, .rows = 512, .columns = 512, .density = density}, 101);
}

class SmallestEncoding : public ::testing::Test {
 protected:
  std::optional<EncodedWeight> encode(const Tensor& w) {
    return encode_smallest(w, nonzeros_of(w), threads_);
  }
  ThreadPool threads_{2};
};

TEST_F(SmallestEncoding, HasTheFewestBytesByFormula) {
  for (const auto& [density, format] : {std::pair{0.8, &tca_bme_format()},
                                        {0.5, &tca_bme_format()},
                                        {0.1, &tca_bme_format()},
                                        {0.03, &tiled_csl_format()},
                                        {0.0, &tiled_csl_format()}}) {
    SCOPED_TRACE(density);
    const OwnedTensor w = weight(density);
    const std::optional<EncodedWeight> e = encode(w.view);
    ASSERT_TRUE(e.has_value());
    EXPECT_TRUE(same_encoding(*e, format->encode(w.view, threads_)));
  }
}

TEST_F(SmallestEncoding, IsNotThatWithTheFewestBytes) {
  const OwnedTensor w = weight(0.1);
  const EncodedWeight bitmaps = tca_bme_format().encode(w.view, threads_);
  const EncodedWeight csl = tiled_csl_format().encode(w.view, threads_);
  EXPECT_LT(tca_bme_format().formula_bytes(bitmaps), tiled_csl_format().formula_bytes(csl));
  EXPECT_GT(bitmaps.bytes(), csl.bytes());
  EXPECT_EQ(encode(w.view)->format, "tca_bme");
}

TEST_F(SmallestEncoding, IsSmallerThanTheMatrixByFormulaAndInFact) {
  EXPECT_FALSE(encode(weight(1.0).view).has_value());
  EXPECT_FALSE(encode(make_weight({.rows = 1, .columns = 1, .density = 1.0}, 0).view).has_value());
  EXPECT_FALSE(encode(make_weight({.rows = 0, .columns = 7}, 0).view).has_value());
  const OwnedTensor w = weight(0.92);
  const EncodedWeight e = tca_bme_format().encode(w.view, threads_);
  EXPECT_LT(tca_bme_format().formula_bytes(e), w.view.bytes());
  EXPECT_GE(e.bytes(), w.view.bytes());
  EXPECT_FALSE(encode(w.view).has_value());
}

TEST_F(SmallestEncoding, IsInAFormatThatTakesTheMatrix) {
  const OwnedTensor f32 = allocate_tensor({}, DType::f32, {64, 64}, "a test");
  std::fill_n(f32.view.data<float>(), 64 * 64, 0.0f);
  EXPECT_FALSE(encode_smallest(f32.view, 0, threads_).has_value());
}

}  // namespace
}  // namespace sparsellm
