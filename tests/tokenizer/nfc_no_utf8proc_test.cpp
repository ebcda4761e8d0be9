// A build without utf8proc.

#include <gtest/gtest.h>

#include <string>

#include "tests/testing/throws_error.h"
#include "tokenizer/nfc.h"

namespace sparsellm {
namespace {

TEST(NoUtf8proc, NfcIsRefused) {
  std::string storage;
  EXPECT_TRUE(testing::throws_error([&] { to_nfc("a", storage); }, "this build has no utf8proc"));
}

}  // namespace
}  // namespace sparsellm
