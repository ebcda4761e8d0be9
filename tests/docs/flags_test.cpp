// The manuals and --help: the tables of flags that are said to be of a command have together
// exactly the flags that it prints, with its defaults where they give any, and no page speaks of a
// flag that no command has.
// A table of flags has the comment <!-- flags: PROGRAM [SUBCOMMAND ...] --> before it.

#include <gtest/gtest.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/docs/markdown.h"
#include "tests/testing/paths.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::Page;
using testing::Table;
using Flags = std::set<std::string>;

struct Manual {
  const char* program;
  const char* page;
};
constexpr std::array kManuals{
    Manual{"sparsellm-run", "docs/run.md"},     Manual{"sparsellm-convert", "docs/convert.md"},
    Manual{"sparsellm-eval", "docs/eval.md"},   Manual{"sparsellm-bench", "docs/bench.md"},
#ifdef SPARSELLM_HAS_SERVER
    Manual{"sparsellm-serve", "docs/serve.md"},
#endif
};

// Of all commands, and not worth a row in each table.
const Flags kEverywhere{"-h", "--help", "--version"};

// Of other programs that pages name: cmake, cpack, docker, torchrun, and scripts in tools.
const Flags kOthers{"--preset",         "--build",     "--install", "--prefix",    "--config",
                    "--target",         "--rm",        "--gpus",    "--build-arg", "--minimise",
                    "--nproc-per-node", "--no-python", "--table",   "--picture"};

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// What a command prints for --help.
struct Help {
  Flags flags;
  std::map<std::string, std::string> defaults;  // by flag; of those that have one there
  std::vector<std::string> subcommands;
};

// "0.5,0.6" of "--sparsity FLOAT:FLOAT in [0 - 1]=[0.5,0.6] ...".
std::string default_in(const std::string& line) {
  static const std::regex kDefault(R"(^  \S+ [^\s=]+(?: in \[[^\]]*\])?=\[?([^\s\]]+))");
  std::smatch match;
  return std::regex_search(line, match, kDefault) ? match[1].str() : std::string();
}

Help parse_help(const std::string& text) {
  Help help;
  std::istringstream lines(text);
  bool subcommands = false;
  for (std::string line; std::getline(lines, line);) {
    subcommands = subcommands || line == "Subcommands:";
    const bool indented = line.starts_with("  ") && line.size() > 2 && line[2] != ' ';
    if (!indented) {
      continue;
    }
    const std::string first = words_of(line).front();  // "--warm-up,--no-warm-up{false}"
    if (!first.starts_with('-')) {
      if (subcommands) {
        help.subcommands.push_back(first);
      }
      continue;
    }
    std::istringstream names(first);
    for (std::string name; std::getline(names, name, ',');) {
      name.erase(std::min(name.find('{'), name.size()));
      help.flags.insert(name);
      if (const std::string value = default_in(line); !value.empty()) {
        help.defaults[name] = value;
      }
    }
  }
  return help;
}

Help help_of(const char* program, std::vector<std::string> args) {
  args.emplace_back("--help");
  const testing::Outcome outcome = testing::run_program(program, args);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return parse_help(outcome.out);
}

// By command: "sparsellm-run", "sparsellm-bench kernel".
std::map<std::string, Help> help_by_command(const char* program) {
  const Help help = help_of(program, {});
  std::map<std::string, Help> commands;
  for (const std::string& subcommand : help.subcommands) {
    commands[program + (" " + subcommand)] = help_of(program, {subcommand});
  }
  if (commands.empty()) {
    commands[program] = help;
  }
  return commands;
}

// The flag at the beginning of a word, such as "--stop" of "--stop=-"; empty if there is none.
std::string flag_in(const std::string& word) {
  const size_t begin = word.find_first_not_of('-');
  const bool good = begin != std::string::npos && (begin == 1 || begin == 2) &&
                    std::isalpha(static_cast<unsigned char>(word[begin])) != 0;
  if (!good) {
    return {};
  }
  const size_t end = word.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", begin);
  return word.substr(0, end);
}

// A row of a table of flags.
struct Row {
  std::vector<std::string> flags;
  std::optional<std::string> defaults;  // the cell, if the table has a column of them
  std::string place;                    // "docs/run.md:56"
};

Flags flags_of(const std::vector<Row>& rows) {
  Flags flags;
  for (const Row& row : rows) {
    flags.insert(row.flags.begin(), row.flags.end());
  }
  return flags;
}

std::vector<Row> rows_of(const Table& table, const std::string& place) {
  const std::vector<std::string>& head = table.rows.front();
  const bool has_defaults = head.size() > 1 && head[1] == "default";
  std::vector<Row> rows;
  for (const std::vector<std::string>& cells : table.rows) {
    Row row{.flags = {}, .defaults = {}, .place = place};
    for (const std::string& span : testing::code_spans(cells.empty() ? std::string() : cells[0])) {
      if (const std::string flag = flag_in(span); !flag.empty()) {
        row.flags.push_back(flag);
      }
    }
    if (has_defaults && cells.size() > 1) {
      row.defaults = cells[1];
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// The rows of a page's tables, by command.
std::map<std::string, std::vector<Row>> documented(const Page& page) {
  constexpr std::string_view kMark = "flags:";
  std::map<std::string, std::vector<Row>> commands;
  for (const Table& table : page.tables) {
    const std::string place = fmt::format("{}:{}", page.path.string(), table.line);
    const bool marked = table.comment.starts_with(kMark);
    const bool has_flags = !table.rows.empty() && !table.rows.front().empty() &&
                           table.rows.front().front().starts_with("flag");
    EXPECT_EQ(marked, has_flags)
        << place << ": a table whose head begins with flag, and no other, has the comment flags: "
        << "PROGRAM";
    if (!marked || !has_flags) {
      continue;
    }
    std::vector<std::string> words = words_of(table.comment.substr(kMark.size()));
    const std::string program = words.empty() ? std::string() : words.front();
    words.erase(words.begin(), words.begin() + (words.empty() ? 0 : 1));
    if (words.empty()) {
      words.emplace_back();
    }
    for (const std::string& subcommand : words) {
      std::vector<Row>& rows = commands[program + (subcommand.empty() ? "" : " ") + subcommand];
      std::ranges::move(rows_of(table, place), std::back_inserter(rows));
    }
  }
  return commands;
}

// "40, 128" for "40, 40, 128": aliases have one default, and flags beside each other may.
std::string without_repetitions(std::vector<std::string> values) {
  std::erase(values, "");
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return fmt::format("{}", fmt::join(values, ", "));
}

std::string defaults_in(std::string cell) {
  std::erase(cell, '`');
  std::vector<std::string> values;
  for (size_t begin = 0; begin <= cell.size();) {
    const size_t end = std::min(cell.find(", ", begin), cell.size());
    values.push_back(cell.substr(begin, end - begin));
    begin = end + 2;
  }
  return without_repetitions(std::move(values));
}

std::string printed_defaults(const Help& help, const Row& row) {
  std::vector<std::string> values;
  for (const std::string& flag : row.flags) {
    const auto found = help.defaults.find(flag);
    values.push_back(found == help.defaults.end() ? std::string() : found->second);
  }
  return without_repetitions(std::move(values));
}

Flags without(const Flags& flags, const Flags& others) {
  Flags rest;
  std::ranges::set_difference(flags, others, std::inserter(rest, rest.end()));
  return rest;
}

TEST(DocsFlags, TablesHaveWhatHelpPrints) {
  for (const auto& [program, file] : kManuals) {
    const std::map<std::string, Help> printed = help_by_command(program);
    const std::map<std::string, std::vector<Row>> tables =
        documented(testing::read_page(testing::source_dir() / file));
    for (const auto& [command, help] : printed) {
      const auto found = tables.find(command);
      const std::vector<Row> rows = found == tables.end() ? std::vector<Row>() : found->second;
      const Flags& flags = help.flags;
      const Flags has = flags_of(rows);
      EXPECT_EQ(without(without(flags, kEverywhere), has), Flags())
          << command << ": these flags are in no table of " << file;
      EXPECT_EQ(without(without(has, kEverywhere), flags), Flags())
          << command << ": a table of " << file << " has flags that there are none of";
      for (const Row& row : rows) {
        const std::string defaults = printed_defaults(help, row);
        const std::string has_defaults = defaults_in(row.defaults.value_or(""));
        EXPECT_TRUE(defaults.empty() || has_defaults.empty() || has_defaults == defaults)
            << row.place << ": the default of " << row.flags.front() << " of " << command << " is "
            << defaults << ", not " << has_defaults;
      }
    }
    for (const auto& [command, rows] : tables) {
      EXPECT_TRUE(printed.contains(command)) << file << " has a table of flags of " << command;
    }
  }
}

TEST(DocsFlags, PagesNameNoOthers) {
  Flags known = kOthers;
  for (const auto& [program, file] : kManuals) {
    known.merge(help_of(program, {}).flags);
    for (auto& [command, help] : help_by_command(program)) {
      known.merge(help.flags);
    }
  }
  for (const fs::path& path : testing::manual_pages()) {
#ifndef SPARSELLM_HAS_SERVER
    if (path.filename() == "serve.md") {
      continue;  // its program was not built
    }
#endif
    const Page page = testing::read_page(path);
    std::vector<std::string> code = page.code_spans;
    for (const testing::CodeBlock& block : page.blocks) {
      code.push_back(block.text);
    }
    for (const std::string& text : code) {
      for (const std::string& word : words_of(text)) {
        const std::string flag = word.starts_with("--") ? flag_in(word) : std::string();
        EXPECT_TRUE(flag.empty() || known.contains(flag))
            << path.string() << " speaks of " << flag << ", which no program has";
      }
    }
  }
}

TEST(DocsFlags, HelpAndTablesAreReadRight) {
  const Help help = parse_help(
      "What it does\nUsage: x [OPTIONS]\n\nOptions:\n"
      "  -n,--predict,--max-tokens INT=-1\n"
      "                              --text that goes on\n"
      "  --sparsity FLOAT:FLOAT in [0 - 1]=[0.5,0.6] ... Excludes: --plan\n"
      "  --dtype TEXT:{f16,bf16}=f16 Of the weights\n"
      "  --stop TEXT ...             One that begins with a dash: --stop=-\n"
      "  --warm-up,--no-warm-up{false}\n\nSubcommands:\n  kernel                Time\n");
  EXPECT_EQ(help.flags, (Flags{"-n", "--predict", "--max-tokens", "--sparsity", "--dtype", "--stop",
                               "--warm-up", "--no-warm-up"}));
  const std::map<std::string, std::string> defaults{{"-n", "-1"},
                                                    {"--predict", "-1"},
                                                    {"--max-tokens", "-1"},
                                                    {"--sparsity", "0.5,0.6"},
                                                    {"--dtype", "f16"}};
  EXPECT_EQ(help.defaults, defaults);
  EXPECT_EQ(help.subcommands, std::vector<std::string>{"kernel"});

  const Page page = testing::parse_page(
      "page.md",
      "<!-- flags: x kernel -->\n\n| flag | default |\n|---|---|\n"
      "| `-n`, `--stop`, `--bias ID(+\\|-)B`, `--dtype` | -1, `--other`, f16 |\n\n"
      "<!-- flags: x kernel tune -->\n| flag of both | |\n|---|---|\n| `--warm-up` | |\n");
  const std::map<std::string, std::vector<Row>> tables = documented(page);
  ASSERT_EQ(tables.size(), 2u);
  const std::vector<Row>& rows = tables.at("x kernel");
  EXPECT_EQ(flags_of(rows), (Flags{"-n", "--stop", "--bias", "--dtype", "--warm-up"}));
  EXPECT_EQ(flags_of(tables.at("x tune")), Flags{"--warm-up"});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(defaults_in(rows[1].defaults.value()), "-1, --other, f16");
  EXPECT_EQ(printed_defaults(help, rows[1]), "-1, f16");
  EXPECT_FALSE(rows[3].defaults);
  EXPECT_EQ(defaults_in(", 100"), "100");
  EXPECT_EQ(defaults_in("`f16`, `f16`, 40"), "f16, 40");
}

}  // namespace
}  // namespace sparsellm
