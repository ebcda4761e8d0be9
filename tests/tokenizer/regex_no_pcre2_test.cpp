// Of a build with SPARSELLM_PCRE2=OFF.

#include <gtest/gtest.h>

#include "tests/testing/throws_error.h"
#include "tokenizer/regex.h"

namespace sparsellm {
namespace {

using testing::throws_error;

TEST(NoPcre2, RegularExpressionsAreRefused) {
  EXPECT_TRUE(throws_error([] { Regex(R"(\w+)"); }, "this build has no PCRE2"));
}

}  // namespace
}  // namespace sparsellm
