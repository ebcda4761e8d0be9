// The manuals and --help: the tables of flags that are said to be of a command have together
// exactly the flags that it prints, and no page speaks of a flag that no command has.
// A table of flags has the comment <!-- flags: PROGRAM [SUBCOMMAND ...] --> before it.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
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
    Manual{"sparsellm-run", "docs/run.md"}, Manual{"sparsellm-convert", "docs/convert.md"},
    Manual{"sparsellm-eval", "docs/eval.md"}, Manual{"sparsellm-bench", "docs/bench.md"}};

// Of all commands, and not worth a row in each table.
const Flags kEverywhere{"-h", "--help", "--version"};

// Of other programs that pages name: cmake, cpack, docker, and scripts in tools.
const Flags kOthers{"--preset", "--build", "--install", "--prefix",    "--config",
                    "--target", "--rm",    "--gpus",    "--build-arg", "--minimise"};

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// What a command prints for --help.
struct Help {
  Flags flags;
  std::vector<std::string> subcommands;
};

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
      help.flags.insert(name.substr(0, name.find('{')));
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
std::map<std::string, Flags> help_by_command(const char* program) {
  const Help help = help_of(program, {});
  std::map<std::string, Flags> commands;
  for (const std::string& subcommand : help.subcommands) {
    commands[program + (" " + subcommand)] = help_of(program, {subcommand}).flags;
  }
  if (commands.empty()) {
    commands[program] = help.flags;
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

Flags flags_of(const Table& table) {
  Flags flags;
  for (const std::vector<std::string>& row : table.rows) {
    for (const std::string& span : testing::code_spans(row.empty() ? std::string() : row.front())) {
      if (const std::string flag = flag_in(span); !flag.empty()) {
        flags.insert(flag);
      }
    }
  }
  return flags;
}

// The flags in a page's tables, by command.
std::map<std::string, Flags> documented(const Page& page) {
  constexpr std::string_view kMark = "flags:";
  std::map<std::string, Flags> commands;
  for (const Table& table : page.tables) {
    const bool marked = table.comment.starts_with(kMark);
    const bool has_flags = !table.rows.empty() && !table.rows.front().empty() &&
                           table.rows.front().front().starts_with("flag");
    EXPECT_EQ(marked, has_flags)
        << page.path.string() << ":" << table.line
        << ": a table whose head begins with flag, and no other, has the comment flags: PROGRAM";
    if (!marked) {
      continue;
    }
    std::vector<std::string> words = words_of(table.comment.substr(kMark.size()));
    const std::string program = words.empty() ? std::string() : words.front();
    if (words.size() == 1) {
      commands[program].merge(flags_of(table));
    }
    for (size_t i = 1; i < words.size(); ++i) {
      commands[program + " " + words[i]].merge(flags_of(table));
    }
  }
  return commands;
}

Flags without(const Flags& flags, const Flags& others) {
  Flags rest;
  std::ranges::set_difference(flags, others, std::inserter(rest, rest.end()));
  return rest;
}

TEST(DocsFlags, TablesHaveWhatHelpPrints) {
  for (const auto& [program, file] : kManuals) {
    const std::map<std::string, Flags> printed = help_by_command(program);
    const std::map<std::string, Flags> tables =
        documented(testing::read_page(testing::source_dir() / file));
    for (const auto& [command, flags] : printed) {
      const auto found = tables.find(command);
      const Flags has = found == tables.end() ? Flags() : found->second;
      EXPECT_EQ(without(without(flags, kEverywhere), has), Flags())
          << command << ": these flags are in no table of " << file;
      EXPECT_EQ(without(without(has, kEverywhere), flags), Flags())
          << command << ": a table of " << file << " has flags that there are none of";
    }
    for (const auto& [command, flags] : tables) {
      EXPECT_TRUE(printed.contains(command)) << file << " has a table of flags of " << command;
    }
  }
}

TEST(DocsFlags, PagesNameNoOthers) {
  Flags known = kOthers;
  for (const auto& [program, file] : kManuals) {
    known.merge(help_of(program, {}).flags);
    for (auto& [command, flags] : help_by_command(program)) {
      known.merge(flags);
    }
  }
  for (const fs::path& path : testing::manual_pages()) {
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
      "  --warm-up,--no-warm-up{false}\n\nSubcommands:\n  kernel                Time\n");
  EXPECT_EQ(help.flags, (Flags{"-n", "--predict", "--max-tokens", "--warm-up", "--no-warm-up"}));
  EXPECT_EQ(help.subcommands, std::vector<std::string>{"kernel"});

  const Page page = testing::parse_page(
      "page.md",
      "<!-- flags: x kernel -->\n\n| flag | default |\n|---|---|\n"
      "| `-n`, `--bias ID(+\\|-)B` | `--other` |\n\n"
      "<!-- flags: x kernel tune -->\n| flag of both | |\n|---|---|\n| `--warm-up` | |\n");
  const std::map<std::string, Flags> expected{{"x kernel", {"-n", "--bias", "--warm-up"}},
                                              {"x tune", {"--warm-up"}}};
  EXPECT_EQ(documented(page), expected);
}

}  // namespace
}  // namespace sparsellm
