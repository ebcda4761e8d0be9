#include "tools/run/line_reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <span>
#include <string>

#include "kernels/base/crc32c.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

struct Expected {
  std::string text;
  bool too_long = false;
  bool has_end = true;
};

TEST(LineReader, ChecksumOfWhatWasRead) {
  std::string bytes = "one\r\n\n" + std::string(700000, 'x') + "\nlast";
  const testing::TempDir directory;
  LineReader reader(directory.write("file", bytes), 8);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(reader.checksum(), 0u);
    LineReader::Line line;
    while (reader.next(line)) {
      const auto read = std::span(bytes).first(static_cast<size_t>(reader.offset()));
      EXPECT_EQ(reader.checksum(), crc32c(std::as_bytes(read)));
    }
    EXPECT_EQ(reader.offset(), std::ssize(bytes));
    reader.rewind();
  }
}

TEST(LineReader, Lines) {
  struct Case {
    std::string bytes;
    std::vector<Expected> lines;
  };
  const std::string nul("a\0b", 3);
  const std::vector<Case> cases{
      {"", {}},
      {"\n", {{""}}},
      {"a", {{"a", false, false}}},
      {"a\n", {{"a"}}},
      {"a\r\n\r\n\n b \n", {{"a"}, {""}, {""}, {" b "}}},
      {"a\rb\r\r\nc\r", {{"a\rb\r"}, {"c", false, false}}},
      {nul + "\n", {{nul}}},
      {"1234567\n12345678\n123456789\n12345678901234567890",  // at most 8
       {{"1234567"}, {"12345678"}, {"12345678", true}, {"12345678", true, false}}},
  };
  const testing::TempDir directory;
  for (const Case& c : cases) {
    LineReader reader(directory.write("lines", c.bytes), 8);
    for (int pass = 0; pass < 2; ++pass) {
      LineReader::Line line;
      for (size_t i = 0; i < c.lines.size(); ++i) {
        ASSERT_TRUE(reader.next(line)) << c.bytes;
        EXPECT_EQ(line.number, static_cast<int64_t>(i) + 1);
        EXPECT_EQ(line.text, c.lines[i].text);
        EXPECT_EQ(line.too_long, c.lines[i].too_long);
        EXPECT_EQ(line.has_end, c.lines[i].has_end);
      }
      EXPECT_EQ(reader.offset(), std::ssize(c.bytes));
      EXPECT_FALSE(reader.next(line));
      EXPECT_FALSE(reader.next(line));
      reader.rewind();
    }
  }
}

TEST(LineReader, LinesLongerThanABlock) {
  const testing::TempDir directory;
  const std::string first(1'000'003, 'a');
  const std::string third(600'000, 'b');
  LineReader reader(directory.write("lines", first + "\nx\n" + third), 1'000'003);
  LineReader::Line line;
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line.text, first);
  EXPECT_EQ(reader.offset(), 1'000'004);
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line.text, "x");
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(line.text, third);
}

TEST(LineReader, LastByteOfALine) {
  const testing::TempDir directory;
  LineReader reader(directory.write("lines", "abc\n\n" + std::string(600'000, 'b') + "}\nx"), 2);
  LineReader::Line line;
  for (const char last : {'c', '\0', '}', 'x'}) {
    ASSERT_TRUE(reader.next(line));
    EXPECT_EQ(line.last, last);
  }
}

TEST(LineReader, KnowsItsFile) {
  const testing::TempDir directory;
  const std::filesystem::path path = directory.write("lines", "abc\n");
  const std::filesystem::path link = directory.path() / "link";
  std::filesystem::create_symlink("lines", link);
  LineReader reader(path, 8);
  EXPECT_TRUE(reader.is_file(path));
  EXPECT_TRUE(reader.is_file(link));
  EXPECT_FALSE(reader.is_file(directory.path()));
  EXPECT_FALSE(reader.is_file(directory.path() / "none"));
  std::filesystem::rename(path, directory.path() / "renamed");
  EXPECT_TRUE(reader.is_file(directory.path() / "renamed"));
  EXPECT_FALSE(reader.has_changed());
}

TEST(LineReader, NoticesChanges) {
  const testing::TempDir directory;
  const std::filesystem::path path = directory.write("lines", "abc\n");
  LineReader reader(path, 8);
  EXPECT_FALSE(reader.has_changed());
  std::filesystem::resize_file(path, 3);
  EXPECT_TRUE(reader.has_changed());
  const LineReader second(path, 8);
  EXPECT_FALSE(second.has_changed());
  // The same size.
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::nanoseconds(1));
  EXPECT_TRUE(second.has_changed());
}

TEST(LineReader, RegularFilesOnly) {
  const testing::TempDir directory;
  const std::filesystem::path pipe = directory.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(testing::throws_error([&] { LineReader reader(pipe, 8); }, "not a regular file"));
  EXPECT_TRUE(
      testing::throws_error([&] { LineReader reader(directory.path(), 8); }, "not a regular file"));
  EXPECT_TRUE(testing::throws_error([&] { LineReader reader(directory.path() / "none", 8); },
                                    "No such file"));
}

}  // namespace
}  // namespace sparsellm
