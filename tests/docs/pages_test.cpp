// The form of the pages.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/docs/markdown.h"
#include "tests/testing/paths.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
  }
  return lines;
}

TEST(DocsPages, ReadmeIsOnePage) {
  constexpr size_t kMostLines = 150;
  const size_t lines = lines_of(testing::source_dir() / "README.md").size();
  EXPECT_GT(lines, 50u);
  EXPECT_LE(lines, kMostLines);
}

TEST(DocsPages, LinesFitAScreen) {
  constexpr size_t kMostColumns = 120;  // but of a row of a table, which cannot be broken
  for (const fs::path& path : testing::all_pages()) {
    const std::vector<std::string> lines = lines_of(path);
    for (size_t i = 0; i < lines.size(); ++i) {
      const bool is_row = lines[i].find_first_not_of(' ') == lines[i].find('|');
      EXPECT_TRUE(is_row || lines[i].size() <= kMostColumns)
          << path.string() << ":" << i + 1 << " has " << lines[i].size() << " columns";
    }
  }
}

TEST(DocsPages, TablesHaveAHead) {
  for (const fs::path& path : testing::all_pages()) {
    for (const testing::Table& table : testing::read_page(path).tables) {
      EXPECT_TRUE(table.has_head) << path.string() << ":" << table.line;
    }
  }
}

// <!-- table: NAME -->, the table, <!-- /table -->; no name twice in a page.
TEST(DocsPages, NamedTablesEnd) {
  constexpr char kEnd[] = "<!-- /table -->";
  for (const fs::path& path : testing::all_pages()) {
    std::vector<std::string> names;
    bool open = false;
    for (const std::string& line : lines_of(path)) {
      if (line.starts_with("<!-- table: ")) {
        EXPECT_FALSE(open) << path.string() << ": " << names.back() << " does not end";
        EXPECT_EQ(std::ranges::count(names, line), 0) << path.string() << ": " << line;
        names.push_back(line);
        open = true;
      } else if (line == kEnd) {
        EXPECT_TRUE(open) << path.string() << ": an end without a beginning";
        open = false;
      }
    }
    EXPECT_FALSE(open) << path.string() << ": " << names.back() << " does not end";
  }
}

}  // namespace
}  // namespace sparsellm
