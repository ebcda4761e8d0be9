#include "kernels/base/file_replacement.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "kernels/base/error.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(FileReplacement, TakesThePlaceInOneStep) {
  const TempDir dir;
  const fs::path path = dir.write("file", "old");
  {
    FileReplacement first(path);
    FileReplacement second(path);
    first.write("");
    first.write("fi");
    second.write("second");
    first.write("rst");
    EXPECT_EQ(text_of(path), "old");
    first.sync();
    first.commit();
    EXPECT_EQ(text_of(path), "first");
    second.commit();
    EXPECT_EQ(text_of(path), "second");
  }
  EXPECT_EQ(text_of(path), "second");
  EXPECT_EQ(files_in(dir.path()), 1);
}

TEST(FileReplacement, DisappearsIfItIsNotWanted) {
  const TempDir dir;
  const fs::path path = dir.write("file", "old");
  { FileReplacement(path).write("new"); }
  EXPECT_EQ(text_of(path), "old");
  { FileReplacement(dir.path() / "other").write("new"); }
  EXPECT_EQ(files_in(dir.path()), 1);
}

TEST(FileReplacement, AnErrorNamesTheTarget) {
  const TempDir dir;
  const fs::path below = dir.write("file", "no folder") / "file";
  EXPECT_TRUE(throws_error([&] { FileReplacement{below}; },
                           fmt::format("cannot write {}: Not a directory", below.string())));
  const fs::path missing = dir.path() / "no" / "file";
  EXPECT_TRUE(throws_error([&] { FileReplacement{missing}; },
                           fmt::format("cannot write {}: No such file", missing.string())));
  const fs::path folder = dir.path() / "folder";
  fs::create_directory(folder);
  EXPECT_TRUE(throws_error([&] { FileReplacement(folder).commit(); },
                           fmt::format("cannot write {}: Is a directory", folder.string())));
  EXPECT_EQ(files_in(dir.path()), 2);
}

// Of those there are a hundred.
TEST(FileReplacement, NamesOfOthersArePassedOver) {
  const TempDir dir;
  const fs::path path = dir.path() / "file";
  constexpr int kNames = 100;
  for (int i = 0; i < kNames; ++i) {
    dir.write(fmt::format("file.{}-{}.partial", ::getpid(), i), "another's");
  }
  EXPECT_TRUE(throws_error([&] { FileReplacement{path}; }, "File exists"));
  fs::remove(dir.path() / fmt::format("file.{}-{}.partial", ::getpid(), kNames - 1));
  FileReplacement(path).commit();
  EXPECT_EQ(text_of(path), "");
  EXPECT_EQ(files_in(dir.path()), kNames);
}

}  // namespace
}  // namespace sparsellm
