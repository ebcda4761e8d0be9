#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace sparsellm::testing {

// The parts of a page in GitHub's Markdown that tests look at.

struct CodeBlock {
  std::string info;  // "sh run" of ```sh run
  std::string text;  // with the ends of its lines
  int line = 0;      // of the page, from 1 on; of the fence
};

struct Table {
  // The HTML comment before it, from its first word on; empty if there is none, or if anything but
  // blank lines stands between the two.
  std::string comment;
  std::vector<std::vector<std::string>> rows;  // cells; the first row is the head
  bool has_head = false;                       // and a rule below it; else GitHub shows no table
  int line = 0;
};

struct Link {
  std::string target;  // "docs/run.md#flags"
  int line = 0;
};

struct Page {
  std::filesystem::path path;
  std::vector<CodeBlock> blocks;
  std::vector<Table> tables;
  std::vector<Link> links;              // not those in code
  std::set<std::string> anchors;        // of headings, without #
  std::vector<std::string> code_spans;  // `...`, those in tables too
};

Page parse_page(std::filesystem::path path, std::string_view text);
// Throws Error for a file that cannot be read.
Page read_page(const std::filesystem::path& path);

// The texts between single or several backticks in a line.
std::vector<std::string> code_spans(std::string_view line);

// README.md and the pages in its folder, all pages below docs, and those of tests/data.
std::vector<std::filesystem::path> all_pages();
// Of these, README.md and the pages directly in docs: without notes.
std::vector<std::filesystem::path> manual_pages();

}  // namespace sparsellm::testing
