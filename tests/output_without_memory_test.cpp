// What is written when memory runs out at any moment: it is there as a whole or not at all, what it
// was to replace is not lost, and nothing is left beside it.

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "kernels/base/tune_cache.h"
#include "models/storage/model_writer.h"
#include "models/storage/output_directory.h"
#include "tests/testing/failing_allocations.h"
#include "tests/testing/temp_dir.h"
#include "tools/run/partial_file.h"
#include "tools/run/run_mark.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::plan;
using testing::TempDir;
using Files = std::map<std::string, std::string>;  // contents by path

Files files_of(const fs::path& directory) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    files[entry.path().lexically_relative(directory).string()] =
        entry.is_directory() ? "a directory" : read_text_file(entry.path(), 1 << 20);
  }
  return files;
}

// Whether it comes to its end.
bool succeeds(const std::function<void()>& body) {
  try {
    const testing::Armed armed;
    body();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const Error&) {  // of functions of the library that make an error code of it
    return false;
  }
}

// Calls `test` with one allocation after the other failing; then with all failing from one on.
void with_each_failure(const std::function<void()>& test) {
  for (int64_t failing : {int64_t{1}, testing::kAllAllocations}) {
    int64_t passing = 0;
    do {
      SCOPED_TRACE(::testing::Message() << failing << " from allocation " << passing << " on");
      plan = {.armed = false, .passing = passing++, .failing = failing, .failures = 0};
      test();
    } while (plan.failures > 0 && !::testing::Test::HasFailure());
    EXPECT_TRUE(passing > 1 || ::testing::Test::HasFailure()) << "nothing was allocated";
  }
}

void write_model(const fs::path& output, std::string_view tensor) {
  ModelWriter writer(output, {.existing = OutputDirectory::Existing::replace});
  writer.write_text("config.json", "{}");
  writer.add("a", StoredTensor{.dtype = "U8",
                               .shape = {std::ssize(tensor)},
                               .bytes = std::as_bytes(std::span(tensor))});
  writer.finish();
}

TEST(WithoutMemory, AModelIsTheOlderOneOrTheNewOne) {
  const TempDir expected;
  write_model(expected.path() / "out", "old");
  const Files older = files_of(expected.path());
  write_model(expected.path() / "out", "new");
  const Files newer = files_of(expected.path());
  for (const Files& before : {Files(), older}) {
    with_each_failure([&] {
      const TempDir directory;
      const fs::path output = directory.path() / "out";
      if (!before.empty()) {
        write_model(output, "old");
      }
      const bool done = succeeds([&] { write_model(output, "new"); });
      const Files now = files_of(directory.path());
      EXPECT_TRUE(now == newer || (!done && now == before));
    });
  }
}

// In one step they take no memory.
TEST(WithoutMemory, DirectoriesChangePlacesInThreeStepsOrNot) {
  with_each_failure([] {
    const TempDir directory;
    directory.write("a/x", "");
    directory.write("b/y", "");
    const fs::path a = directory.path() / "a";
    const fs::path b = directory.path() / "b";
    const Files before = files_of(directory.path());
    const bool done = succeeds([&] { exchange_directories(a, b, ExchangeBy::three_renames); });
    const Files after{{"a", "a directory"}, {"a/y", ""}, {"b", "a directory"}, {"b/x", ""}};
    EXPECT_EQ(files_of(directory.path()), done ? after : before);
  });
}

TEST(WithoutMemory, APartialFileHasALineOrIsNotThere) {
  with_each_failure([] {
    const TempDir directory;
    const fs::path output = directory.path() / "out";
    const bool done = succeeds([&] {
      PartialFile file(output);
      file.append("one");
      file.publish(Existing::keep);
    });
    const Files now = files_of(directory.path());
    EXPECT_TRUE(now == (Files{{"out", "one\n"}}) ||
                (!done && (now.empty() || now == Files{{"out.partial", "one\n"}})));
  });
}

TEST(WithoutMemory, AMarkIsTheOlderOneOrTheNewOne) {
  const RunMark older{.run = {{"--temp", "0.7"}}};
  const RunMark newer{.run = {{"--temp", "0.8"}}};
  with_each_failure([&] {
    const TempDir directory;
    const RunMarkFile file(directory.path() / "mark");
    file.write(older);
    const bool done = succeeds([&] { file.write(newer); });
    EXPECT_TRUE(file.read() == newer || (!done && file.read() == older));
    EXPECT_EQ(files_of(directory.path()).size(), 1u);
  });
}

TEST(WithoutMemory, ATuneCacheIsSavedOrNot) {
  with_each_failure([] {
    const TempDir directory;
    TuneCache cache(directory.path() / "cache");
    cache.put("key", "value");
    const bool done = succeeds([&] { cache.save(); });
    const Files now = files_of(directory.path());
    EXPECT_TRUE(now.contains("cache") || !done);
    EXPECT_EQ(now.size(), now.count("cache"));
  });
}

}  // namespace
}  // namespace sparsellm
