// The tables, figures and pictures of the pages are what docs/benchmarks/tables.py makes of the
// reports beside it. Skipped where there is no python3.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::Outcome;
using testing::TempDir;

Outcome run_python(std::vector<std::string> args) {
  args.insert(args.begin(), {"python3", "-B"});  // -B: leaves no compiled files
  return testing::run_program("/usr/bin/env", args);
}

// Of the pages below `root`.
Outcome run_tables(const fs::path& root, std::vector<std::string> args) {
  args.insert(args.begin(), {(testing::source_dir() / "docs/benchmarks/tables.py").string(),
                             "--root", root.string()});
  return run_python(std::move(args));
}

void copy_pages(const fs::path& root) {
  fs::copy(testing::source_dir() / "docs", root / "docs", fs::copy_options::recursive);
  fs::copy(testing::source_dir() / "README.md", root / "README.md");
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), with);
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class DocsTables : public ::testing::Test {
 protected:
  void SetUp() override {
    if (run_python({"-c", ""}).exit_code != 0) {
      GTEST_SKIP() << "there is no python3";
    }
  }
};

TEST_F(DocsTables, AreMadeFromTheReports) {
  const Outcome outcome = run_tables(testing::source_dir(), {"--check"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err << "run docs/benchmarks/tables.py";
}

TEST_F(DocsTables, TypedFiguresAreFoundAndMadeAnew) {
  const TempDir folder;
  copy_pages(folder.path());
  const fs::path page = folder.path() / "README.md";
  const std::string text = testing::read_file(page);
  const std::string head = "<!-- table: readme -->\n";
  write(page, replaced(text, head, head + "| typed |\n"));

  const Outcome check = run_tables(folder.path(), {"--check"});
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_EQ(check.out, "README.md would change\n") << check.err;
  EXPECT_NE(testing::read_file(page), text);

  const Outcome made = run_tables(folder.path(), {});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(made.out, "README.md written\n");
  EXPECT_EQ(testing::read_file(page), text);
}

TEST_F(DocsTables, ReportsThatAreMissingOrNotVerifiedAreErrors) {
  const TempDir folder;
  copy_pages(folder.path());
  const fs::path report = folder.path() / "docs/benchmarks/h200/kernel_means.jsonl";
  const std::string text = testing::read_file(report);
  const auto expect_error = [&](const std::string& what) {
    const Outcome outcome = run_tables(folder.path(), {});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_TRUE(outcome.err.starts_with("tables.py: ")) << outcome.err;
    EXPECT_NE(outcome.err.find(what), std::string::npos) << outcome.err;
  };
  write(report, replaced(text, "\"note\":\"", "\"note\":\"NOT VERIFIED: "));
  expect_error("NOT VERIFIED");
  write(report, replaced(text, "\"command\":\"", "\"command\":\"/usr/bin/"));
  expect_error("absolute path");
  fs::remove(report);
  expect_error("there is no ");
}

TEST_F(DocsTables, KnowTheNamesOfTheirTables) {
  const TempDir folder;
  copy_pages(folder.path());
  const fs::path page = folder.path() / "docs/run.md";
  write(page, "<!-- table: no-such-table -->\n<!-- /table -->\n");
  const Outcome outcome = run_tables(folder.path(), {"--check"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("no table is called no-such-table"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace sparsellm
