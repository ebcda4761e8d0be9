#include "kernels/base/mapped_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include "tests/testing/resident_pages.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

std::string text_of(const MappedFile& file) {
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

TEST(MappedFile, HoldsTheWholeFile) {
  const TempDir folder;
  std::string bytes(100003, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i * 7 % 256);
  }
  const MappedFile file(folder.write("data.bin", bytes));
  EXPECT_EQ(file.size(), 100003);
  EXPECT_EQ(file.path(), folder.path() / "data.bin");
  EXPECT_EQ(text_of(file), bytes);
}

TEST(MappedFile, AnEmptyFileIsAnEmptySpan) {
  const TempDir folder;
  const MappedFile file(folder.write("empty", ""));
  EXPECT_EQ(file.size(), 0);
  EXPECT_TRUE(file.bytes().empty());
}

TEST(MappedFile, StaysAtItsAddressWhenMoved) {
  const TempDir folder;
  MappedFile a(folder.write("data", "hello"));
  const std::byte* address = a.bytes().data();
  const MappedFile b(std::move(a));
  EXPECT_EQ(b.bytes().data(), address);
  EXPECT_EQ(text_of(b), "hello");
  EXPECT_EQ(a.size(), 0);  // NOLINT(bugprone-use-after-move): is empty
  EXPECT_TRUE(a.bytes().empty());
}

TEST(MappedFile, OutlivesTheNameOfTheFile) {
  const TempDir folder;
  const MappedFile file(folder.write("data", "hello"));
  std::filesystem::remove(file.path());
  EXPECT_EQ(text_of(file), "hello");
}

TEST(MappedFile, FollowsSymbolicLinks) {
  const TempDir folder;
  const std::filesystem::path link = folder.path() / "link";
  std::filesystem::create_symlink(folder.write("data", "hello"), link);
  EXPECT_EQ(text_of(MappedFile(link)), "hello");
}

TEST(MappedFile, RefusalsNameThePathAndTheReason) {
  const TempDir folder;
  const std::filesystem::path missing = folder.path() / "missing";
  EXPECT_TRUE(throws_error([&] { MappedFile{missing}; },
                           fmt::format("cannot open {}: No such file", missing.string())));
  EXPECT_TRUE(
      throws_error([&] { MappedFile{folder.path()}; },
                   fmt::format("cannot read {}: not a regular file", folder.path().string())));
  EXPECT_TRUE(
      throws_error([&] { MappedFile{folder.write("file", "x") / "below"}; }, "Not a directory"));
  EXPECT_TRUE(throws_error([] { MappedFile{""}; }, "cannot open"));
}

TEST(MappedFile, ANamedPipeDoesNotBlock) {
  const TempDir folder;
  const std::filesystem::path pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(throws_error([&] { MappedFile{pipe}; }, "not a regular file"));
}

TEST(MappedFile, NoPermission) {
  if (::geteuid() == 0) {
    GTEST_SKIP() << "root may read everything";
  }
  const TempDir folder;
  const std::filesystem::path file = folder.write("secret", "x");
  std::filesystem::permissions(file, std::filesystem::perms::none);
  EXPECT_TRUE(throws_error([&] { MappedFile{file}; }, "Permission denied"));
}

TEST(MappedFile, ReadsPartsWithoutTheMapping) {
  const TempDir folder;
  const std::filesystem::path path = folder.write("data", "0123456789");
  const MappedFile file(path);
  std::byte copy[10];
  for (size_t begin = 0; begin <= 10; ++begin) {
    for (size_t count = 0; count <= 10 - begin; ++count) {
      file.read(file.bytes().subspan(begin, count), copy);
      EXPECT_EQ(std::memcmp(copy, file.bytes().data() + begin, count), 0);
    }
  }
  EXPECT_TRUE(throws_error(
      [&] {
        file.read({file.bytes().data() + 1, 10}, copy);
      },
      "10 bytes from byte 1 are outside the file"));
  std::filesystem::resize_file(path, 5);
  EXPECT_TRUE(throws_error([&] { file.read(file.bytes().subspan(3, 4), copy); },
                           "data: it has become shorter"));
}

// Lost pages are survived in the life of this object.
class SurviveLostPages {
 public:
  SurviveLostPages() {
    ::sigaction(SIGBUS, nullptr, &before_);
    survive_lost_pages();
  }
  ~SurviveLostPages() { ::sigaction(SIGBUS, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

int sum_of(std::span<const std::byte> bytes) {
  int sum = 0;
  for (std::byte byte : bytes) {
    sum += static_cast<int>(byte);
  }
  return sum;
}

TEST(MappedFile, WholePagesOfAPartAreReleased) {
  const TempDir folder;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGE_SIZE));
  const MappedFile file(folder.write("data", std::string(8 * page, '\1')));
  const std::span<const std::byte> all = file.bytes();
  const auto left_after = [&](std::span<const std::byte> part) {
    EXPECT_EQ(sum_of(all), std::ssize(all));  // all pages are there again
    EXPECT_EQ(resident_pages(all), 8);
    release_pages(part);
    return resident_pages(all);
  };
  if (!resident_pages(all)) {
    GTEST_SKIP() << "the system does not say which pages are in memory";
  }
  EXPECT_EQ(left_after(all), 0);
  EXPECT_EQ(left_after(all.subspan(page, 3 * page)), 5);
  EXPECT_EQ(left_after(all.subspan(page - 1, 3 * page + 2)), 5);
  EXPECT_EQ(left_after(all.subspan(page + 1, 3 * page - 1)), 6);
  EXPECT_EQ(left_after(all.subspan(page, 3 * page - 1)), 6);
  EXPECT_EQ(left_after(all.subspan(page + 1, page)), 8);
  EXPECT_EQ(left_after(all.first(0)), 8);
}

TEST(MappedFile, LostPagesReadAsZerosAndAreReported) {
  const SurviveLostPages handler;
  const TempDir folder;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGE_SIZE));
  for (size_t pages : {1u, 2u, 7u}) {
    for (size_t kept = 0; kept < pages; ++kept) {
      for (size_t touched : {kept, pages - 1}) {
        const std::filesystem::path path =
            folder.write("data", std::string(pages * page - 5, '\1'));
        const std::filesystem::path whole = folder.write("whole", std::string(3 * page, '\2'));
        MappedFile file(path);
        const MappedFile other(whole);
        EXPECT_NO_THROW(file.require_intact());
        std::filesystem::resize_file(path, kept * page);
        EXPECT_NO_THROW(file.require_intact()) << "nothing was read";
        const MappedFile moved(std::move(file));
        EXPECT_EQ(sum_of(moved.bytes().subspan(touched * page)), 0);
        EXPECT_TRUE(throws_error([&] { moved.require_intact(); },
                                 "data: it has become shorter, or its disk fails"));
        EXPECT_EQ(sum_of(moved.bytes().first(kept * page)), static_cast<int>(kept * page));
        EXPECT_EQ(sum_of(other.bytes()), static_cast<int>(6 * page));
        EXPECT_NO_THROW(other.require_intact());
      }
    }
  }
}

TEST(MappedFile, LostPagesAreThoseOfOneMapping) {
  const SurviveLostPages handler;
  const TempDir folder;
  const std::filesystem::path path = folder.write("data", std::string(20000, '\1'));
  for (int i = 0; i < 2 * PageGuard::kMaxGuards; ++i) {  // what is not used any more is used again
    const MappedFile file(path);
    ASSERT_NO_THROW(file.require_intact());
  }
  const MappedFile before(path);
  std::filesystem::resize_file(path, 4096);
  EXPECT_EQ(sum_of(before.bytes().last(100)), 0);
  const MappedFile after(path);
  EXPECT_THROW(before.require_intact(), Error);
  EXPECT_NO_THROW(after.require_intact());
}

TEST(MappedFileDeathTest, OtherBusErrorsEndTheProgram) {
  const TempDir folder;
  const std::filesystem::path path = folder.write("data", std::string(20000, '\1'));
  EXPECT_EXIT(
      {
        survive_lost_pages();
        ::raise(SIGBUS);
        ::raise(SIGBUS);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST(IsThere, OnlyWhatHasNoNameIsNot) {
  const TempDir folder;
  EXPECT_FALSE(is_there(folder.path() / "none"));
  EXPECT_FALSE(is_there(folder.path() / "none" / "below"));
  EXPECT_TRUE(is_there(folder.write("file", "")));
  EXPECT_TRUE(is_there(folder.path()));
  std::filesystem::create_symlink("nowhere", folder.path() / "dangling");
  std::filesystem::create_symlink("loop", folder.path() / "loop");
  EXPECT_TRUE(is_there(folder.path() / "dangling"));
  EXPECT_TRUE(is_there(folder.path() / "loop"));
  EXPECT_TRUE(is_there(folder.path() / "loop" / "below")) << "ELOOP";
  EXPECT_TRUE(is_there(folder.path() / "file" / "below")) << "ENOTDIR";
  EXPECT_TRUE(is_there(folder.path() / std::string(300, 'x'))) << "ENAMETOOLONG";
}

TEST(ReadTextFile, ReturnsTheContents) {
  const TempDir folder;
  EXPECT_EQ(read_text_file(folder.write("a.txt", "one\ntwo\n"), 8), "one\ntwo\n");
  EXPECT_EQ(read_text_file(folder.write("b.txt", ""), 0), "");
  EXPECT_EQ(read_text_file(folder.write("c.txt", std::string("a\0b", 3)), 10),
            std::string("a\0b", 3));
}

TEST(ReadTextFile, RefusesALargerFile) {
  const TempDir folder;
  const std::filesystem::path file = folder.write("a.txt", "one\ntwo\n");
  EXPECT_TRUE(throws_error([&] { read_text_file(file, 7); }, "has 8 bytes; at most 7 are read"));
  EXPECT_TRUE(throws_error([&] { read_text_file(folder.path() / "b.txt", 7); }, "cannot open"));
}

}  // namespace
}  // namespace sparsellm
