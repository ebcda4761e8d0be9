#include "kernels/base/tune_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>

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

TEST(TuneCache, KeepsWhatWasPut) {
  const TempDir dir;
  const fs::path path = dir.path() / "tuned.json";
  TuneCache cache(path);
  EXPECT_EQ(cache.problem(), "");
  EXPECT_FALSE(cache.find("a"));
  cache.put("a", "1");
  cache.put("b \"quoted\"\n", "two words");
  cache.put("a", "3");
  EXPECT_EQ(cache.find("a"), "3");
  EXPECT_FALSE(fs::exists(path));
  cache.save();
  const TuneCache again(path);
  EXPECT_EQ(again.problem(), "");
  EXPECT_EQ(again.find("a"), "3");
  EXPECT_EQ(again.find("b \"quoted\"\n"), "two words");
  EXPECT_FALSE(again.find("c"));
  EXPECT_EQ(files_in(dir.path()), 1);
}

TEST(TuneCache, MakesItsFolder) {
  const TempDir dir;
  const fs::path path = dir.path() / "caches" / "sparsellm" / "tuned.json";
  TuneCache cache(path);
  cache.put("a", "1");
  cache.save();
  EXPECT_EQ(TuneCache(path).find("a"), "1");
}

TEST(TuneCache, InMemoryNothingIsWritten) {
  TuneCache cache;
  cache.put("a", "1");
  cache.save();
  EXPECT_EQ(cache.find("a"), "1");
  EXPECT_EQ(cache.problem(), "");
  TuneCache no_path{fs::path()};
  no_path.put("a", "1");
  no_path.save();
  EXPECT_EQ(no_path.find("a"), "1");
}

TEST(TuneCache, AnUnchangedCacheIsNotWritten) {
  const TempDir dir;
  const fs::path path = dir.path() / "tuned.json";
  TuneCache(path).save();
  EXPECT_FALSE(fs::exists(path));
  TuneCache cache(path);
  cache.put("a", "1");
  cache.save();
  fs::remove(path);
  cache.save();
  cache.put("a", "1");
  cache.save();
  EXPECT_FALSE(fs::exists(path));
  cache.put("a", "2");
  cache.save();
  EXPECT_EQ(TuneCache(path).find("a"), "2");
}

TEST(TuneCache, MergesWithWhatOthersSaved) {
  const TempDir dir;
  const fs::path path = dir.path() / "tuned.json";
  TuneCache first(path);
  TuneCache second(path);
  first.put("a", "first");
  first.put("b", "first");
  first.save();
  second.put("b", "second");
  second.put("c", "second");
  second.save();
  EXPECT_EQ(second.find("a"), "first");
  const TuneCache all(path);
  EXPECT_EQ(all.find("a"), "first");
  EXPECT_EQ(all.find("b"), "second");
  EXPECT_EQ(all.find("c"), "second");
  // What was only read does not undo what another process has changed since.
  first.put("d", "first");
  first.save();
  EXPECT_EQ(TuneCache(path).find("b"), "second");
  EXPECT_EQ(first.find("b"), "second");
}

TEST(TuneCache, ADamagedFileIsEmptyAndStays) {
  const std::string good =
      R"({"format": "sparsellm tune cache", "version": 1, "entries": {"a": "1"}})";
  const std::string damaged[] = {
      "",
      "{",
      "[]",
      "null",
      "{}",
      good.substr(0, good.size() - 1),
      good + "x",
      std::string("\0\0\0\0", 4),
      "\xff\xfe",
      std::string(100000, '['),
      R"({"format": "other", "version": 1, "entries": {}})",
      R"({"format": "sparsellm tune cache", "version": 2, "entries": {}})",
      R"({"format": "sparsellm tune cache", "version": "1", "entries": {}})",
      R"({"format": "sparsellm tune cache", "version": 1})",
      R"({"format": "sparsellm tune cache", "version": 1, "entries": []})",
      R"({"format": "sparsellm tune cache", "version": 1, "entries": {"a": 1}})",
      R"({"format": "sparsellm tune cache", "version": 1, "entries": {"a": {}}})",
      R"({"format": "sparsellm tune cache", "version": 1, "entries": {"a": "1", "a": "2"}})",
      R"({"format": "sparsellm tune cache", "version": 1, "entries": {}, "more": 1})",
  };
  for (const std::string& text : damaged) {
    const TempDir dir;
    const fs::path path = dir.write("tuned.json", text);
    TuneCache cache(path);
    EXPECT_NE(cache.problem(), "") << text.substr(0, 100);
    EXPECT_EQ(cache.problem().find('\n'), std::string::npos) << cache.problem();
    EXPECT_NE(cache.problem().find("tuned.json"), std::string::npos) << cache.problem();
    EXPECT_FALSE(cache.find("a"));
    cache.save();
    EXPECT_EQ(text_of(path), text);
    cache.put("b", "2");
    EXPECT_TRUE(throws_error([&] { cache.save(); }, "it is not replaced"));
    EXPECT_EQ(text_of(path), text);  // it may be anything
    EXPECT_EQ(cache.find("b"), "2");
  }
  const TempDir dir;
  const TuneCache cache(dir.write("tuned.json", good));
  EXPECT_EQ(cache.problem(), "");
  EXPECT_EQ(cache.find("a"), "1");
}

TEST(TuneCache, AnOversizedFileIsEmpty) {
  const TempDir dir;
  const fs::path path = dir.write("tuned.json", "{");
  fs::resize_file(path, uintmax_t{1} << 33);  // sparse: takes no room
  const TuneCache cache(path);
  EXPECT_NE(cache.problem().find("bytes"), std::string::npos) << cache.problem();
  EXPECT_FALSE(cache.find("a"));
}

// Names that savers who crashed have left behind are passed over.
TEST(TuneCache, SavesBesideWhatOthersLeft) {
  const TempDir dir;
  const fs::path path = dir.path() / "tuned.json";
  for (int i = 0; i < 3; ++i) {
    dir.write(fmt::format("tuned.json.{}-{}.partial", ::getpid(), i), "another's");
  }
  TuneCache cache(path);
  cache.put("a", "1");
  cache.save();
  EXPECT_EQ(TuneCache(path).find("a"), "1");
  EXPECT_EQ(files_in(dir.path()), 4);
  EXPECT_EQ(text_of(dir.path() / fmt::format("tuned.json.{}-0.partial", ::getpid())), "another's");
}

TEST(TuneCache, AFolderIsNoCache) {
  const TempDir dir;
  TuneCache cache(dir.path());
  EXPECT_NE(cache.problem(), "");
  cache.put("a", "1");
  EXPECT_TRUE(throws_error([&] { cache.save(); }, dir.path().string()));
  EXPECT_EQ(files_in(dir.path()), 0);
  fs::path beside = dir.path();
  beside += fmt::format(".{}-0.partial", ::getpid());
  EXPECT_FALSE(fs::exists(beside));
}

TEST(TuneCache, SavingWhereNothingCanBeWrittenIsAnError) {
  const TempDir dir;
  dir.write("file", "not a folder");
  const fs::path path = dir.path() / "file" / "tuned.json";
  TuneCache cache(path);
  cache.put("a", "1");
  EXPECT_TRUE(throws_error([&] { cache.save(); }, path.string()));
  EXPECT_EQ(cache.find("a"), "1");
}

// Of a full disk there is half a file, which must not stay.
TEST(TuneCache, WhatCannotBeWrittenWholeIsNotThere) {
  const TempDir dir;
  const fs::path path = dir.path() / "tuned.json";
  TuneCache cache(path);
  cache.put("a", "1");
  cache.save();
  const std::string before = text_of(path);
  cache.put("b", std::string(10'000, 'b'));
  struct rlimit old {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit low { .rlim_cur = 1000, .rlim_max = old.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const bool failed = throws_error([&] { cache.save(); }, "File too large");
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(failed);
  EXPECT_EQ(text_of(path), before);
  EXPECT_EQ(files_in(dir.path()), 1);
  cache.save();
  EXPECT_EQ(TuneCache(path).find("b"), std::string(10'000, 'b'));
}

TEST(TuneCache, TextThatIsNotUtf8DoesNoHarm) {
  const TempDir dir;
  const fs::path path = dir.path() / "tuned.json";
  TuneCache cache(path);
  cache.put("a\xff", "b\xff");
  cache.put("c", "d");
  cache.save();
  const TuneCache again(path);
  EXPECT_EQ(again.problem(), "");
  EXPECT_EQ(again.find("c"), "d");
}

}  // namespace
}  // namespace sparsellm
