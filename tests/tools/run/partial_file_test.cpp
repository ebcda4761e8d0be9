#include "tools/run/partial_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "kernels/base/mapped_file.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::throws_error;

class PartialFileTest : public ::testing::Test {
 protected:
  fs::path path(const char* name) const { return directory_.path() / name; }
  static std::string read(const fs::path& path) { return read_text_file(path, 1 << 20); }

  testing::TempDir directory_;
  fs::path output_ = path("out");
  fs::path partial_ = path("out.partial");
};

TEST_F(PartialFileTest, AppearsWhenComplete) {
  directory_.write("out", "old");
  {
    PartialFile file(output_);
    EXPECT_EQ(file.path(), output_);
    EXPECT_EQ(file.partial_path(), partial_);
    file.append("one");
    file.append("");
    file.append("two");
    EXPECT_EQ(read(partial_), "one\n\ntwo\n");  // at once, not at the end
    EXPECT_EQ(file.size(), 9);
    EXPECT_EQ(read(output_), "old");
    file.publish(Existing::replace);
    EXPECT_EQ(read(output_), "one\n\ntwo\n");
    EXPECT_FALSE(fs::exists(partial_));
  }
  EXPECT_TRUE(fs::exists(output_));
}

TEST_F(PartialFileTest, GoesOnWithWhatIsThere) {
  {
    PartialFile file(output_);
    file.append("one");
  }
  EXPECT_FALSE(fs::exists(output_));
  directory_.write("out.partial", "one\ntwo\nthr");
  PartialFile file(output_);
  EXPECT_EQ(file.size(), 11);
  file.truncate(8);
  file.append("three");
  file.publish(Existing::replace);
  EXPECT_EQ(read(output_), "one\ntwo\nthree\n");
}

TEST_F(PartialFileTest, LeavesNoEmptyFile) {
  { PartialFile file(output_); }
  EXPECT_FALSE(fs::exists(partial_));
  { PartialFile(output_).publish(Existing::replace); }
  EXPECT_EQ(read(output_), "");
}

TEST_F(PartialFileTest, LeavesAnEmptyFileThatWasThere) {
  directory_.write("out.partial", "");
  { PartialFile file(output_); }
  EXPECT_TRUE(fs::exists(partial_));
}

TEST_F(PartialFileTest, RemovesOnlyItsOwnFile) {
  {
    PartialFile file(output_);
    fs::remove(partial_);
    directory_.write("out.partial", "");
  }
  EXPECT_TRUE(fs::exists(partial_));
}

TEST_F(PartialFileTest, PublishesOnlyItsOwnFile) {
  PartialFile file(output_);
  file.append("one");
  fs::remove(partial_);
  EXPECT_TRUE(
      throws_error([&] { file.publish(Existing::keep); }, "out: No such file or directory"));
  directory_.write("out.partial", "another's");
  EXPECT_TRUE(throws_error([&] { file.publish(Existing::replace); },
                           "out: another file has taken its place"));
  EXPECT_EQ(read(partial_), "another's");
  EXPECT_FALSE(fs::exists(output_));
}

TEST_F(PartialFileTest, PublishesOnlyWhatItHasWritten) {
  for (const int64_t size : {0, 3, 5, 1000}) {
    PartialFile file(output_);
    file.truncate(0);
    file.append("one");
    fs::resize_file(partial_, static_cast<uintmax_t>(size));
    EXPECT_TRUE(throws_error([&] { file.publish(Existing::replace); },
                             "bytes, but 4 were written; another program has changed it"))
        << size;
    EXPECT_FALSE(fs::exists(output_));
    EXPECT_EQ(fs::file_size(partial_), static_cast<uintmax_t>(size));
  }
}

TEST_F(PartialFileTest, KeepsWhatAppearedMeanwhile) {
  PartialFile file(output_);
  file.append("one");
  directory_.write("out", "another's");
  EXPECT_TRUE(throws_error([&] { file.publish(Existing::keep); }, "out: File exists"));
  EXPECT_EQ(read(output_), "another's");
  EXPECT_EQ(read(partial_), "one\n");
  fs::remove(output_);
  file.publish(Existing::keep);
  EXPECT_EQ(read(output_), "one\n");
}

TEST_F(PartialFileTest, KeepsTheModeOfWhatItReplaces) {
  directory_.write("out", "old");
  constexpr fs::perms kMode = fs::perms::owner_read | fs::perms::owner_write;
  fs::permissions(output_, kMode);
  PartialFile file(output_);
  file.append("one");
  fs::permissions(partial_, kMode | fs::perms::others_read);
  file.publish(Existing::replace);
  EXPECT_EQ(fs::status(output_).permissions(), kMode);
}

TEST_F(PartialFileTest, ForOneAtATime) {
  PartialFile file(output_);
  EXPECT_TRUE(throws_error([&] { PartialFile second(output_); }, "another process is writing"));
  file.append("one");
  file.publish(Existing::replace);
  // The lock is on the file that has its name now, not on the name.
  PartialFile next(output_);
  EXPECT_EQ(next.size(), 0);
}

TEST_F(PartialFileTest, FollowsALink) {
  fs::create_directory(path("elsewhere"));
  directory_.write("elsewhere/real", "old");
  fs::create_symlink("elsewhere/real", path("link"));
  PartialFile file(path("link"));
  file.append("new");
  EXPECT_TRUE(fs::exists(path("elsewhere/real.partial")));
  file.publish(Existing::replace);
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(read(path("elsewhere/real")), "new\n");
}

TEST_F(PartialFileTest, Refuses) {
  fs::create_directory(path("folder"));
  fs::create_directory(path("a.partial"));
  fs::create_symlink("nothing", path("dangling"));
  fs::create_symlink("loop", path("loop"));
  fs::create_symlink("folder", path("to_folder"));
  fs::create_symlink("b", path("b.partial"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo(path("c.partial").c_str(), 0600), 0);
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "not the name of a file"},
      {path("folder/").string(), "not the name of a file"},
      {path("folder"), "a folder"},
      {path("to_folder"), "a folder"},
      {path("dangling"), "a link to nothing"},
      {path("loop"), "symbolic links"},
      {path("pipe"), "not a regular file"},
      {"/dev/null", "not a regular file"},
      {path("a"), "a.partial: Is a directory"},
      {path("b"), "b.partial: a symbolic link"},
      {path("c"), "c.partial: not a regular file"},
      {path("none/d"), "d.partial: No such file or directory"},
  };
  for (const auto& [name, message] : cases) {
    EXPECT_TRUE(throws_error([&, &file = name] { PartialFile partial(file); }, message)) << name;
  }
}

TEST_F(PartialFileTest, AFullDiskLeavesWholeLines) {
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  PartialFile file(output_);
  file.append("one");
  const struct rlimit limit { .rlim_cur = 6, .rlim_max = before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_TRUE(throws_error([&] { file.append("two"); }, "out.partial: File too large"));
  EXPECT_EQ(read(partial_), "one\n");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  file.append("two");
  EXPECT_EQ(read(partial_), "one\ntwo\n");
}

}  // namespace
}  // namespace sparsellm
