// Whole programs of which one call of the C library or one allocation fails, or that are killed in
// place of a call: the exit code is not 0, or the result is right; nothing is half-written; and
// --resume, or the same command again, then gives the bytes of an undisturbed run.
// A sample of the calls, or all with SPARSELLM_INTEGRITY=all (tools/integrity.sh).

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/paths.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::Outcome;
using testing::TempDir;
using Files = std::map<std::string, std::string>;  // contents by path

constexpr unsigned kHangSeconds = 20;

std::string tiny(const char* name) { return testing::data(std::string("tiny/") + name).string(); }

// All files below a directory but those of runs that were killed.
Files files_of(const fs::path& directory) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().lexically_relative(directory).string();
    if (entry.is_regular_file() && name.find(".partial-") == std::string::npos) {
      files[name] = testing::read_file(entry.path());
    }
  }
  return files;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

// A request of a batch that there is no memory for has an error in the place of its result, and
// stops nothing.
bool is_good_but_for_memory(const Files& now, const Files& good, const std::string& err) {
  if (!now.contains("out.jsonl") || now.size() != 1) {
    return false;
  }
  const std::vector<std::string> lines = lines_of(now.at("out.jsonl"));
  const std::vector<std::string> good_lines = lines_of(good.at("out.jsonl"));
  bool same = lines.size() == good_lines.size();
  int failed = 0;
  for (size_t i = 0; same && i < lines.size(); ++i) {
    const std::string id = good_lines[i].substr(0, good_lines[i].find(','));
    same = lines[i] == good_lines[i] ||
           lines[i] == fmt::format(R"({},"error":"line {}: out of memory"}})", id, i + 1);
    failed += lines[i].starts_with(id + ",\"error\":") ? 1 : 0;
  }
  return same && err.find(fmt::format("{} of {} lines failed", failed, lines.size())) != err.npos;
}

struct Scenario {
  const char* name;
  const char* program;
  std::vector<std::string> args;   // DIR stands for a directory of its own
  std::vector<std::string> again;  // what goes on after a failure; empty: `args`
  // Makes the directory what it is before the run.
  void (*prepare)(const fs::path& directory) = [](const fs::path&) {};
};

void write_prompts(const fs::path& directory) {
  std::ofstream(directory / "prompts.jsonl")
      << "{\"prompt\": \"king\", \"max_tokens\": 4}\n{\"prompt_ids\": [5, 6], \"id\": \"two\"}\n"
         "{\"prompt\": \"queen\", \"seed\": 3, \"temperature\": 1}\nnot JSON\n";
}

void write_older_results(const fs::path& directory) {
  write_prompts(directory);
  std::ofstream(directory / "out.jsonl") << "older\n";
}

void write_text(const fs::path& directory) {
  std::ofstream(directory / "text.txt")
      << testing::read_file(testing::data("text/peter_pan.txt")).substr(0, 600);
}

void write_older_model(const fs::path& directory) {
  const Outcome outcome = testing::run_program(
      "sparsellm-convert", {"-m", tiny("opt_gelu"), "--output", (directory / "out").string()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
}

std::vector<Scenario> scenarios() {
  const std::string llama = tiny("llama3");
  const std::vector<std::string> batch{
      "-m", llama,      "--prompts", "DIR/prompts.jsonl", "--output", "DIR/out.jsonl", "-n",
      "5",  "--device", "cpu",       "--threads",         "1",        "--seed",        "1"};
  const auto with = [](std::vector<std::string> args, const std::vector<std::string>& more) {
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const std::vector<std::string> convert{"-m",       llama,       "--output",   "DIR/out",
                                         "--prune",  "magnitude", "--sparsity", "0.7",
                                         "--format", "tca_bme",   "--threads",  "1"};
  return {
      {"run",
       "sparsellm-run",
       {"-m", llama, "-p", "king", "-n", "5", "--temp", "0", "--device", "cpu", "--threads", "1",
        "--json"},
       {}},
      {"batch", "sparsellm-run", batch, with(batch, {"--resume"}), write_prompts},
      {"forced_batch", "sparsellm-run", with(batch, {"--force"}), with(batch, {"--resume"}),
       write_older_results},
      {"convert", "sparsellm-convert", convert, {}},
      {"forced_convert",
       "sparsellm-convert",
       with(convert, {"--force", "--verify"}),
       {},
       write_older_model},
      {"eval",
       "sparsellm-eval",
       {"perplexity", "-m", llama, "--text", "DIR/text.txt", "--context", "64", "--device", "cpu",
        "--threads", "1", "--json"},
       {},
       write_text},
  };
}

// What fails, and with which error.
const std::map<std::string, std::vector<int>>& failures() {
  static const std::map<std::string, std::vector<int>> all{
      {"malloc", {ENOMEM}},    {"open", {EMFILE, EACCES}},
      {"openat", {EIO}},       {"fopen", {EACCES}},
      {"read", {EIO}},         {"pread", {EIO}},
      {"write", {ENOSPC}},     {"pwrite", {ENOSPC}},
      {"fwrite", {ENOSPC}},    {"fflush", {EIO}},
      {"fsync", {EIO}},        {"mmap", {ENOMEM}},
      {"stat", {EIO, EACCES}}, {"lstat", {EIO}},
      {"fstat", {EIO}},        {"rename", {EACCES}},
      {"renameat2", {EIO}},    {"unlink", {EACCES}},
      {"unlinkat", {EACCES}},  {"rmdir", {EACCES}},
      {"mkdir", {ENOSPC}},     {"chmod", {EPERM}},
      {"close", {EIO}},        {"ftruncate", {EIO}},
      {"fdopendir", {ENOMEM}}, {"readdir", {EIO}},
      {"getdents64", {EIO}},   {"flock", {ENOLCK}}};
  return all;
}

bool is_killing_place(const std::string& function) {
  static const std::vector<std::string> places{"write",    "pwrite", "fsync",     "rename",
                                               "mkdir",    "close",  "renameat2", "unlink",
                                               "unlinkat", "rmdir",  "open",      "chmod"};
  return std::find(places.begin(), places.end(), function) != places.end();
}

class Integrity : public ::testing::TestWithParam<Scenario> {
 protected:
  // The dynamic linker takes a space in LD_PRELOAD for the end of a path.
  void SetUp() override {
    fs::create_symlink(SPARSELLM_FAILING_CALLS, library_.path() / "failing_calls.so");
  }

  // In a directory that is prepared anew each time.
  Outcome run(const TempDir& directory, std::vector<std::string> args,
              const std::string& failing_call, const std::string& counts = {}) {
    for (std::string& arg : args) {
      if (const size_t at = arg.find("DIR"); at != std::string::npos) {
        arg.replace(at, 3, directory.path().string());
      }
    }
    const std::string library = (library_.path() / "failing_calls.so").string();
    testing::RunOptions options;
    options.before_exec = [&] {
      ::setenv("LD_PRELOAD", library.c_str(), 1);
      ::setenv("FAILING_CALL", failing_call.c_str(), 1);
      ::setenv("CALL_COUNTS", counts.c_str(), 1);
      ::alarm(kHangSeconds);
    };
    Outcome outcome = testing::run_program(GetParam().program, args, options);
    const std::string path = directory.path().string();
    for (size_t at = outcome.out.find(path); at != std::string::npos; at = outcome.out.find(path)) {
      outcome.out.replace(at, path.size(), "DIR");
    }
    outcome.out =
        std::regex_replace(outcome.out, std::regex("\"tokens_per_second\":[0-9.e+]+"), "");
    return outcome;
  }

  Outcome run_again(const TempDir& directory) {
    const Scenario& scenario = GetParam();
    return run(directory, scenario.again.empty() ? scenario.args : scenario.again, "none");
  }

  std::map<std::string, int64_t> count_calls(const TempDir& directory) {
    const TempDir other;
    const fs::path file = other.path() / "counts";
    const Outcome outcome = run(directory, GetParam().args, "none", file.string());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::map<std::string, int64_t> counts;
    std::istringstream text(testing::read_file(file));
    std::string name;
    int64_t count = 0;
    while (text >> name >> count) {
      counts[name] = count;
    }
    return counts;
  }

  // `good`: what is there after an undisturbed run, `before`: before it.
  void expect_integrity(const Outcome& outcome, const std::string& good_text,
                        const TempDir& directory, const Files& before, const Files& good) {
    const std::string program = GetParam().program;
    const Files now = files_of(directory.path());
    if (outcome.exit_code == 0) {
      EXPECT_EQ(outcome.out, good_text) << outcome.err;
      EXPECT_TRUE(outputs(now) == outputs(good) ||
                  is_good_but_for_memory(outputs(now), outputs(good), outcome.err))
          << "another result, with exit code 0";
      return;
    }
    EXPECT_GT(outcome.exit_code, 0) << "signal " << -outcome.exit_code << ": " << outcome.err;
    const size_t error = outcome.err.find(program + ": ");
    EXPECT_NE(error, std::string::npos) << outcome.err;
    expect_nothing_lost(now, before, good);
    for (const auto& entry : fs::directory_iterator(directory.path())) {
      const std::string name = entry.path().filename().string();
      EXPECT_FALSE(name.ends_with(".new")) << "left behind: " << name;
      EXPECT_FALSE(name == "out.jsonl.partial" && entry.file_size() == 0)
          << "an empty file is left behind: " << name;
      // What could not be removed is told.
      EXPECT_TRUE(name.find(".partial-") == std::string::npos ||
                  outcome.err.find(name) != std::string::npos)
          << "left behind: " << name << "; " << outcome.err;
    }
  }

  // Every file of the output is as it was, or all are as they should be.
  void expect_nothing_lost(const Files& now, const Files& before, const Files& good) {
    EXPECT_TRUE(outputs(now) == outputs(before) || outputs(now) == outputs(good))
        << "an output that is neither the older nor the new one";
  }

  static Files outputs(const Files& files) {
    Files some;
    for (const auto& [name, text] : files) {
      if (name == "out.jsonl" || name.starts_with("out/")) {
        some[name] = text;
      }
    }
    return some;
  }

 private:
  const TempDir library_;
};
INSTANTIATE_TEST_SUITE_P(Programs, Integrity, ::testing::ValuesIn(scenarios()),
                         [](const auto& use) { return std::string(use.param.name); });

// Which of the calls 1 .. count fail: all, or some with both ends among them.
std::vector<int64_t> sample(int64_t count, int64_t some, testing::Random& random) {
  const char* const setting = std::getenv("SPARSELLM_INTEGRITY");
  std::vector<int64_t> calls;
  if ((setting != nullptr && std::string(setting) == "all") || count <= some) {
    for (int64_t call = 1; call <= count; ++call) {
      calls.push_back(call);
    }
    return calls;
  }
  for (int64_t i = 0; i < some; ++i) {
    const int64_t begin = count * i / some;
    const int64_t end = count * (i + 1) / some;
    calls.push_back(i == 0 ? 1 : i + 1 == some ? count : begin + 1 + random.below(end - begin));
  }
  return calls;
}

TEST_P(Integrity, OfEveryCallThatFails) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "a sanitizer has functions of the C library of its own";
  }
  const Scenario& scenario = GetParam();
  const TempDir undisturbed;
  scenario.prepare(undisturbed.path());
  const Files before = files_of(undisturbed.path());
  const std::map<std::string, int64_t> counts = count_calls(undisturbed);
  const Files good = files_of(undisturbed.path());
  std::string good_text;
  {
    const TempDir directory;
    scenario.prepare(directory.path());
    good_text = run(directory, scenario.args, "none").out;
    ASSERT_TRUE(files_of(directory.path()) == good) << "two runs differ";
  }
  testing::Random random(1);
  for (const auto& [function, errors] : failures()) {
    const int64_t count = counts.at(function);
    const int64_t some = function == "malloc" ? 10 : 2;  // of thousands, all over the program
    std::vector<std::string> failing;
    for (int64_t call : sample(count, some, random)) {
      for (int error : errors) {
        failing.push_back(fmt::format("{}:{}:{}", function, call, error));
      }
      if (is_killing_place(function)) {
        failing.push_back(fmt::format("{}:{}:kill", function, call));
      }
    }
    for (const std::string& call : failing) {
      SCOPED_TRACE(call);
      const TempDir directory;
      scenario.prepare(directory.path());
      const Outcome outcome = run(directory, scenario.args, call);
      if (call.ends_with("kill")) {
        EXPECT_TRUE(outcome.exit_code == -SIGKILL || outcome.exit_code == 0) << outcome.exit_code;
        expect_nothing_lost(files_of(directory.path()), before, good);
      } else {
        expect_integrity(outcome, good_text, directory, before, good);
        // The first lock is that of the results. The second is for removing the mark of a run whose
        // output has its name; without it, the mark stays.
        EXPECT_TRUE(!call.starts_with("flock:1:") || outcome.exit_code != 0)
            << "a batch without a lock";
      }
      if (outcome.exit_code != 0) {
        const auto is_complete = [&] {
          return outputs(files_of(directory.path())) == outputs(good);
        };
        const Outcome again = run_again(directory);
        // What failed before it had left a mark of itself is as if it had never been.
        EXPECT_TRUE(is_complete() || again.exit_code > 0) << again.err;
        if (!is_complete()) {
          run(directory, scenario.args, "none");
        }
        EXPECT_TRUE(is_complete()) << again.err;
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
