#include "sparse/product_plan.h"

#include <gtest/gtest.h>

#include "sparse/expand_matmul.h"

namespace sparsellm {
namespace {

TEST(ProductPlan, TextOfAnExpansionSaysWhatItWas) {
  const Expansion single = single_piece_expansion(28672, 7168);
  EXPECT_FALSE(single.overlapped);
  EXPECT_EQ(to_text(single), "expand 1152, one after the other");
  EXPECT_EQ(expansion_from(to_text(single), 28672, 7168, 1), single);
  for (const int64_t tokens : {1, 128, 2048}) {
    const std::vector<Expansion> all = overlapped_expansions(28672, 7168, tokens);
    EXPECT_EQ(all.front(), (Expansion{.piece_rows = expand_piece_rows(28672, 7168, tokens)}));
    for (const Expansion& each : all) {
      EXPECT_EQ(to_text(each), fmt::format("expand {}", each.piece_rows));
      EXPECT_EQ(expansion_from(to_text(each), 28672, 7168, tokens), each);
    }
  }
}

TEST(ProductPlan, RefusesWhatIsNoExpansion) {
  for (const char* text :
       {"", "expand", "expand ", "expand 1", "expand -4096", "expand 4096 ", "expand 4096x",
        "expand 4096, one after the other", "expand 1152", "expand 1152, one after the other ",
        "Expand 4096", "expand 99999999999999999999"}) {
    EXPECT_FALSE(expansion_from(text, 28672, 7168, 1024).has_value()) << text;
  }
  EXPECT_TRUE(expansion_from("expand 4096", 28672, 7168, 1024).has_value());
}

TEST(ProductPlan, KeysHaveWholeStepsOfPercent) {
  EXPECT_EQ(percent_for_key(0, 0), 0);
  EXPECT_EQ(percent_for_key(0, 1000), 0);
  EXPECT_EQ(percent_for_key(24, 1000), 0);
  EXPECT_EQ(percent_for_key(30, 1000), 5);
  EXPECT_EQ(percent_for_key(220, 1000), 20);
  EXPECT_EQ(percent_for_key(230, 1000), 25);
  EXPECT_EQ(percent_for_key(1000, 1000), 100);
}

}  // namespace
}  // namespace sparsellm
