#include "kernels/base/source_path.h"

#include <gtest/gtest.h>

#include <source_location>
#include <string>

#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "tests/testing/paths.h"

namespace sparsellm {
namespace {

TEST(SourcePath, BeginsAtTheRootOfTheTree) {
  EXPECT_EQ(source_path(std::source_location::current().file_name()),
            "tests/kernels/base/source_path_test.cpp");
}

TEST(SourcePath, OfAFileElsewhereIsItsName) {
  EXPECT_EQ(source_path("/opt/nowhere/include/vector.h"), "vector.h");
  EXPECT_EQ(source_path("vector.h"), "vector.h");
  EXPECT_EQ(source_path(""), "");
}

// By nvcc's own idea of where a source lies, also without a driver.
TEST(SourcePath, OfAnErrorOfCuda) {
  try {
    query_gpu(9999);
    FAIL() << "no Error was thrown";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("CUDA failed at kernels/base/device_info.cu:") ||
                text == "this build has the CPU device only")
        << text;
    EXPECT_EQ(text.find(testing::source_dir().string()), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace sparsellm
