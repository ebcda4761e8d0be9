#include "tests/docs/markdown.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include "kernels/base/error.h"
#include "tests/testing/paths.h"

namespace sparsellm::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFence = "```";
constexpr std::string_view kCommentBegin = "<!--";
constexpr std::string_view kCommentEnd = "-->";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  const size_t end = text.find_last_not_of(" \t\r");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin, end + 1 - begin);
}

// Backticks from `at` on.
size_t ticks_at(std::string_view line, size_t at) {
  return std::min(line.find_first_not_of('`', at), line.size()) - at;
}

// Where the code span ends that begins at `at`: after as many backticks; npos if it does not.
size_t end_of_span(std::string_view line, size_t at) {
  const size_t ticks = ticks_at(line, at);
  for (size_t end = line.find('`', at + ticks); end != std::string_view::npos;
       end = line.find('`', end + ticks_at(line, end))) {
    if (ticks_at(line, end) == ticks) {
      return end + ticks;
    }
  }
  return std::string_view::npos;
}

// Calls body(begin, end) for each code span with its backticks.
template <class Body>
void for_each_span(std::string_view line, const Body& body) {
  size_t at = line.find('`');
  while (at != std::string_view::npos) {
    const size_t end = end_of_span(line, at);
    if (end != std::string_view::npos) {
      body(at, end);
    }
    at = line.find('`', end != std::string_view::npos ? end : at + ticks_at(line, at));
  }
}

// The same line with blanks in the place of code spans.
std::string without_code(std::string_view line) {
  std::string text(line);
  for_each_span(
      line, [&](size_t begin, size_t end) { text.replace(begin, end - begin, end - begin, ' '); });
  return text;
}

// "[text](target)"
std::vector<std::string> link_targets(std::string_view line) {
  const std::string text = without_code(line);
  std::vector<std::string> targets;
  for (size_t at = text.find("]("); at != std::string::npos; at = text.find("](", at + 1)) {
    const size_t end = text.find(')', at);
    if (end != std::string::npos) {
      targets.push_back(text.substr(at + 2, end - at - 2));
    }
  }
  return targets;
}

std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  std::string cell;
  for (size_t i = 1; i < line.size(); ++i) {
    if (line[i] == '\\' && i + 1 < line.size() && line[i + 1] == '|') {
      cell += line[++i];
    } else if (line[i] == '|') {
      cells.emplace_back(trimmed(cell));
      cell.clear();
    } else {
      cell += line[i];
    }
  }
  return cells;
}

bool is_rule(std::string_view line) {  // below the head of a table
  return line.find_first_not_of("|-: ") == std::string_view::npos &&
         line.find('-') != std::string_view::npos;
}

// As GitHub makes it of a heading: small letters, blanks as dashes, without punctuation.
std::string anchor_of(std::string_view heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == ' ') {
      anchor += '-';
    } else if (byte >= 0x80 || std::isalnum(byte) != 0 || c == '-' || c == '_') {
      anchor += static_cast<char>(std::tolower(byte));
    }
  }
  return anchor;
}

// Reads a page line by line.
class Reader {
 public:
  explicit Reader(fs::path path) { page_.path = std::move(path); }

  void add(std::string_view line) {
    ++line_;
    const std::string_view text = trimmed(line);
    if (text.starts_with(kFence)) {
      return begin_or_end_block(text);
    }
    if (in_block_) {
      page_.blocks.back().text += std::string(line) + "\n";
      return;
    }
    if (text.starts_with('|')) {
      add_table_row(text);
    } else {
      in_table_ = false;
      add_other(text);
    }
    for (std::string& target : link_targets(text)) {
      page_.links.push_back({.target = std::move(target), .line = line_});
    }
    std::ranges::move(code_spans(text), std::back_inserter(page_.code_spans));
  }

  Page finish() && { return std::move(page_); }

 private:
  void begin_or_end_block(std::string_view text) {
    if (!in_block_) {
      page_.blocks.push_back(
          {.info = std::string(trimmed(text.substr(kFence.size()))), .text = {}, .line = line_});
    }
    in_block_ = !in_block_;
    comment_.clear();
  }

  void add_table_row(std::string_view text) {
    if (!in_table_) {
      page_.tables.push_back(
          {.comment = std::exchange(comment_, {}), .rows = {}, .has_head = false, .line = line_});
      in_table_ = true;
    }
    Table& table = page_.tables.back();
    if (is_rule(text)) {
      table.has_head = table.rows.size() == 1;
    } else {
      table.rows.push_back(cells_of(text));
    }
  }

  void add_other(std::string_view text) {
    if (text.starts_with(kCommentBegin) && text.ends_with(kCommentEnd)) {
      text.remove_prefix(kCommentBegin.size());
      text.remove_suffix(kCommentEnd.size());
      comment_ = trimmed(text);
    } else if (!text.empty()) {
      comment_.clear();
    }
    const size_t level = text.find_first_not_of('#');
    if (level > 0 && level < text.size() && text[level] == ' ') {
      const std::string anchor = anchor_of(trimmed(text.substr(level)));
      const int same = same_anchors_[anchor]++;
      page_.anchors.insert(same == 0 ? anchor : anchor + "-" + std::to_string(same));
    }
  }

  Page page_;
  std::map<std::string, int> same_anchors_;
  std::string comment_;
  int line_ = 0;
  bool in_block_ = false;
  bool in_table_ = false;
};

template <class Iterator>
void add_pages(const fs::path& folder, std::vector<fs::path>& pages) {
  for (const fs::directory_entry& entry : Iterator(folder)) {
    if (entry.is_regular_file() && entry.path().extension() == ".md") {
      pages.push_back(entry.path());
    }
  }
}

}  // namespace

std::vector<std::string> code_spans(std::string_view line) {
  std::vector<std::string> spans;
  for_each_span(line, [&](size_t begin, size_t end) {
    const size_t ticks = ticks_at(line, begin);
    spans.emplace_back(trimmed(line.substr(begin + ticks, end - begin - 2 * ticks)));
  });
  return spans;
}

Page parse_page(fs::path path, std::string_view text) {
  Reader reader(std::move(path));
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    reader.add(line);
  }
  return std::move(reader).finish();
}

Page read_page(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  require(file.good(), "cannot read {}", path.string());
  return parse_page(path, text.str());
}

std::vector<fs::path> all_pages() {
  const fs::path root = source_dir();
  std::vector<fs::path> pages;
  add_pages<fs::directory_iterator>(root, pages);
  add_pages<fs::recursive_directory_iterator>(root / "docs", pages);
  add_pages<fs::directory_iterator>(root / "tests/data", pages);
  std::ranges::sort(pages);
  return pages;
}

std::vector<fs::path> manual_pages() {
  const fs::path root = source_dir();
  std::vector<fs::path> pages{root / "README.md"};
  add_pages<fs::directory_iterator>(root / "docs", pages);
  std::ranges::sort(pages);
  return pages;
}

}  // namespace sparsellm::testing
