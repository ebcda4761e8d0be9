#include "kernels/base/open_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/mapped_file.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;
using testing::throws_error;

constexpr int64_t kMaxBytes = 1000;

TEST(OpenDirectory, HasTheFilesThatAreThere) {
  const TempDir folder;
  folder.write("config.json", "config");
  folder.write("notes", "notes");
  fs::create_directory(folder.path() / "below");
  const OpenDirectory directory(folder.path());
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"below", "config.json", "notes"}));
  EXPECT_EQ(directory.path(), folder.path());
  EXPECT_TRUE(is_there(directory / "config.json"));
  EXPECT_TRUE(is_there(directory / "below"));
  EXPECT_FALSE(is_there(directory / "tokenizer.json"));
  EXPECT_EQ(read_text_file(directory / "config.json", kMaxBytes), "config");
  EXPECT_EQ(read_text_file(directory / "config.json", kMaxBytes), "config");  // once more
  EXPECT_EQ(read_text_file(directory / "notes", kMaxBytes), "notes");
  EXPECT_EQ(read_text_file(folder.path() / "notes", kMaxBytes), "notes");
  EXPECT_TRUE(throws_error([&] { read_text_file(directory / "tokenizer.json", kMaxBytes); },
                           (folder.path() / "tokenizer.json").string() + ": No such file"));
  EXPECT_TRUE(
      throws_error([&] { read_text_file(directory / "below", kMaxBytes); }, "not a regular file"));
}

TEST(OpenDirectory, WhatIsNoDirectory) {
  const TempDir folder;
  EXPECT_TRUE(throws_error([&] { OpenDirectory{folder.path() / "missing"}; }, "does not exist"));
  EXPECT_TRUE(throws_error([&] { OpenDirectory{folder.write("file", "x")}; },
                           "is a file; expected a model directory"));
  EXPECT_TRUE(throws_error([&] { OpenDirectory{folder.path() / "file" / "below"}; }, "file"));
  EXPECT_TRUE(throws_error([&] { OpenDirectory{""}; }, "does not exist"));
  fs::create_directory_symlink(folder.path() / "missing", folder.path() / "dangling");
  EXPECT_TRUE(throws_error([&] { OpenDirectory{folder.path() / "dangling"}; }, "dangling"));
}

// A cache that lost a file, or a disk that fails, is not a model without that file.
TEST(OpenDirectory, OnlyWhatIsNotThereIsAbsent) {
  const TempDir folder;
  fs::create_symlink(folder.path() / "nowhere", folder.path() / "generation_config.json");
  fs::create_symlink(folder.path() / "loop", folder.path() / "loop");
  const OpenDirectory directory(folder.path());
  for (const char* name : {"generation_config.json", "loop"}) {
    EXPECT_TRUE(is_there(directory / name));
    EXPECT_TRUE(is_there(folder.path() / name));
    EXPECT_TRUE(throws_error([&] { read_text_file(directory / name, kMaxBytes); }, name));
  }
}

TEST(OpenDirectory, NoMoreFileDescriptors) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs file descriptors for its own checks of memory";
  }
  const TempDir folder;
  folder.write("config.json", "config");
  const int next = ::dup(STDERR_FILENO);
  ASSERT_GE(next, 0);
  ::close(next);
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit one_more = before;
  one_more.rlim_cur = static_cast<rlim_t>(next) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &one_more), 0);
  EXPECT_TRUE(throws_error([&] { OpenDirectory{folder.path()}; }, "Too many open files"));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(OpenDirectory, NamedPipesDoNotBlock) {
  const TempDir folder;
  ASSERT_EQ(::mkfifo((folder.path() / "config.json").c_str(), 0600), 0);
  const OpenDirectory directory(folder.path());
  EXPECT_TRUE(throws_error([&] { read_text_file(directory / "config.json", kMaxBytes); },
                           "not a regular file"));
}

TEST(OpenDirectory, KeepsTheModelThatItFound) {
  const TempDir folder;
  folder.write("model/config.json", "older");
  folder.write("model/model.safetensors", "older weights");
  const OpenDirectory directory(folder.path() / "model");
  folder.write("next/config.json", "newer");
  fs::rename(folder.path() / "model", folder.path() / "aside");
  fs::rename(folder.path() / "next", folder.path() / "model");
  fs::remove_all(folder.path() / "aside");
  EXPECT_EQ(read_text_file(directory / "config.json", kMaxBytes), "older");
  EXPECT_EQ(read_text_file(directory / "model.safetensors", kMaxBytes), "older weights");
  EXPECT_EQ(read_text_file(OpenDirectory(folder.path() / "model") / "config.json", kMaxBytes),
            "newer");
}

// Where a file system cannot exchange two directories in one step, there is none for a moment.
TEST(OpenDirectory, WaitsForOneThatIsBeingReplaced) {
  const TempDir folder;
  const fs::path path = folder.path() / "model";
  const fs::path aside = folder.path() / ".model.partial-0123abcd";
  folder.write(".model.partial-0123abcd/config.json", "config");
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    fs::rename(aside, path);
  });
  EXPECT_EQ(OpenDirectory(path).names(), (std::vector<std::string>{"config.json"}));
  other.join();
}

// The directory is missing when it is opened, and back before the reader looks for a replacement.
TEST(OpenDirectory, FindsOneThatWasMissingForAMoment) {
  const TempDir folder;
  const fs::path path = folder.path() / "model";
  folder.write("model/config.json", "config");
  std::jthread writer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      fs::rename(path, folder.path() / ".model.partial-1");
      fs::rename(folder.path() / ".model.partial-1", path);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  for (int i = 0; i < 2000; ++i) {
    EXPECT_EQ(OpenDirectory(path).names(), (std::vector<std::string>{"config.json"}));
  }
}

TEST(OpenDirectory, LinksAreFollowed) {
  const TempDir folder;
  folder.write("blobs/1", "config");
  fs::create_directory(folder.path() / "snapshot");
  fs::create_symlink("../blobs/1", folder.path() / "snapshot" / "config.json");
  fs::create_directory_symlink("snapshot", folder.path() / "current");
  const OpenDirectory directory(folder.path() / "current");
  EXPECT_EQ(read_text_file(directory / "config.json", kMaxBytes), "config");
}

// In one step as renameat2 exchanges directories, and in those where for a moment there is none.
TEST(OpenDirectory, IsOneModelWhileAnotherTakesItsPlace) {
  for (const bool in_one_step : {true, false}) {
    const TempDir folder;
    const fs::path path = folder.path() / "model";
    const auto write = [&](const fs::path& to, int number) {
      fs::create_directories(to);
      for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
        std::ofstream(to / name) << number;
      }
    };
    write(path, 0);
    std::jthread writer([&](const std::stop_token& stop) {
      for (int number = 1; !stop.stop_requested(); ++number) {
        const fs::path next = folder.path() / ".model.partial-1";
        const fs::path aside = folder.path() / ".model.partial-2";
        write(next, number);
        if (in_one_step) {
          if (::renameat2(AT_FDCWD, next.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) {
            return;
          }
        } else {
          fs::rename(path, aside);
          fs::rename(next, path);
          fs::rename(aside, next);
        }
        fs::remove_all(next);
      }
    });
    for (int i = 0; i < 2000; ++i) {
      const OpenDirectory directory(path);
      const std::string number = read_text_file(directory / "config.json", kMaxBytes);
      EXPECT_EQ(read_text_file(directory / "model.safetensors", kMaxBytes), number);
      EXPECT_EQ(read_text_file(directory / "tokenizer.json", kMaxBytes), number);
    }
  }
}

}  // namespace
}  // namespace sparsellm
