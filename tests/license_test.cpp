#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/testing/paths.h"

namespace sparsellm {
namespace {

std::string text_of(const char* name) {
  std::ifstream file(testing::source_dir() / name);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(License, IsApacheAndTheReadmeNamesIt) {
  const std::string license = text_of("LICENSE");
  EXPECT_NE(license.find("Apache License\n                           Version 2.0, January 2004"),
            std::string::npos);
  EXPECT_NE(license.find("the SparseLLM authors"), std::string::npos);
  EXPECT_EQ(license.find("[yyyy]"), std::string::npos);
  EXPECT_NE(text_of("README.md").find("[Apache License 2.0](LICENSE)"), std::string::npos);
}

}  // namespace
}  // namespace sparsellm
