// Files where a system call is interrupted by a signal, moves only a part of what it was given, or
// fails; and what is on disk when. A program of its own: it replaces the calls.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/mapped_file.h"
#include "kernels/base/tune_cache.h"
#include "models/storage/model_writer.h"
#include "models/storage/output_file.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tools/run/line_reader.h"
#include "tools/run/partial_file.h"
#include "tools/run/run_mark.h"

namespace {

// The replaced calls have no other way to be told.
struct CallPlan {
  bool armed = false;
  size_t most_bytes = 0;  // of each call
  int error = 0;          // of the call after `passing` others, and of all that follow
  int64_t passing = 0;
  int64_t calls = 0;  // interrupted ones too
};
constinit CallPlan plan;                   // the tests have one thread
constinit int exclusive_rename_error = 0;  // of renameat2(), if not 0
constinit int close_error = 0;             // likewise
constinit int64_t passing_syncs = -1;      // fsync() fails after these, if not -1

// Which files, by their inodes, are on disk and which are not.
struct DiskWatch {
  std::set<ino_t> unsynced;  // written to since
  std::set<ino_t> synced;    // since the latest renaming
  size_t written = 0;        // times
  int64_t syncs = 0;
  // When a file or a directory was renamed, the latest time.
  std::set<ino_t> unsynced_at_rename;
  std::set<ino_t> synced_at_rename;
};
constinit DiskWatch* watch = nullptr;

ino_t inode_of(int file) {
  struct stat info {};
  return ::fstat(file, &info) == 0 ? info.st_ino : 0;
}

ssize_t note_write(int file, ssize_t count) {
  if (watch != nullptr && count > 0) {
    watch->unsynced.insert(inode_of(file));
    ++watch->written;
  }
  return count;
}

int note_rename(int result) {
  if (watch != nullptr && result == 0) {
    watch->unsynced_at_rename = watch->unsynced;
    watch->synced_at_rename = std::exchange(watch->synced, {});
  }
  return result;
}

// Every other call is interrupted. Returns the bytes that a call may move, or -1.
ssize_t allowed(size_t bytes) {
  if (!plan.armed) {
    return static_cast<ssize_t>(bytes);
  }
  if (plan.calls++ % 2 == 0) {
    errno = EINTR;
    return -1;
  }
  if (plan.error != 0 && plan.passing-- <= 0) {
    errno = plan.error;
    return -1;
  }
  return static_cast<ssize_t>(std::min(bytes, plan.most_bytes));
}

}  // namespace

extern "C" {

ssize_t write(int file, const void* data, size_t bytes) {
  const ssize_t count = allowed(bytes);
  return count < 0 ? count : note_write(file, ::syscall(SYS_write, file, data, count));
}
ssize_t read(int file, void* data, size_t bytes) {
  const ssize_t count = allowed(bytes);
  return count < 0 ? count : ::syscall(SYS_read, file, data, count);
}
ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  const ssize_t count = allowed(bytes);
  return count < 0 ? count : note_write(file, ::syscall(SYS_pwrite64, file, data, count, offset));
}
ssize_t pread(int file, void* data, size_t bytes, off_t offset) {
  const ssize_t count = allowed(bytes);
  return count < 0 ? count : ::syscall(SYS_pread64, file, data, count, offset);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned int flags) {
  if (exclusive_rename_error != 0) {
    errno = exclusive_rename_error;
    return -1;
  }
  return note_rename(
      static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags)));
}
int rename(const char* from, const char* to) {
  return note_rename(static_cast<int>(::syscall(SYS_rename, from, to)));
}
int fsync(int file) {
  if (passing_syncs >= 0 && passing_syncs-- == 0) {
    errno = EIO;
    return -1;
  }
  if (watch != nullptr) {
    watch->unsynced.erase(inode_of(file));
    watch->synced.insert(inode_of(file));
    ++watch->syncs;
  }
  return static_cast<int>(::syscall(SYS_fsync, file));
}
int close(int file) {
  const auto result = static_cast<int>(::syscall(SYS_close, file));
  if (close_error != 0) {
    errno = close_error;
    return -1;
  }
  return result;
}

}  // extern "C"

namespace sparsellm {
namespace {

using testing::TempDir;
using testing::throws_error;
namespace fs = std::filesystem;

class InterruptedCalls {
 public:
  explicit InterruptedCalls(size_t most_bytes, int error = 0, int64_t passing = 0) {
    plan = {.armed = true, .most_bytes = most_bytes, .error = error, .passing = passing};
  }
  ~InterruptedCalls() { plan = {}; }
  int64_t calls() const { return plan.calls; }
};

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string some_text(size_t bytes) {
  std::string text;
  for (size_t i = 0; text.size() < bytes; ++i) {
    text += std::to_string(i) + (i % 7 == 0 ? "\n" : " ");
  }
  text.resize(bytes);
  return text;
}

TEST(InterruptedCalls, TuneCache) {
  const TempDir dir;
  const fs::path path = dir.path() / "tuned.json";
  TuneCache cache(path);
  cache.put("key", some_text(1000));
  {
    const InterruptedCalls calls(7);
    cache.save();
    EXPECT_GT(calls.calls(), 200);
  }
  const TuneCache again(path);
  EXPECT_EQ(again.problem(), "");
  EXPECT_EQ(again.find("key"), some_text(1000));
  // What fails in the end leaves the older file, and nothing beside it.
  cache.put("key", "another");
  {
    const InterruptedCalls calls(7, ENOSPC, 3);
    EXPECT_TRUE(throws_error([&] { cache.save(); }, "No space left on device"));
  }
  EXPECT_EQ(TuneCache(path).find("key"), some_text(1000));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

TEST(InterruptedCalls, OutputFile) {
  const TempDir dir;
  const std::string text = some_text(500);
  OutputFile file(dir.path() / "out");
  {
    const InterruptedCalls calls(13);
    file.write(std::as_bytes(std::span(text)), 100);
    file.move_up(100, 333, 500);
    EXPECT_GT(calls.calls(), 200);
  }
  {
    const InterruptedCalls calls(13, EIO, 4);
    EXPECT_TRUE(
        throws_error([&] { file.write(std::as_bytes(std::span(text)), 0); }, "Input/output error"));
  }
  {
    const InterruptedCalls calls(13, EIO);
    EXPECT_TRUE(throws_error([&] { file.move_up(0, 1, 100); }, "Input/output error"));
  }
  file.close();
  const std::string all = text_of(dir.path() / "out");
  EXPECT_EQ(all.size(), 833u);
  EXPECT_EQ(all.substr(333), text);
}

TEST(InterruptedCalls, PartialFile) {
  const TempDir dir;
  PartialFile file(dir.path() / "out");
  {
    const InterruptedCalls calls(3);
    file.append("the first line");
    file.append("the second");
    EXPECT_GT(calls.calls(), 16);
  }
  {
    const InterruptedCalls calls(3, ENOSPC, 2);
    EXPECT_TRUE(throws_error([&] { file.append("the third"); }, "No space left on device"));
  }
  file.append("the last");
  file.publish(Existing::keep);
  EXPECT_EQ(text_of(dir.path() / "out"), "the first line\nthe second\nthe last\n");
}

// Some file systems cannot rename a file only where the new name is free.
TEST(InterruptedCalls, PartialFileWithoutExclusiveRename) {
  const TempDir dir;
  PartialFile file(dir.path() / "out");
  file.append("one");
  dir.write("out", "another's");
  for (const int error : {EINVAL, ENOSYS}) {
    exclusive_rename_error = error;
    EXPECT_TRUE(throws_error([&] { file.publish(Existing::keep); }, "out: File exists"));
    EXPECT_EQ(text_of(dir.path() / "out"), "another's");
  }
  fs::remove(dir.path() / "out");
  // Any other error is one.
  exclusive_rename_error = EACCES;
  EXPECT_TRUE(throws_error([&] { file.publish(Existing::keep); }, "out: Permission denied"));
  EXPECT_FALSE(fs::exists(dir.path() / "out"));
  exclusive_rename_error = EINVAL;
  file.publish(Existing::keep);
  exclusive_rename_error = 0;
  EXPECT_EQ(text_of(dir.path() / "out"), "one\n");
}

class WatchedDisk {
 public:
  WatchedDisk() { watch = &seen_; }
  ~WatchedDisk() { watch = nullptr; }
  WatchedDisk(const WatchedDisk&) = delete;
  WatchedDisk& operator=(const WatchedDisk&) = delete;
  const DiskWatch& seen() const { return seen_; }

 private:
  DiskWatch seen_;
};

ino_t inode_of_path(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_ino;
}

// In two files of tensors.
void write_model(const fs::path& output, const fs::path& tokenizer) {
  ModelWriter writer(output, {.max_shard_bytes = 4});
  writer.write_text("config.json", "{}");
  writer.copy_file(InputFile(tokenizer));
  const std::string bytes = "abc";
  for (const char* name : {"a", "b"}) {
    writer.add(name,
               StoredTensor{.dtype = "U8", .shape = {3}, .bytes = std::as_bytes(std::span(bytes))});
  }
  writer.finish();
}

// Or after a crash the name could stand for files without contents.
TEST(Durability, AModelIsOnDiskBeforeItHasItsName) {
  const TempDir dir;
  const fs::path output = dir.path() / "out";
  const fs::path tokenizer = dir.write("tokenizer.json", "tokens");
  int64_t syncs = 0;
  {
    const WatchedDisk disk;
    write_model(output, tokenizer);
    syncs = disk.seen().syncs;
    EXPECT_GE(disk.seen().written, 6u);
    EXPECT_TRUE(disk.seen().unsynced_at_rename.empty());
    EXPECT_TRUE(disk.seen().synced_at_rename.contains(inode_of_path(output)));
    EXPECT_TRUE(disk.seen().synced.contains(inode_of_path(dir.path())));  // has the name
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(output), fs::directory_iterator()), 6);
  fs::remove_all(output);
  for (int64_t passing = 0; passing < syncs; ++passing) {
    SCOPED_TRACE(passing);
    passing_syncs = passing;
    EXPECT_TRUE(throws_error([&] { write_model(output, tokenizer); }, "Input/output error"));
    passing_syncs = -1;
    const bool is_last = passing + 1 == syncs;
    EXPECT_EQ(fs::exists(output), is_last);
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()),
              is_last ? 2 : 1);
  }
}

TEST(Durability, ResultsAreOnDiskBeforeTheyHaveTheirName) {
  const TempDir dir;
  PartialFile file(dir.path() / "out");
  const WatchedDisk disk;
  file.append("one");
  file.publish(Existing::keep);
  EXPECT_GE(disk.seen().written, 1u);
  EXPECT_TRUE(disk.seen().unsynced_at_rename.empty());
  EXPECT_TRUE(disk.seen().synced.contains(inode_of_path(dir.path())));
}

TEST(Durability, AMarkIsOnDisk) {
  const TempDir dir;
  const RunMarkFile file(dir.path() / "mark");
  const WatchedDisk disk;
  file.write({.run = {{"--temp", "0.7"}}});
  EXPECT_GE(disk.seen().written, 1u);
  EXPECT_TRUE(disk.seen().unsynced_at_rename.empty());
  EXPECT_TRUE(disk.seen().synced.contains(inode_of_path(dir.path())));
}

// Some network file systems report a full disk only when a file is closed.
TEST(Durability, AFileThatCannotBeClosedIsAnError) {
  const TempDir dir;
  OutputFile file(dir.path() / "out");
  close_error = EDQUOT;
  const auto failed = throws_error([&] { file.close(); }, "out: Disk quota exceeded");
  close_error = 0;
  EXPECT_TRUE(failed);
}

TEST(InterruptedCalls, LineReader) {
  const TempDir dir;
  const std::string text = some_text(1000);
  LineReader reader(dir.write("in", text), 1 << 20);
  std::string all;
  {
    const InterruptedCalls calls(11);
    LineReader::Line line;
    while (reader.next(line)) {
      all += std::string(line.text) + (line.has_end ? "\n" : "");
    }
    EXPECT_GT(calls.calls(), 100);
  }
  EXPECT_EQ(all, text);
  reader.rewind();
  const InterruptedCalls calls(11, EIO, 5);
  EXPECT_TRUE(throws_error(
      [&] {
        LineReader::Line line;
        while (reader.next(line)) {
        }
      },
      "Input/output error"));
}

TEST(InterruptedCalls, MappedFile) {
  const TempDir dir;
  const std::string text = some_text(1000);
  const MappedFile file(dir.write("in", text));
  std::string copy(600, '\0');
  const auto read = [&] {
    file.read(file.bytes().subspan(300, 600), reinterpret_cast<std::byte*>(copy.data()));
  };
  {
    const InterruptedCalls calls(17);
    read();
    EXPECT_GT(calls.calls(), 60);
  }
  EXPECT_EQ(copy, text.substr(300, 600));
  const InterruptedCalls calls(17, EIO, 5);
  EXPECT_TRUE(throws_error(read, "Input/output error"));
}

}  // namespace
}  // namespace sparsellm
