// Regular expressions when memory runs out, also in PCRE2.

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/failing_allocations.h"
#include "tokenizer/regex.h"

namespace sparsellm {
namespace {

using testing::plan;

TEST(RegexWithoutMemory, IsNoErrorOfAnExpressionOrAText) {
  // Long enough to be matched with a count, and with more of a stack than compiled code has.
  const std::string text = std::string(100'000, 'a') + "b, and more";
  const std::string_view pattern = R"((?:a|b)+|\p{L}+)";
  std::vector<std::string_view> expected;
  Regex(pattern).split(text, expected);
  ASSERT_EQ(expected.size(), 6u);
  for (int64_t failing : {int64_t{1}, testing::kAllAllocations}) {
    int64_t failed = 0;
    bool reached = true;
    for (int64_t k = 0; reached; ++k) {
      SCOPED_TRACE(::testing::Message() << failing << " from allocation " << k << " on");
      plan = {.armed = false, .passing = k, .failing = failing, .failures = 0};
      std::vector<std::string_view> pieces;
      try {
        const testing::Armed armed;
        Regex(pattern).split(text, pieces);
      } catch (const std::bad_alloc&) {
        ++failed;
        continue;
      }
      // Without memory for compiled code, matching is only slower.
      EXPECT_EQ(pieces, expected);
      reached = plan.failures > 0;
    }
    EXPECT_GT(failed, 0);
  }
}

}  // namespace
}  // namespace sparsellm
