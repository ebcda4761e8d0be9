// How the numbers of an upload come to host memory.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/mapped_file.h"
#include "kernels/base/upload.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::TempDir;
using testing::throws_error;

// Three rows of four numbers, of which columns 1 and 2 are read.
class ReadSource : public ::testing::Test {
 protected:
  ReadSource()
      : file_(folder_.write("data", std::string(reinterpret_cast<const char*>(values_.data()),
                                                sizeof(float) * 12))) {}

  Upload upload(std::span<const std::byte> all, DType to, const MappedFile* file) {
    return {.what = "w",
            .source = all.subspan(4, 8),
            .rows = 3,
            .pitch = 16,
            .from = DType::f32,
            .to = to,
            .file = file};
  }

  const std::vector<float> values_{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1e6f, 11};
  TempDir folder_;
  MappedFile file_;
};

TEST_F(ReadSource, SomeColumnsOfEachRow) {
  for (const MappedFile* file : {static_cast<const MappedFile*>(nullptr), &std::as_const(file_)}) {
    const auto all = file == nullptr ? std::as_bytes(std::span(values_)) : file->bytes();
    EXPECT_EQ(upload(all, DType::f32, file).bytes(), 24);
    std::vector<float> got(7, -1.0f);
    read_source(upload(all, DType::f32, file), reinterpret_cast<std::byte*>(got.data()));
    EXPECT_EQ(got, (std::vector<float>{1, 2, 5, 6, 9, 1e6f, -1}));

    Upload two = upload(all, DType::f16, file);
    two.rows = 2;
    std::vector<Half> halves(5, to_half(-1.0f));
    read_source(two, reinterpret_cast<std::byte*>(halves.data()));
    for (size_t i = 0; i < halves.size(); ++i) {
      EXPECT_EQ(to_float(halves[i]), (std::vector<float>{1, 2, 5, 6, -1})[i]);
    }
    EXPECT_TRUE(throws_error(
        [&] {
          std::vector<Half> all_halves(6);
          read_source(upload(all, DType::f16, file),
                      reinterpret_cast<std::byte*>(all_halves.data()));
        },
        "w: the value 1000000 is too large for f16"));
  }
  read_source({.what = "nothing", .source = {}}, nullptr);
}

}  // namespace
}  // namespace sparsellm
