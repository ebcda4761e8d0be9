#include "tools/run/run_mark.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::throws_error;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(RunMark, IsReadAsItWasWritten) {
  const testing::TempDir directory;
  const RunMarkFile file(directory.path() / "mark");
  EXPECT_EQ(file.read(), std::nullopt);
  RunMark mark{.run = {{"--stop", "[\"\\n\",\"\xc3\xb6\"]"}, {"", ""}, {"--temp", "0.7"}}};
  for (const auto partial :
       {RunMark::Partial::older, RunMark::Partial::own, RunMark::Partial::complete}) {
    mark.partial = partial;
    mark.replaces = !mark.replaces;
    file.write(mark);
    EXPECT_EQ(file.read(), mark);
    mark.bytes = std::numeric_limits<int64_t>::max();
    mark.checksum = partial == RunMark::Partial::own ? 0xffffffffu : 0x0000000au;
  }
  EXPECT_FALSE(fs::exists(file.new_path()));
  file.remove();
  EXPECT_EQ(file.read(), std::nullopt);
  file.remove();
}

TEST(RunMark, ReplacesWhatIsThere) {
  const testing::TempDir directory;
  const RunMarkFile file(directory.path() / "mark");
  const fs::path other = directory.write("other", "mine");
  directory.write("mark.new", "of a run that was killed");
  fs::create_symlink("other", file.path());
  file.write({});
  EXPECT_EQ(file.read(), RunMark());
  fs::remove(file.path());
  fs::create_symlink("other", file.new_path());
  file.write({});
  EXPECT_EQ(file.read(), RunMark());
  EXPECT_EQ(fs::file_size(other), 4u);
  fs::remove(file.path());
  fs::create_directory(file.path());
  EXPECT_TRUE(throws_error([&] { file.write({}); }, "mark: Is a directory; remove it"));
  EXPECT_FALSE(fs::exists(file.new_path()));
  const RunMarkFile nowhere(directory.path() / "none" / "mark");
  EXPECT_TRUE(throws_error([&] { nowhere.write({}); }, "No such file or directory"));
}

TEST(RunMark, DamageIsAnError) {
  const testing::TempDir directory;
  const RunMarkFile file(directory.path() / "mark");
  file.write({.checksum = 0xau, .run = {{"--temp", "0.7"}}});
  const std::string good = text_of(file.path());
  struct Case {
    std::string from;
    std::string to;
    std::string error;
  };
  const std::vector<Case> cases{{"run mark", "run map", "expected \"sparsellm run mark\""},
                                {"\"version\": 1", "\"version\": 2", "version is 2"},
                                {"\"own\"", "\"newer\"", "expected older, own or complete"},
                                {"0000000a", "0000000A", "expected 8 hexadecimal digits"},
                                {"0000000a", "a", "expected 8 hexadecimal digits"},
                                {"0000000a", "0000000ag", "expected 8 hexadecimal digits"},
                                {"\"bytes\": 0", "\"bytes\": -1", "bytes is -1"},
                                {"\"replaces\"", "\"replaced\"", "unknown key \"replaced\""},
                                {"\"0.7\"", "0.7", "expected a string"},
                                {"}", "", "JSON"}};
  for (const Case& damage : cases) {
    SCOPED_TRACE(damage.to);
    std::string text = good;
    const size_t at = text.find(damage.from);
    ASSERT_NE(at, std::string::npos) << good;
    text.replace(at, damage.from.size(), damage.to);
    directory.write("mark", text);
    EXPECT_TRUE(throws_error([&] { file.read(); }, damage.error));
  }
  directory.write("mark", good);
  EXPECT_EQ(file.read()->checksum, 0xau);
  fs::remove(file.path());
  fs::create_directory(file.path());
  EXPECT_TRUE(throws_error([&] { file.read(); }, "not a regular file"));
}

TEST(RunMark, NamesTheFirstDifference) {
  struct Case {
    RunEntries before;
    RunEntries now;
    std::string words;
    std::string words_without_missing;
  };
  const std::string hostile = "a\n\x1b[2J" + std::string(1000, 'x');
  const std::vector<Case> cases{
      {{}, {}, "", ""},
      {{{"--temp", "0.7"}}, {{"--temp", "0.7"}}, "", ""},
      {{{"--temp", "0.7"}}, {{"--temp", "1"}}, "--temp was 0.7, is 1", "--temp was 0.7, is 1"},
      {{{"--a", "1"}, {"--b", "1"}, {"b", "1"}},
       {{"--b", "2"}, {"b", "2"}},
       "--a was 1, is not set",
       "--b was 1, is 2"},
      {{}, {{"--a", ""}}, "--a was not set, is \"\"", ""},
      {{{"config.json", "1"}},
       {{"config.json", "2"}},
       "the model's config.json has changed",
       "the model's config.json has changed"},
      {{{"model.safetensors", "1"}, {"x", "1"}},
       {{"model.safetensors", "2"}},
       "the model's weights have changed: model.safetensors",
       "the model's weights have changed: model.safetensors"},
      {{{"generation_config.json", "1"}}, {}, "the model no longer has generation_config.json", ""},
      {{}, {{"b.safetensors", "1"}}, "the model has a new b.safetensors", ""},
      {{{"prompts", "1"}},
       {{"prompts", "2"}},
       "the prompts have changed",
       "the prompts have changed"},
      {{{"--a", hostile}},
       {{"--a", "1"}},
       "--a was \"a\\n\\u001b[2J" + std::string(94, 'x') + "\"..., is 1",
       "--a was \"a\\n\\u001b[2J" + std::string(94, 'x') + "\"..., is 1"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(difference(c.before, c.now, MissingEntries::differ), c.words);
    EXPECT_EQ(difference(c.before, c.now, MissingEntries::ignored), c.words_without_missing);
  }
}

TEST(RunMark, EntryOfAFile) {
  EXPECT_EQ(file_entry(7, ""), "7 bytes");
  EXPECT_EQ(file_entry(7, "0000000a"), "7 bytes, crc32c 0000000a");
}

}  // namespace
}  // namespace sparsellm
