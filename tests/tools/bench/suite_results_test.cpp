// Results of suites: whole lines, whatever happens to the process that writes them.

#include "tools/bench/suite/suite_results.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/base/mapped_file.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::throws_error;

SuiteResult result_of(const std::string& cell) {
  return {.key = {.suite = "fig", .cell = cell, .commit = "abc", .gpu = "H200"},
          .row = R"({"batch":8,"tokens_per_gpu_second":12.5})",
          .environment = R"({"driver":"550"})"};
}

class SuiteResultsTest : public ::testing::Test {
 protected:
  std::string text() const { return read_text_file(file_, 1 << 20); }
  void write(const std::string& bytes) const {
    fs::create_directories(folder_);
    std::ofstream(file_, std::ios::binary) << bytes;
  }
  std::vector<std::string> cells() const {
    std::vector<std::string> cells;
    for (const SuiteResult& result : read_suite_results(folder_)) {
      cells.push_back(result.key.cell);
    }
    return cells;
  }

  testing::TempDir directory_;
  fs::path folder_ = directory_.path() / "results" / "h200";
  fs::path file_ = folder_ / "results.jsonl";
};

TEST_F(SuiteResultsTest, LinesAreWhatWasAdded) {
  EXPECT_TRUE(read_suite_results(folder_).empty());
  SuiteResult failed = result_of("b");
  failed.row.clear();
  failed.error = "no memory\nat all \xff";
  SuiteResult parts = result_of("c/\"quoted\"");
  parts.key.gpu_memory = "24G";
  parts.groups = R"([{"group":"attention"},{"group":"other"}])";
  {
    SuiteResults results(folder_);
    EXPECT_EQ(results.cut(), 0);
    results.append(result_of("a"));
    EXPECT_EQ(text(),
              R"({"suite":"fig","cell":"a","commit":"abc","gpu":"H200",)"
              R"("row":{"batch":8,"tokens_per_gpu_second":12.5},"environment":{"driver":"550"}})"
              "\n");  // at once, not at the end
    results.append(failed);
    results.append(parts);
    EXPECT_EQ(results.all().size(), 3u);
  }
  const std::vector<SuiteResult> read = read_suite_results(folder_);
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0], result_of("a"));
  EXPECT_EQ(read[1].error, "no memory\nat all \xef\xbf\xbd");
  EXPECT_EQ(read[2], parts);
  SuiteResults again(folder_);
  EXPECT_EQ(again.all(), read);
  again.append(result_of("d"));
  EXPECT_EQ(cells(), (std::vector<std::string>{"a", "b", "c/\"quoted\"", "d"}));
}

// Every state that a killed process can leave behind.
TEST_F(SuiteResultsTest, ATornLineIsCutOff) {
  {
    SuiteResults results(folder_);
    results.append(result_of("a"));
    results.append(result_of("b"));
  }
  const std::string two = text();
  {
    SuiteResults results(folder_);
    results.append(result_of("c"));
  }
  const std::string three = text();
  const std::vector<std::string> expected{"a", "b", "c"};
  for (size_t size = two.size(); size <= three.size(); ++size) {
    SCOPED_TRACE(size);
    write(three.substr(0, size));
    const bool whole = size == three.size();
    EXPECT_EQ(cells().size(), whole ? 3u : 2u);
    SuiteResults results(folder_);
    EXPECT_EQ(results.cut(), whole ? 0 : static_cast<int64_t>(size - two.size()));
    EXPECT_EQ(text(), whole ? three : two);
    if (!whole) {
      EXPECT_EQ(results.find_done(result_of("c").key), nullptr);
      results.append(result_of("c"));
    }
    EXPECT_EQ(text(), three);
    EXPECT_EQ(cells(), expected);
  }
  // Of a file that a machine that went down left with zeros.
  write(two + std::string(100, '\0'));
  EXPECT_EQ(SuiteResults(folder_).all().size(), 2u);
  EXPECT_EQ(text(), two);
}

TEST_F(SuiteResultsTest, AProcessThatIsKilledLeavesWholeLines) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      SuiteResults results(folder_);
      for (int i = 0; i < 100'000; ++i) {
        results.append(result_of(std::to_string(i)));
      }
    } catch (const std::exception&) {
      // The parent sees that there are too few lines.
    }
    ::_exit(0);
  }
  for (int i = 0; i < 20'000 && (!fs::exists(file_) || fs::file_size(file_) < 3000); ++i) {
    ::usleep(1000);
  }
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  SuiteResults results(folder_);
  ASSERT_GT(results.all().size(), 10u);
  for (size_t i = 0; i < results.all().size(); ++i) {
    EXPECT_EQ(results.all()[i], result_of(std::to_string(i)));
  }
}

TEST_F(SuiteResultsTest, OneProcessWritesAtATime) {
  const SuiteResults results(folder_);
  EXPECT_TRUE(throws_error([&] { SuiteResults{folder_}; }, "another process is writing "));
  EXPECT_TRUE(read_suite_results(folder_).empty());  // but others may read
}

TEST_F(SuiteResultsTest, ADiskThatIsFullKeepsNoPartOfALine) {
  SuiteResults results(folder_);
  results.append(result_of("a"));
  const std::string one = text();
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const size_t room : {size_t{0}, size_t{1}, one.size() - 1}) {
    rlimit limit = before;
    limit.rlim_cur = one.size() + room;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_TRUE(throws_error([&] { results.append(result_of("b")); }, "cannot write "));
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(text(), one);
    EXPECT_EQ(results.all().size(), 1u);
  }
  ::signal(SIGXFSZ, SIG_DFL);
  results.append(result_of("b"));
  EXPECT_EQ(cells(), (std::vector<std::string>{"a", "b"}));
}

TEST_F(SuiteResultsTest, AFileThatOthersChangeIsNotAddedTo) {
  SuiteResults results(folder_);
  results.append(result_of("a"));
  std::ofstream(file_, std::ios::app) << "{";
  EXPECT_TRUE(throws_error([&] { results.append(result_of("b")); }, "another program has changed"));
  fs::remove(file_);
  EXPECT_TRUE(throws_error([&] { results.append(result_of("b")); }, "another program has changed"));
}

TEST_F(SuiteResultsTest, WhatIsDone) {
  SuiteResults results(folder_);
  const SuiteResult good = result_of("a");
  EXPECT_EQ(results.find_done(good.key), nullptr);
  SuiteResult failed = good;
  failed.row.clear();
  failed.error = "no memory";
  results.append(failed);
  EXPECT_EQ(results.find_done(good.key), nullptr);
  results.append(good);
  ASSERT_NE(results.find_done(good.key), nullptr);
  EXPECT_EQ(*results.find_done(good.key), good);
  const auto is_done = [&](auto&& change) {
    SuiteResultKey key = good.key;
    change(key);
    return results.find_done(key) != nullptr;
  };
  EXPECT_FALSE(is_done([](SuiteResultKey& key) { key.suite = "fig2"; }));
  EXPECT_FALSE(is_done([](SuiteResultKey& key) { key.cell = "b"; }));
  EXPECT_FALSE(is_done([](SuiteResultKey& key) { key.commit = "abd"; }));
  EXPECT_FALSE(is_done([](SuiteResultKey& key) { key.gpu = "H100"; }));
  EXPECT_FALSE(is_done([](SuiteResultKey& key) { key.gpu_memory = "24G"; }));
  EXPECT_TRUE(is_done([](SuiteResultKey&) {}));
}

TEST_F(SuiteResultsTest, WhatIsWrongIsNamedByItsLine) {
  const std::string good = to_json_line(result_of("a")) + "\n";
  const auto refuses = [&](const std::string& line, const std::string& message) {
    write(good + line + "\n" + good);
    const auto reads = throws_error([&] { read_suite_results(folder_); }, message);
    const std::string before = text();
    const auto opens = throws_error([&] { SuiteResults{folder_}; }, "results.jsonl: line 2");
    EXPECT_EQ(text(), before);  // nothing was cut off
    return reads ? opens : reads;
  };
  EXPECT_TRUE(refuses("", "results.jsonl: line 2"));
  EXPECT_TRUE(refuses("{\"suite\":", "results.jsonl: line 2"));
  EXPECT_TRUE(refuses("[]", "line 2"));
  EXPECT_TRUE(refuses(std::string(8, '\0'), "line 2"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string line = to_json_line(result_of("a"));
    return line.replace(line.find(from), from.size(), to);
  };
  EXPECT_TRUE(refuses(with("\"suite\"", "\"siute\""), "line 2 has the unknown key \"siute\""));
  EXPECT_TRUE(refuses(with("\"fig\"", "\"\""), "line 2: suite is \"\""));
  EXPECT_TRUE(refuses(with("\"a\"", "7"), "line 2: cell is 7"));
  EXPECT_TRUE(refuses(with("\"commit\":\"abc\",", ""), "line 2: commit is missing"));
  EXPECT_TRUE(refuses(with("\"row\":", "\"groups\":"), "line 2: row is missing"));
  EXPECT_TRUE(refuses(with("\"row\":", "\"error\":\"e\",\"row\":"), "line 2: row is an object"));
  EXPECT_TRUE(refuses(with("{\"driver\":\"550\"}", "[]"), "line 2: environment is an array"));
  EXPECT_TRUE(refuses(with("\"row\":", "\"groups\":[1],\"row\":"), "groups[0] is 1"));
  EXPECT_TRUE(refuses(with("\"gpu\":\"H200\"", "\"gpu\":null"), "line 2: gpu"));
}

TEST_F(SuiteResultsTest, WhatIsNoLineIsNotAdded) {
  SuiteResults results(folder_);
  const auto refuses = [&](auto&& change) {
    SuiteResult result = result_of("a");
    change(result);
    return throws_error([&] { results.append(result); }, "the result of \"");
  };
  EXPECT_TRUE(refuses([](SuiteResult& result) { result.row = "{"; }));
  EXPECT_TRUE(refuses([](SuiteResult& result) { result.row = "{\n}"; }));
  EXPECT_TRUE(refuses([](SuiteResult& result) { result.row.clear(); }));
  EXPECT_TRUE(refuses([](SuiteResult& result) { result.error = "with a row"; }));
  EXPECT_TRUE(refuses([](SuiteResult& result) { result.groups = "{}"; }));
  EXPECT_TRUE(refuses([](SuiteResult& result) { result.environment.clear(); }));
  EXPECT_TRUE(refuses([](SuiteResult& result) { result.key.cell.clear(); }));
  EXPECT_TRUE(refuses([](SuiteResult& result) { result.key.commit.clear(); }));
  EXPECT_EQ(text(), "");
}

TEST_F(SuiteResultsTest, AFolderThatCannotBe) {
  const fs::path file = directory_.write("file", "");
  EXPECT_TRUE(throws_error([&] { SuiteResults{file}; }, "file"));
  fs::create_directories(file_);
  EXPECT_TRUE(throws_error([&] { SuiteResults{folder_}; }, "results.jsonl"));
}

}  // namespace
}  // namespace sparsellm
