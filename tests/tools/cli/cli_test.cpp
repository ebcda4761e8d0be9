// The programs as a user meets them: output, exit codes, and one clear line for every bad input.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

using testing::Outcome;

std::string read(const fs::path& path) { return testing::read_file(path); }

Outcome run(const char* program, const std::vector<std::string>& args,
            const std::string& input = {}) {
  return testing::run_program(program, args, {.input = input, .before_exec = {}, .meanwhile = {}});
}

std::string llama() { return testing::data("models/fable-llama-relu-8m").string(); }
std::string opt() { return testing::data("models/fable-opt-8m").string(); }

// For a shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    result += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return result + "'";
}
std::string quoted_program(const char* name) { return quoted(testing::program(name).string()); }

const std::string kPrompt = "Once upon a time there was a king who had three daughters";

std::vector<std::string> greedy(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> args{"-m", model, "-p", kPrompt, "-n", "12", "--temp", "0"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(Run, PrintsTheContinuation) {
  const Outcome outcome = run("sparsellm-run", greedy(llama(), {}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, ", and the youngest was the youngest of the other two,\n");
  for (const char* row :
       {"\nweights        15.0 MiB, dense\n", "\nload", "\nprefill", "\ndecode", "\nmemory"}) {
    EXPECT_NE(outcome.err.find(row), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(outcome.err.find("preempt"), std::string::npos) << outcome.err;  // there was none
  EXPECT_EQ(outcome.err.find("other samples"), std::string::npos) << outcome.err;
}

TEST(Run, ClosingTableOfASparseModel) {
  const testing::TempDir directory;
  const std::string output = (directory.path() / "sparse").string();
  const Outcome converted =
      run("sparsellm-convert", {"-m", llama(), "--output", output, "--prune", "magnitude",
                                "--sparsity", "0.6", "--format", "tca_bme", "--quiet"});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  // Samples share whole pages of the prompt.
  const Outcome outcome =
      run("sparsellm-run", {"-m", output, "-n", "4", "--temp", "0", "--samples", "2", "-p",
                            "Once upon a time there was a king who had three daughters, and the "
                            "youngest of them was so beautiful that the sun itself wondered"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part :
       {"\nweights ", " MiB; 15.0 if all were dense\ntca_bme ", " MiB in linear layers, 60.",
        " % zeros; 13.0 if dense\n", " of other samples not computed again\n"}) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
  const Outcome one = run("sparsellm-run", {"-m", llama(), "-p", "The king", "-n", "1"});
  EXPECT_EQ(one.err.find("decode"), std::string::npos) << one.err;
}

nlohmann::json fit_of(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> args{"-m", model, "--device", "cpu", "--fit", "--json"};
  args.insert(args.end(), more.begin(), more.end());
  const Outcome outcome = run("sparsellm-run", args);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1) << outcome.out;
  return nlohmann::json::parse(outcome.out);
}

TEST(Fit, IsOfTheRunThatTheFlagsAskFor) {
  const nlohmann::json one = fit_of(llama(), {});
  EXPECT_EQ(one.at("fits"), true);
  EXPECT_EQ(one.at("parallel"), 1);
  EXPECT_EQ(one.at("context"), 1024);
  EXPECT_EQ(one.at("kv_tokens"), 1024);
  EXPECT_EQ(one.at("kv_bytes"), 16 << 20);
  EXPECT_GT(one.at("most_kv_tokens").get<int64_t>(), 1024);
  EXPECT_EQ(one.at("requests_at_most").back().at("tokens"), 1024);
  EXPECT_EQ(one.at("linear_weights")[0].at("format"), "dense");
  EXPECT_TRUE(one.at("linear_weights")[0].at("nonzeros").is_null());
  EXPECT_EQ(fit_of(llama(), {"--parallel", "4"}).at("kv_tokens"), 4 * 1024);
  EXPECT_EQ(fit_of(llama(), {"--samples", "3", "-c", "160"}).at("kv_tokens"), 3 * 160);
  const nlohmann::json half = fit_of(llama(), {"--kv-dtype", "f16"});
  EXPECT_EQ(half.at("kv_tokens"), 1024);
  EXPECT_EQ(half.at("kv_bytes"), 8 << 20);
  const nlohmann::json predict =
      fit_of(llama(), {"--activation-sparsity", "predict", "--alpha", "1"});
  EXPECT_GT(predict.at("weight_bytes"), one.at("weight_bytes"));  // by sign words
  EXPECT_EQ(fit_of(llama(), {"--activation-sparsity", "exact"}).at("weight_bytes"),
            one.at("weight_bytes"));
  const nlohmann::json given = fit_of(llama(), {"--kv-memory", "2MiB"});
  EXPECT_EQ(given.at("kv_bytes"), 2 << 20);
  EXPECT_EQ(given.at("most_kv_bytes"), 2 << 20);

  const Outcome table = run("sparsellm-run", {"-m", llama(), "--device", "cpu", "--fit"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(table.out.find("\nKV cache       16.0 MiB for 1024 tokens, 16384 bytes each\n"),
            std::string::npos)
      << table.out;
}

TEST(Fit, SaysWhichFormatsAutoTakes) {
  const nlohmann::json fit = fit_of(llama(), {"--weight-format", "auto"});
  ASSERT_EQ(fit.at("format_choices").size(), 4u);
  EXPECT_EQ(fit.at("format_choices")[0].at("layers"), 8);
  EXPECT_EQ(fit.at("format_choices")[0].at("format"), "dense");
  EXPECT_EQ(fit.at("format_choices")[0].at("by"), "rules");
  EXPECT_TRUE(fit_of(llama(), {}).at("format_choices").empty());
  const Outcome table =
      run("sparsellm-run", {"-m", llama(), "--device", "cpu", "--fit", "--weight-format", "auto"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(table.out.find("% nonzeros: dense, by the rules of NVIDIA H200\n"), std::string::npos)
      << table.out;
  const Outcome text = run("sparsellm-run", {"-m", llama(), "--device", "cpu", "-p", "The king",
                                             "-n", "1", "--weight-format", "auto", "-v"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.err.find("sparsellm-run: info: 8 layers of "), std::string::npos) << text.err;
}

// Dense weights take what a dry run of the converter says; sparse ones are in panels on the CPU,
// which take the same whatever the format of the file.
TEST(Fit, KnowsWhatWeightsTakeThatAreConverted) {
  const Outcome dry = run("sparsellm-convert", {"-m", llama(), "--dry-run", "--json", "--quiet"});
  ASSERT_EQ(dry.exit_code, 0) << dry.err;
  const nlohmann::json report = nlohmann::json::parse(dry.out);
  int64_t panels = 0;
  for (const std::string format : {"dense", "tca_bme", "tiled_csl"}) {
    int64_t bytes = 0;
    for (const nlohmann::json& table : report.at("tables")) {
      if (table.at("name") == "weights as " + format) {
        for (const nlohmann::json& row : table.at("rows")) {
          bytes += row.at("stored_bytes").get<int64_t>();
        }
      }
    }
    const nlohmann::json fit = fit_of(llama(), {"--weight-format", format});
    ASSERT_EQ(fit.at("linear_weights").size(), 1u);
    EXPECT_EQ(fit.at("linear_weights")[0].at("format"), format);
    const auto taken = fit.at("linear_weights")[0].at("bytes").get<int64_t>();
    if (format == "dense") {
      EXPECT_EQ(taken, bytes);
    } else {
      panels = panels == 0 ? taken : panels;
      EXPECT_EQ(taken, panels);
      EXPECT_LT(taken, bytes);
    }
  }
}

TEST(Run, QuietAndEcho) {
  const Outcome outcome = run("sparsellm-run", greedy(opt(), {"--quiet", "--echo"}));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(outcome.out.starts_with(kPrompt + ", and they were very fond of")) << outcome.out;
  EXPECT_EQ(outcome.err, "");
}

TEST(Run, PromptFromFileAndStdin) {
  const testing::TempDir directory;
  const std::string file = directory.write("prompt.txt", kPrompt + "\n").string();
  const std::vector<std::string> rest{"-m", llama(), "-n", "12", "--temp", "0", "--quiet"};
  std::vector<std::string> with_file = rest;
  with_file.insert(with_file.end(), {"-f", file});
  const std::string expected = run("sparsellm-run", greedy(llama(), {"--quiet"})).out;
  EXPECT_EQ(run("sparsellm-run", with_file).out, expected);
  EXPECT_EQ(run("sparsellm-run", rest, kPrompt + "\n").out, expected);
}

TEST(Run, SeedDecides) {
  const auto sample = [](const char* seed) {
    return run("sparsellm-run", {"-m", llama(), "-p", kPrompt, "-n", "30", "--seed", seed}).out;
  };
  EXPECT_EQ(sample("7"), sample("7"));
  EXPECT_NE(sample("7"), sample("8"));
}

TEST(Run, SamplesOneAfterTheOther) {
  const auto sample = [](const std::vector<std::string>& more) {
    std::vector<std::string> args{"-m", llama(), "-p", "The king", "-n", "9", "--seed", "7"};
    args.insert(args.end(), more.begin(), more.end());
    return run("sparsellm-run", args).out;
  };
  const std::string one = sample({});
  const std::string three = sample({"--samples", "3"});
  EXPECT_TRUE(three.starts_with("--- sample 1 of 3 ---\n" + one + "--- sample 2 of 3 ---\n"))
      << three;
  EXPECT_NE(three.find("\n--- sample 3 of 3 ---\n"), std::string::npos) << three;
  EXPECT_TRUE(three.ends_with('\n'));
  EXPECT_TRUE(sample({"--samples", "2", "--echo"})
                  .starts_with("--- sample 1 of 2 ---\nThe king" + one + "--- sample 2 of 2 ---\n" +
                               "The king"));
}

TEST(Run, Stop) {
  const Outcome text =
      run("sparsellm-run", greedy(llama(), {"--stop", "never", "--stop", "the youngest of"}));
  EXPECT_EQ(text.out, ", and the youngest was \n");
  const nlohmann::json all =
      nlohmann::json::parse(run("sparsellm-run", greedy(llama(), {"--json"})).out);
  const auto ids = all.at("token_ids").get<std::vector<int32_t>>();
  ASSERT_EQ(ids.size(), 12u);
  const nlohmann::json cut = nlohmann::json::parse(
      run("sparsellm-run", greedy(llama(), {"--json", "--stop-token", std::to_string(ids[3])}))
          .out);
  EXPECT_EQ(cut.at("finish_reason"), "stop");
  EXPECT_LE(cut.at("token_ids").size(), 4u);
}

TEST(Run, JsonWithLogProbs) {
  const Outcome outcome =
      run("sparsellm-run", greedy(llama(), {"--json", "--logprobs", "2", "--echo"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1);
  const nlohmann::json result = nlohmann::json::parse(outcome.out);
  EXPECT_FALSE(result.contains("id"));
  EXPECT_EQ(result.at("prompt"), kPrompt);
  EXPECT_EQ(result.at("text"), ", and the youngest was the youngest of the other two,");
  EXPECT_EQ(result.at("finish_reason"), "length");
  EXPECT_GT(result.at("prompt_logprobs").size(), 10u);
  ASSERT_EQ(result.at("logprobs").size(), 12u);
  for (const nlohmann::json& token : result.at("logprobs")) {
    ASSERT_EQ(token.at("top_logprobs").size(), 2u);
    // A greedy choice is the likeliest token.
    EXPECT_EQ(token.at("top_logprobs")[0].at("id"), token.at("id"));
    EXPECT_EQ(token.at("top_logprobs")[0].at("logprob"), token.at("logprob"));
    EXPECT_LE(token.at("top_logprobs")[1].at("logprob"), token.at("logprob"));
  }
}

TEST(Run, PenaltiesAndBias) {
  const std::string plain = run("sparsellm-run", greedy(llama(), {})).out;
  EXPECT_NE(run("sparsellm-run", greedy(llama(), {"--repeat-penalty", "1.5"})).out, plain);
  EXPECT_NE(run("sparsellm-run", greedy(llama(), {"--frequency-penalty", "5"})).out, plain);
  EXPECT_NE(run("sparsellm-run", greedy(llama(), {"--presence-penalty", "5"})).out, plain);
  const nlohmann::json forced = nlohmann::json::parse(
      run("sparsellm-run",
          greedy(llama(), {"--json", "--logit-bias", "601+1000", "--logit-bias", "312-1.5"}))
          .out);
  for (const nlohmann::json& id : forced.at("token_ids")) {
    EXPECT_EQ(id, 601);
  }
}

TEST(Run, ALongRunOfUnknownCharactersIsOneToken) {
  const testing::TempDir directory;
  const std::filesystem::path model = testing::data("tiny/llama_gelu_tanh");
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::create_symlink(model / name, directory.path() / name);
  }
  directory.write("tokenizer.json", R"({
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "merges": [],
              "vocab": {"<unk>": 0, "a": 1}}})");
  const std::string prompt(4 << 20, 'z');
  const Outcome outcome =
      testing::run_program("sparsellm-run", {"-m", directory.path().string(), "--threads", "1",
                                             "-f", directory.write("prompt", prompt).string(), "-n",
                                             "1", "--json", "-c", "8"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(Run, StdinThatCannotBeRead) {
  testing::RunOptions options;
  options.before_exec = [] { ::dup2(::open("/", O_RDONLY), STDIN_FILENO); };
  const Outcome folder = testing::run_program("sparsellm-run", {"-m", llama()}, options);
  EXPECT_EQ(folder.exit_code, 1);
  EXPECT_EQ(folder.err, "sparsellm-run: cannot read standard input: Is a directory\n");
  options.before_exec = [] { ::close(STDIN_FILENO); };
  const Outcome closed = testing::run_program("sparsellm-run", {"-m", llama()}, options);
  EXPECT_EQ(closed.exit_code, 1);
  EXPECT_EQ(closed.err, "sparsellm-run: cannot read standard input: Bad file descriptor\n");
}

TEST(Run, ClosedStdoutIsAnError) {
  testing::RunOptions options;
  options.before_exec = [] { ::close(STDOUT_FILENO); };
  const Outcome outcome =
      testing::run_program("sparsellm-run", greedy(llama(), {"--quiet"}), options);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.err, "sparsellm-run: cannot write to standard output\n");
}

TEST(Run, StdoutLargerThanAllowed) {
  testing::RunOptions options;
  options.before_exec = [] {
    const struct rlimit limit { .rlim_cur = 10, .rlim_max = 10 };
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  const Outcome outcome =
      testing::run_program("sparsellm-run", greedy(llama(), {"--quiet"}), options);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out.size(), 10u);
}

TEST(Run, FilesAsEditorsWriteThem) {
  const testing::TempDir directory;
  const std::vector<std::string> rest{"-m", llama(),   "-n",     "5",     "--temp",
                                      "0",  "--quiet", "--json", "--echo"};
  const auto prompt_of = [&](const std::vector<std::string>& more, const std::string& input) {
    std::vector<std::string> args = rest;
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = run("sparsellm-run", args, input);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out).at("prompt").get<std::string>();
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"\xef\xbb\xbfThe king\r\n", "The king"},
      {"The king\n", "The king"},
      {"The king\r\n\r\n", "The king\r\n"},
      {"The king\n\n", "The king\n"},
      {"The\r\nking", "The\r\nking"},
      {"The king\r", "The king\r"},
      {"The \xef\xbb\xbfking", "The \xef\xbb\xbfking"},
  };
  for (const auto& [text, prompt] : cases) {
    const std::string file = directory.write("prompt.txt", text).string();
    EXPECT_EQ(prompt_of({"-f", file}, ""), prompt);
    EXPECT_EQ(prompt_of({"-f", "-"}, text), prompt);
    EXPECT_EQ(prompt_of({}, text), prompt);
  }
}

TEST(Run, NamesThatBatchFilesUse) {
  const std::vector<std::string> args{"-m",
                                      llama(),
                                      "-p",
                                      kPrompt,
                                      "--max-tokens",
                                      "12",
                                      "--temperature",
                                      "0",
                                      "--repetition-penalty",
                                      "1"};
  EXPECT_EQ(run("sparsellm-run", args).out,
            ", and the youngest was the youngest of the other two,\n");
}

// A terminal on which the tool reads prompts.
class Terminal {
 public:
  Terminal() : user_(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    EXPECT_EQ(::grantpt(user_), 0);
    EXPECT_EQ(::unlockpt(user_), 0);
    tool_ = ::open(::ptsname(user_), O_RDWR | O_NOCTTY);
    EXPECT_GE(tool_, 0);
  }
  ~Terminal() {
    ::close(tool_);
    ::close(user_);
  }

  void type(std::string_view text) const {
    EXPECT_EQ(::write(user_, text.data(), text.size()), std::ssize(text));
  }
  // Until the tool has shown `text` this many times, or is done.
  void wait_for(std::string_view text, int times, pid_t child) {
    for (bool runs = true; count(text) < times && runs;) {
      runs = testing::is_running(child);  // before what it has shown is read
      std::vector<char> block(1 << 12);
      for (ssize_t size = 0; (size = ::read(user_, block.data(), block.size())) > 0;) {
        shown_.append(block.data(), static_cast<size_t>(size));
      }
      ::usleep(1000);
    }
    EXPECT_GE(count(text), times) << shown_;
  }
  int tool() const { return tool_; }

 private:
  int count(std::string_view text) const {
    int times = 0;
    for (size_t at = shown_.find(text); at != std::string::npos; at = shown_.find(text, at + 1)) {
      ++times;
    }
    return times;
  }

  int user_;
  int tool_ = -1;
  std::string shown_;
};

void wait_for_more(const fs::path& out, uintmax_t bytes, pid_t child) {
  while (fs::file_size(out) <= bytes && testing::is_running(child)) {
    ::usleep(1000);
  }
}

// Prompts come from a terminal, and so does what the tool says.
Outcome in_a_terminal(const std::function<void(Terminal&, pid_t, const fs::path&)>& user) {
  Terminal terminal;
  testing::RunOptions options;
  options.before_exec = [&] {
    ::dup2(terminal.tool(), STDIN_FILENO);
    ::dup2(terminal.tool(), STDERR_FILENO);
  };
  options.meanwhile = [&](pid_t child, const fs::path& out) { user(terminal, child, out); };
  return testing::run_program(
      "sparsellm-run", {"-m", llama(), "--ignore-eos", "-n", "-1", "--threads", "1", "--temp", "0"},
      options);
}

TEST(Run, AnInterruptEndsATextAndAtThePromptTheProgram) {
  uintmax_t first = 0;
  const Outcome outcome = in_a_terminal([&](Terminal& terminal, pid_t child, const fs::path& out) {
    terminal.wait_for("> ", 1, child);
    terminal.type("Once upon a time\n");
    wait_for_more(out, 0, child);
    ::kill(child, SIGINT);
    terminal.wait_for("> ", 2, child);
    first = fs::file_size(out);
    terminal.type("The king\n");
    wait_for_more(out, first, child);
    ::kill(child, SIGINT);
    terminal.wait_for("> ", 3, child);
    ::usleep(50'000);  // until it reads
    ::kill(child, SIGINT);
  });
  EXPECT_EQ(outcome.exit_code, 130);
  ASSERT_GT(first, 1u);
  EXPECT_EQ(outcome.out[first - 1], '\n');
  EXPECT_GT(outcome.out.size(), first + 1);
  EXPECT_TRUE(outcome.out.ends_with('\n'));
}

TEST(Run, ASecondInterruptEndsTheProgram) {
  const Outcome outcome = in_a_terminal([&](Terminal& terminal, pid_t child, const fs::path& out) {
    terminal.wait_for("> ", 1, child);
    terminal.type("Once upon a time\n");
    wait_for_more(out, 0, child);
    ::kill(child, SIGSTOP);  // so that both come while the text is made
    ::kill(child, SIGINT);
    ::kill(child, SIGCONT);
    ::kill(child, SIGINT);
    while (testing::is_running(child)) {
      ::kill(child, SIGINT);
    }
  });
  EXPECT_TRUE(outcome.exit_code == -SIGINT || outcome.exit_code == 130) << outcome.exit_code;
}

TEST(Run, EndOfInputAtThePrompt) {
  const Outcome outcome = in_a_terminal([&](Terminal& terminal, pid_t child, const fs::path&) {
    terminal.wait_for("> ", 1, child);
    terminal.type("\x04");
    terminal.wait_for("memory", 1, child);
  });
  EXPECT_EQ(outcome.exit_code, 0);
}

// What the tool writes to a terminal of this many columns.
std::string on_a_terminal(const std::vector<std::string>& args, unsigned short columns) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
  EXPECT_GE(terminal, 0);
  EXPECT_EQ(::grantpt(terminal), 0);
  EXPECT_EQ(::unlockpt(terminal), 0);
  const int other_end = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
  const struct winsize size { .ws_row = 10, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0 };
  EXPECT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
  std::string text;
  testing::RunOptions options;
  options.before_exec = [&] { ::dup2(other_end, STDERR_FILENO); };
  options.meanwhile = [&](pid_t child, const fs::path&) {
    for (bool running = true; running;) {
      running = testing::is_running(child);
      std::vector<char> block(1 << 12);
      for (ssize_t count = 0; (count = ::read(terminal, block.data(), block.size())) > 0;) {
        text.append(block.data(), static_cast<size_t>(count));
      }
      ::usleep(1000);
    }
  };
  EXPECT_EQ(testing::run_program("sparsellm-run", args, options).exit_code, 0);
  ::close(other_end);
  ::close(terminal);
  return text;
}

TEST(Run, ProgressBarFitsTheTerminal) {
  constexpr std::string_view kClearLine = "\r\x1b[K";
  const auto lines = [&](unsigned short columns) {
    const std::string text = on_a_terminal({"-m", llama(), "-p", "king", "-n", "1"}, columns);
    std::vector<std::string> drawn;
    for (size_t at = text.find(kClearLine); at != std::string::npos;) {
      const size_t begin = at + kClearLine.size();
      at = text.find(kClearLine, begin);
      if (at != std::string::npos) {
        drawn.push_back(text.substr(begin, at - begin));
      }
    }
    return drawn;
  };
  const std::vector<std::string> narrow = lines(20);
  ASSERT_FALSE(narrow.empty());
  for (const std::string& line : narrow) {
    EXPECT_EQ(line.size(), 19u) << line;
    EXPECT_TRUE(line.starts_with("loading [")) << line;
  }
  const std::vector<std::string> wide = lines(200);
  ASSERT_FALSE(wide.empty());
  EXPECT_TRUE(wide.front().ends_with(" MiB")) << wide.front();
}

// As SIGHUP is under nohup.
class IgnoredSignals : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, IgnoredSignals, ::testing::Values(SIGINT, SIGTERM, SIGHUP));
TEST_P(IgnoredSignals, StayIgnored) {
  testing::RunOptions options;
  options.before_exec = [] { ::signal(GetParam(), SIG_IGN); };
  options.meanwhile = [](pid_t child, const fs::path& out) {
    while (fs::file_size(out) == 0 && testing::is_running(child)) {
      ::usleep(1000);
    }
    ::kill(child, GetParam());
  };
  const Outcome outcome = testing::run_program(
      "sparsellm-run",
      {"-m", llama(), "-p", kPrompt, "--ignore-eos", "-n", "100", "--threads", "1"}, options);
  EXPECT_EQ(outcome.exit_code, 0);
}

TEST(Run, Verbose) {
  const Outcome outcome = run("sparsellm-run", greedy(llama(), {"-v", "--threads", "1"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part :
       {"sparsellm-run: info: model \"", "LlamaForCausalLM, 8 layers", "device ", ", 1 threads, ",
        "; context of 1024 tokens; KV cache of 1024 tokens, "}) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(outcome.out, ", and the youngest was the youngest of the other two,\n");
}

TEST(Run, KvCacheOfF16) {
  const Outcome wide = run("sparsellm-run", greedy(llama(), {}));
  const Outcome outcome = run("sparsellm-run", greedy(llama(), {"--kv-dtype", "f16"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, wide.out);
  EXPECT_NE(outcome.err.find("KV cache of up to 8.0 MiB"), std::string::npos) << outcome.err;
  EXPECT_NE(run("sparsellm-run", greedy(llama(), {"--kv-dtype", "bf16"})).exit_code, 0);
}

TEST(Run, ActivationSparsity) {
  const Outcome off = run("sparsellm-run", greedy(llama(), {}));
  EXPECT_EQ(off.err.find("neurons"), std::string::npos) << off.err;
  const Outcome exact = run("sparsellm-run", greedy(llama(), {"--activation-sparsity", "exact"}));
  EXPECT_EQ(exact.exit_code, 0) << exact.err;
  EXPECT_EQ(exact.out, off.out);
  EXPECT_NE(exact.err.find(" % not zero in decoded tokens\n"), std::string::npos) << exact.err;
  const Outcome predict =
      run("sparsellm-run", greedy(opt(), {"--activation-sparsity", "predict", "--votes", "sign",
                                          "--alpha", "1.02:3", "--json", "-v"}));
  ASSERT_EQ(predict.exit_code, 0) << predict.err;
  for (const char* part : {"info: activation sparsity: predict by sign votes, alpha 1 to 1.02\n",
                           " % not zero in decoded tokens; "}) {
    EXPECT_NE(predict.err.find(part), std::string::npos) << predict.err;
  }
  const nlohmann::json neurons = nlohmann::json::parse(predict.out).at("activation_sparsity");
  EXPECT_EQ(neurons.at("mode"), "predict");
  EXPECT_GT(neurons.at("skipped").get<double>(), 0.1);
  EXPECT_LT(neurons.at("skipped").get<double>() + neurons.at("active").get<double>(), 1.0);

  const auto expect_error = [](const std::vector<std::string>& flags, int exit_code,
                               std::string_view error) {
    const Outcome outcome = run("sparsellm-run", greedy(llama(), flags));
    EXPECT_EQ(outcome.exit_code, exit_code);
    EXPECT_NE(outcome.err.find(error), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  };
  expect_error({"--activation-sparsity", "predict"}, 1,
               "sparsellm-convert --activation-sparsity predict --calibration FILE");
  expect_error({"--activation-sparsity", "predict", "--alpha", "1:9"}, 1, "use 1 to 8");
  expect_error({"--activation-sparsity", "exact", "--alpha", "1"}, 1, "predict, not exact");
  expect_error({"--votes", "sign"}, 1, "predict, not off");
  expect_error({"--activation-sparsity", "predict", "--alpha", "0"}, 2, "--alpha \"0\"");
}

TEST(Run, VersionAndHelp) {
  for (const char* tool : {"sparsellm-run", "sparsellm-eval"}) {
    const Outcome version = run(tool, {"--version"});
    EXPECT_EQ(version.exit_code, 0);
    EXPECT_TRUE(version.out.starts_with(std::string(tool) + " 0.")) << version.out;
    const Outcome help = run(tool, {"--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_NE(help.out.find("Usage"), std::string::npos);
  }
}

class Interrupts : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, Interrupts, ::testing::Values(SIGINT, SIGTERM, SIGHUP));
TEST_P(Interrupts, EndCleanly) {
  // Longer than any machine takes to notice the first text.
  const auto interrupt = [](pid_t child, const fs::path& out) {
    while (fs::file_size(out) == 0 && testing::is_running(child)) {
      ::usleep(1000);
    }
    ::kill(child, GetParam());
  };
  const Outcome outcome = testing::run_program(
      "sparsellm-run", {"-m", llama(), "-p", kPrompt, "--ignore-eos", "-n", "-1", "--threads", "1"},
      {.input = {}, .before_exec = {}, .meanwhile = interrupt});
  EXPECT_EQ(outcome.exit_code, 128 + GetParam());
  EXPECT_TRUE(outcome.out.ends_with('\n'));
  EXPECT_GT(outcome.out.size(), 1u);
  EXPECT_NE(outcome.err.find("\nmemory"), std::string::npos);
}

// Where Ctrl-C ends a text alone, the others end the program.
TEST(Run, SigtermEndsTheProgramWhileATextIsMade) {
  const Outcome outcome = in_a_terminal([&](Terminal& terminal, pid_t child, const fs::path& out) {
    terminal.wait_for("> ", 1, child);
    terminal.type("Once upon a time\n");
    wait_for_more(out, 0, child);
    ::kill(child, SIGTERM);
    terminal.wait_for("memory", 1, child);
  });
  EXPECT_EQ(outcome.exit_code, 143);
}

TEST(Run, ReportsAFullDisk) {
  const std::string command = quoted_program("sparsellm-run") + " -m " + quoted(llama()) +
                              " -p king -n 5 >/dev/full 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
}

TEST(Tools, AnswersThatCannotBeWrittenAreErrors) {
  for (const char* tool :
       {"sparsellm-run", "sparsellm-eval", "sparsellm-bench", "sparsellm-convert"}) {
    for (const char* flag : {"--help", "--version"}) {
      const std::string command = quoted_program(tool) + " " + flag + " >/dev/full";
      EXPECT_EQ(WEXITSTATUS(std::system((command + " 2>/dev/null").c_str())), 1) << command;
    }
  }
}

TEST(Run, AStderrThatCannotBeWrittenIsNoError) {
  const std::string run = quoted_program("sparsellm-run");
  const auto exit_code = [](const std::string& command) {
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  for (const char* redirection : {"2>/dev/full", "2>&-"}) {
    EXPECT_EQ(exit_code(run + " -m " + quoted(llama()) + " -p king -n 3 >/dev/null " + redirection),
              0);
    EXPECT_EQ(exit_code(run + " -m /no/such/model -p king >/dev/null " + redirection), 1);
  }
}

TEST(Eval, PerplexityAsJsonAndAsATable) {
  const testing::TempDir directory;
  const std::string text =
      read(testing::data("text/peter_pan.txt")).substr(0, testing::kSanitized ? 4000 : 12000);
  const std::string file = directory.write("text.txt", text).string();
  for (const std::string protocol : {"windows", "llama.cpp"}) {
    const Outcome outcome =
        run("sparsellm-eval", {"perplexity", "-m", llama(), "--text", file, "--context", "128",
                               "--protocol", protocol, "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const nlohmann::json report = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(report.at("model"), llama());
    EXPECT_EQ(report.at("text"), file);
    EXPECT_EQ(report.at("protocol"), protocol);
    EXPECT_EQ(report.at("context"), 128);
    EXPECT_GT(report.at("tokens_per_second"), 0.0);
    EXPECT_EQ(report.at("tokens").get<int64_t>(),
              report.at("windows").get<int64_t>() * (protocol == "windows" ? 127 : 63));
    EXPECT_GT(report.at("perplexity").get<double>(), 20.0);
    EXPECT_LT(report.at("perplexity").get<double>(), 120.0);
    EXPECT_GT(report.at("standard_error").get<double>(), 0.0);
    const Outcome table = run("sparsellm-eval", {"perplexity", "-m", llama(), "--text", file,
                                                 "--context", "128", "--protocol", protocol, "-v"});
    EXPECT_TRUE(table.out.starts_with(fmt::format(
        "perplexity  {:.4f} +- {:.4f}\nprotocol    {}, context 128\nscored      {} tokens",
        report.at("perplexity").get<double>(), report.at("standard_error").get<double>(), protocol,
        report.at("tokens").get<int64_t>())))
        << table.out;
    // Eight windows are computed together.
    EXPECT_NE(table.err.find("context of 128 tokens; KV cache of 1024 tokens"), std::string::npos)
        << table.err;
  }
}

// Decode steps have the figures of prompts on the CPU, and say that they are decode steps.
TEST(Eval, DecodeSteps) {
  const testing::TempDir directory;
  const std::string text = read(testing::data("text/peter_pan.txt")).substr(0, 700);
  const std::string file = directory.write("text.txt", text).string();
  const std::vector<std::vector<std::string>> commands{{"perplexity", "-m", llama()},
                                                       {"compare", llama()}};
  for (const std::vector<std::string>& command : commands) {
    const auto outcome_of = [&](const std::vector<std::string>& more) {
      std::vector<std::string> args = command;
      args.insert(args.end(), {"--device", "cpu", "--text", file, "--context", "64"});
      args.insert(args.end(), more.begin(), more.end());
      Outcome outcome = run("sparsellm-eval", args);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      return outcome;
    };
    nlohmann::json prompts = nlohmann::json::parse(outcome_of({"--json"}).out);
    nlohmann::json steps = nlohmann::json::parse(outcome_of({"--json", "--decode"}).out);
    EXPECT_EQ(prompts.at("decode"), false);
    EXPECT_EQ(steps.at("decode"), true);
    for (nlohmann::json* report : {&prompts, &steps}) {
      report->erase("decode");
      report->erase("tokens_per_second");
    }
    EXPECT_EQ(steps, prompts);
    const Outcome table = outcome_of({"--decode", "-v"});
    EXPECT_NE(table.out.find("windows, context 64, decode steps\n"), std::string::npos)
        << table.out;
    EXPECT_NE(table.err.find("context of 64 tokens; KV cache of 2048 tokens"), std::string::npos)
        << table.err;
  }
}

TEST(Eval, Activation) {
  const testing::TempDir directory;
  const std::string text = read(testing::data("text/peter_pan.txt")).substr(0, 1000);
  const std::string file = directory.write("text.txt", text).string();
  const std::vector<std::string> of_text{"--text", file, "--context", "64"};
  const auto eval = [&](std::vector<std::string> args, const std::vector<std::string>& more) {
    args.insert(args.end(), of_text.begin(), of_text.end());
    args.insert(args.end(), more.begin(), more.end());
    return run("sparsellm-eval", args);
  };
  const Outcome outcome = eval({"activation", "-m", opt()}, {"--alphas", "1.5,1", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report.at("votes"), "weighted");
  EXPECT_EQ(report.at("tokens").get<int64_t>(), report.at("windows").get<int64_t>() * 63);
  ASSERT_EQ(report.at("layers").size(), 8u);
  const nlohmann::json& alphas = report.at("all").at("alphas");
  ASSERT_EQ(alphas.size(), 2u);
  EXPECT_EQ(alphas[0].at("alpha"), 1.0);
  EXPECT_GT(alphas[0].at("skipped"), alphas[1].at("skipped"));
  const Outcome tables = eval({"activation", "-m", opt(), "--votes", "sign"}, {"--device", "cpu"});
  EXPECT_TRUE(tables.out.starts_with(
      fmt::format("sign votes, {} tokens in {} windows\n\nalpha 0.98\nlayer ",
                  report.at("tokens").get<int64_t>(), report.at("windows").get<int64_t>())))
      << tables.out;

  // The control that takes neurons for zero at random.
  std::vector<double> active;
  const auto perplexity = [&](const char* sparsity) {
    const Outcome scored = eval({"perplexity", "-m", opt(), "--activation-sparsity", sparsity},
                                {"--decode", "--json"});
    EXPECT_EQ(scored.exit_code, 0) << scored.err;
    const nlohmann::json result = nlohmann::json::parse(scored.out);
    if (const std::string_view mode = sparsity; mode.starts_with("random:")) {
      active.push_back(result.at("activation_sparsity").at("active").get<double>());
    } else {
      EXPECT_FALSE(result.contains("activation_sparsity"));
    }
    return result.at("perplexity").get<double>();
  };
  const double off = perplexity("stored");
  EXPECT_EQ(perplexity("random:0"), off);
  EXPECT_GT(perplexity("random:0.5"), 1.5 * off);
  EXPECT_GT(active.at(0), 1.5 * active.at(1));

  const Outcome compared =
      eval({"compare", opt(), "--activation-sparsity-b", "predict", "--alpha-b", "1.05:4"},
           {"--decode", "--json"});
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  const nlohmann::json comparison = nlohmann::json::parse(compared.out);
  EXPECT_NEAR(comparison.at("perplexity_a").get<double>(), off, 1e-6 * off);
  EXPECT_GT(comparison.at("kl_mean"), 0.0);
  const nlohmann::json& neurons_a = comparison.at("activation_sparsity_a");
  EXPECT_EQ(neurons_a.at("mode"), "off");
  EXPECT_TRUE(neurons_a.at("skipped").is_null() && neurons_a.at("active").is_null());
  const nlohmann::json& neurons_b = comparison.at("activation_sparsity_b");
  EXPECT_EQ(neurons_b.at("mode"), "predict");
  EXPECT_GT(neurons_b.at("skipped"), 0.1);
  EXPECT_GT(neurons_b.at("active"), 0.01);
  const Outcome prompts = eval({"compare", opt(), "--activation-sparsity", "exact"}, {});
  EXPECT_NE(prompts.out.find("neurons of A     exact\nneurons of B     exact\n"), std::string::npos)
      << prompts.out;
  const Outcome decoded =
      eval({"compare", opt(), "--activation-sparsity-b", "exact"}, {"--decode"});
  EXPECT_TRUE(std::regex_search(
      decoded.out, std::regex("neurons of A     off\nneurons of B     exact; [0-9.]+ % not zero; "
                              "0.0 % skipped\n")))
      << decoded.out;

  const auto expect_error = [](const Outcome& bad, int exit_code, std::string_view error) {
    EXPECT_EQ(bad.exit_code, exit_code);
    EXPECT_NE(bad.err.find(error), std::string::npos) << bad.err;
    EXPECT_EQ(std::count(bad.err.begin(), bad.err.end(), '\n'), 1) << bad.err;
  };
  expect_error(eval({"activation", "-m", testing::data("tiny/llama3").string()}, {}), 1,
               "needs relu or fatrelu; the model has silu");
  expect_error(run("sparsellm-eval", {"activation", "-m", opt(), "--text", file}), 1,
               "less than one window of 511");
  for (const char* alphas_text : {"0", "1,-1", "nan"}) {
    expect_error(eval({"activation", "-m", opt()}, {"--alphas", alphas_text}), 2,
                 "expected numbers above 0");
  }
  expect_error(eval({"activation", "-m", opt()}, {"--alpha", "1"}), 2, "--alpha");
  for (const char* mode : {"random:", "random:1.5", "random:nan", "some"}) {
    expect_error(eval({"perplexity", "-m", opt(), "--activation-sparsity", mode}, {}), 2,
                 "or random:P with P in [0, 1]");
  }
  expect_error(eval({"compare", opt(), "--alpha-b", "0"}, {}), 2, "--alpha-b");
}

TEST(Eval, CompareAsJson) {
  const testing::TempDir directory;
  const std::string text = read(testing::data("text/peter_pan.txt")).substr(0, 2000);
  const std::string file = directory.write("text.txt", text).string();
  const std::vector<std::string> args{"compare", llama(), llama(),     "--device-b", "cpu",
                                      "--text",  file,    "--context", "64",         "--json"};
  const Outcome outcome = run("sparsellm-eval", args);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report.at("model_b"), llama());
  EXPECT_EQ(report.at("device_b"), "cpu");
  EXPECT_EQ(report.at("tokens").get<int64_t>(), report.at("windows").get<int64_t>() * 63);
  EXPECT_EQ(report.at("kl_mean"), 0.0);
  EXPECT_EQ(report.at("kl_max"), 0.0);
  EXPECT_EQ(report.at("top1_agreement_percent"), 100.0);
  EXPECT_EQ(report.at("top1_gap_max"), 0.0);
  EXPECT_EQ(report.at("perplexity_a"), report.at("perplexity_b"));
  EXPECT_EQ(report.at("worst_token").at("top_a"), report.at("worst_token").at("top_b"));
}

// As tools/cli/printable.h has it of texts that are UTF-8.
std::string quoted_line(const nlohmann::json& text) {
  std::string line = "\"";
  for (const char c : text.get<std::string>()) {
    line += c == '\n' ? "\\n" : c == '\r' ? "\\r" : std::string(1, c);
  }
  return line + "\"";
}

// What sparsellm-eval compare prints of the figures in a report, but for the speed.
std::string table_of(const nlohmann::json& report) {
  const auto number = [&](const char* key) { return report.at(key).get<double>(); };
  const auto text = [&](const char* key) { return report.at(key).get<std::string>(); };
  const auto estimate = [&](const std::string& key, int digits) {
    return fmt::format("{:.{}f} +- {:.{}f}", number(key.c_str()), digits,
                       number((key + "_standard_error").c_str()), digits);
  };
  const nlohmann::json& worst = report.at("worst_token");
  const auto top = [&](const char* key) {
    return fmt::format("{} with probability {:.4g}", quoted_line(worst.at(key).at("text")),
                       worst.at(key).at("probability").get<double>());
  };
  const std::vector<std::pair<const char*, std::string>> rows{
      {"A", fmt::format("{} on {}", text("model_a"), text("device_a"))},
      {"B", fmt::format("{} on {}", text("model_b"), text("device_b"))},
      {"protocol", fmt::format("{}, context {}", text("protocol"), number("context"))},
      {"scored", fmt::format("{} tokens in {} windows\n", number("tokens"), number("windows"))},
      {"KL(A || B)",
       fmt::format("{:.4g} +- {:.2g} nats", number("kl_mean"), number("kl_standard_error"))},
      {"  median", fmt::format("{:.4g}", number("kl_median"))},
      {"  99 %", fmt::format("{:.4g}", number("kl_p99"))},
      {"  99.9 %", fmt::format("{:.4g}", number("kl_p999"))},
      {"  maximum", fmt::format("{:.4g}", number("kl_max"))},
      {"top-1 agreement", fmt::format("{:.3f} %", number("top1_agreement_percent"))},
      {"  gap, maximum", fmt::format("{:.4g}", number("top1_gap_max"))},
      {"perplexity A", estimate("perplexity_a", 4)},
      {"perplexity B", estimate("perplexity_b", 4)},
      {"B / A", estimate("perplexity_ratio", 6) + "\n"},
      {"worst token", fmt::format("number {} of the text, KL {:.4g}",
                                  worst.at("position").get<int64_t>(), number("kl_max"))},
      {"  after", quoted_line(worst.at("context"))},
      {"  the text has",
       fmt::format("{} with probability {:.4g} in A, {:.4g} in B", quoted_line(worst.at("text")),
                   worst.at("probability_a").get<double>(),
                   worst.at("probability_b").get<double>())},
      {"  top-1 of A", top("top_a")},
      {"  top-1 of B", top("top_b")}};
  std::string table;
  for (const auto& [name, value] : rows) {
    table += fmt::format("{:<16} {}\n", name, value);
  }
  return table;
}

TEST(Eval, CompareAsTable) {
  const testing::TempDir directory;
  const std::string text = read(testing::data("text/peter_pan.txt")).substr(0, 1000);
  const std::string file = directory.write("text.txt", text).string();
  const std::string pruned = (directory.path() / "pruned").string();
  ASSERT_EQ(run("sparsellm-convert", {"-m", llama(), "--output", pruned, "--prune", "magnitude",
                                      "--sparsity", "0.5", "--quiet"})
                .exit_code,
            0);
  std::vector<std::string> args{"compare",   llama(), pruned,     "--text", file,
                                "--context", "64",    "--device", "cpu"};
  const Outcome outcome = run("sparsellm-eval", args);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  args.push_back("--json");
  const nlohmann::json report = nlohmann::json::parse(run("sparsellm-eval", args).out);
  EXPECT_EQ(report.at("model_a"), llama());
  EXPECT_EQ(report.at("model_b"), pruned);
  EXPECT_EQ(report.at("text"), file);
  EXPECT_GT(report.at("tokens_per_second"), 0.0);
  for (const char* key : {"kl_mean", "kl_standard_error", "top1_gap_max"}) {
    EXPECT_GT(report.at(key), 0.0) << key;
  }
  EXPECT_LT(report.at("perplexity_a"), report.at("perplexity_b"));
  EXPECT_EQ(report.at("worst_token").at("kl"), report.at("kl_max"));
  EXPECT_EQ(
      std::regex_replace(outcome.out, std::regex(" windows, [0-9]+ tokens/s\n"), " windows\n"),
      table_of(report));
  // A model with itself, if there is no other.
  const Outcome alone =
      run("sparsellm-eval", {"compare", llama(), "--text", file, "--context", "128", "-v"});
  EXPECT_NE(alone.out.find("KL(A || B)       0 +- 0 nats"), std::string::npos) << alone.out;
  // Both hold the windows of a step, which has 2,048 tokens for vocabularies of this size.
  const size_t first = alone.err.find("context of 128 tokens; KV cache of 2048 tokens");
  EXPECT_NE(first, std::string::npos) << alone.err;
  EXPECT_NE(alone.err.find("context of 128 tokens; KV cache of 2048 tokens", first + 1),
            std::string::npos)
      << alone.err;
}

// A copy of the llama model (links, except for what is changed).
void link_model(const testing::TempDir& directory) {
  for (const auto& entry : fs::directory_iterator(llama())) {
    fs::create_symlink(entry.path(), directory.path() / entry.path().filename());
  }
}

void replace(const testing::TempDir& directory, const char* name, const std::string& bytes) {
  fs::remove(directory.path() / name);
  directory.write(name, bytes);
}

struct BadInput {
  std::string name;
  int exit_code;
  std::string message;  // a part of the line on stderr
  // Arguments of sparsellm-run; `directory` is a scratch folder.
  std::function<std::vector<std::string>(const testing::TempDir& directory)> args;
};

std::vector<std::string> with_model(const std::string& model,
                                    const std::vector<std::string>& more = {"-p", "x"}) {
  std::vector<std::string> args{"-m", model};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// The llama model with one file replaced.
auto changed(const char* name, const std::function<std::string(std::string)>& change) {
  return [=](const testing::TempDir& directory) {
    link_model(directory);
    replace(directory, name, change(read(fs::path(llama()) / name)));
    return with_model(directory.path().string());
  };
}

// What git-lfs leaves of a file.
std::string lfs_pointer(const std::string& bytes) {
  return "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') +
         "\nsize " + std::to_string(bytes.size()) + "\n";
}

auto config_with(const std::string& key, const nlohmann::json& value) {
  return changed("config.json", [=](const std::string& text) {
    nlohmann::json config = nlohmann::json::parse(text);
    config[key] = value;
    return config.dump();
  });
}

auto flags(const std::vector<std::string>& more) {
  return [=](const testing::TempDir&) { return with_model(llama(), more); };
}

std::vector<BadInput> bad_inputs() {
  return {
      {"NoModel", 2, "--model",
       [](const auto&) {
         return std::vector<std::string>{"-p", "x"};
       }},
      {"UnknownFlag", 2, "--frobnicate", flags({"-p", "x", "--frobnicate"})},
      {"TopP", 2, "top_p 1.5", flags({"-p", "x", "--top-p", "1.5"})},
      {"Temperature", 2, "temperature -1", flags({"-p", "x", "--temp", "-1"})},
      {"MinP", 2, "min_p 7", flags({"-p", "x", "--min-p", "7"})},
      {"TopK", 2, "top_k -3", flags({"-p", "x", "--top-k", "-3"})},
      {"NotANumber", 2, "--top-k", flags({"-p", "x", "--top-k", "many"})},
      {"Nan", 2, "temperature nan", flags({"-p", "x", "--temp", "nan"})},
      {"Predict", 2, "--predict", flags({"-p", "x", "-n", "-2"})},
      {"Seed", 2, "--seed", flags({"-p", "x", "--seed", "18446744073709551615"})},
      {"Threads", 2, "--threads", flags({"-p", "x", "--threads", "-1"})},
      {"PromptAndFile", 2, "--file", flags({"-p", "x", "-f", "y"})},
      {"LogitBias", 2, "--logit-bias \"12\"", flags({"-p", "x", "--logit-bias", "12"})},
      {"LogitBiasTwice", 2, "12",
       flags({"-p", "x", "--logit-bias", "12+1", "--logit-bias", "12-1"})},
      {"LogitBiasToken", 1, "4096", flags({"-p", "x", "--logit-bias", "4096+1"})},
      {"RepeatPenalty", 2, "repetition_penalty 0", flags({"-p", "x", "--repeat-penalty", "0"})},
      {"FrequencyPenalty", 2, "frequency_penalty inf",
       flags({"-p", "x", "--frequency-penalty", "inf"})},
      {"EmptyStop", 2, "--stop has an empty text", flags({"-p", "x", "--stop", ""})},
      {"StopUtf8", 2, "--stop \"", flags({"-p", "x", "--stop", "\xff"})},
      {"StopToken", 1, "stop token id 4096", flags({"-p", "x", "--stop-token", "4096"})},
      {"Samples", 2, "--samples", flags({"-p", "x", "--samples", "0"})},
      {"LogProbs", 2, "--logprobs", flags({"-p", "x", "--json", "--logprobs", "101"})},
      {"LogProbsAsText", 2, "--logprobs needs --json", flags({"-p", "x", "--logprobs", "1"})},
      {"KvMemory", 2, "--kv-memory \"12X\"", flags({"-p", "x", "--kv-memory", "12X"})},
      {"KvMemoryHuge", 2, "--kv-memory", flags({"-p", "x", "--kv-memory", "9999999999G"})},
      {"KvMemorySmall", 1, "a KV cache of 1024 bytes", flags({"-p", "x", "--kv-memory", "1K"})},
      {"LogProbsOfManyTokens", 1, "1024 samples of up to 500 tokens with 100 log-probabilities",
       flags({"-p", "x", "--json", "--logprobs", "100", "--samples", "1024", "-n", "500",
              "--kv-memory", "8M"})},
      {"BatchSize", 2, "--batch-size 2 is less than --parallel 4",
       flags({"-p", "x", "--parallel", "4", "-b", "2"})},
      {"BatchSizeOfSamples", 2, "--batch-size 2 is less than --parallel 5",
       flags({"-p", "x", "--samples", "5", "--batch-size", "2"})},
      {"EmptyModelName", 2, "--model: is empty",
       [](const auto&) {
         return std::vector<std::string>{"-m", "", "-p", "x"};
       }},
      {"EmptyPromptsName", 2, "--prompts: is empty", flags({"--prompts", "", "--output", "out"})},
      {"EmptyOutputName", 2, "--output: is empty", flags({"--prompts", "in", "--output", ""})},
      {"QuietAndVerbose", 2, "--verbose", flags({"-p", "x", "--quiet", "--verbose"})},
      {"OutputAlone", 2, "--prompts", flags({"-p", "x", "--output", "out.jsonl"})},
      {"PromptsAlone", 2, "--output", flags({"--prompts", "in.jsonl"})},
      {"PromptAndPrompts", 2, "--prompts",
       flags({"-p", "x", "--prompts", "in.jsonl", "--output", "out.jsonl"})},
      {"ResumeAlone", 2, "--prompts", flags({"-p", "x", "--resume"})},
      {"OutputIsNoFile", 2, "--output - is no file",
       flags({"--prompts", "in.jsonl", "--output", "-"})},
      {"SingleDash", 2, "there is no flag \"-temp\"; use --temp", flags({"-p", "x", "-temp", "0"})},
      {"LayersOnTheGpu", 2, "there is no flag \"-ngl\"; use --device",
       flags({"-p", "x", "-ngl", "99"})},
      {"PromptWithoutFlag", 2,
       "\"Once upon\" belongs to no flag; did you forget --model or --prompt",
       flags({"Once upon"})},
      {"PromptsFromStdin", 2, "standard input", flags({"--prompts", "-", "--output", "out.jsonl"})},
      {"Device", 1, "unknown device 'tpu'", flags({"-p", "x", "--device", "tpu"})},
      {"CudaDevice", 1, "cuda:99 is not there", flags({"-p", "x", "--device", "cuda:99"})},
      {"Context", 1, "a context of 4096 tokens is more than the 1024",
       flags({"-p", "x", "-c", "4096"})},
      {"LongPrompt", 1, "tokens, but the context holds 16",
       flags({"-p", kPrompt + kPrompt, "-c", "16"})},
      {"InvalidUtf8", 1, "invalid UTF-8 at byte 5", flags({"-p", "king \xff\xfe"})},
      {"MissingFile", 1, "/no/such/file", flags({"-f", "/no/such/file"})},
      {"FileIsAFolder", 1, "not a regular file", flags({"-f", "/tmp"})},
      {"EmptyFile", 1, "is empty",
       [](const testing::TempDir& directory) {
         return with_model(llama(), {"-f", directory.write("empty.txt", "").string()});
       }},
      {"EmptyStdin", 1, "empty", flags({})},
      {"MissingModel", 1, "/no/such/model",
       [](const auto&) { return with_model("/no/such/model"); }},
      {"ModelOfTheHub", 1, "'hf download meta-llama/Llama-2-7b-hf --local-dir DIR'",
       [](const auto&) { return with_model("meta-llama/Llama-2-7b-hf"); }},
      {"ModelOfTheHubBeforeStdin", 1, "hf download",
       [](const auto&) { return with_model("meta-llama/Llama-2-7b-hf", {}); }},
      {"Gguf", 1, "GGUF is not read",
       [](const testing::TempDir& directory) {
         return with_model(directory.write("model-Q4_K_M.gguf", "GGUF").string());
       }},
      {"GgufIsMissing", 1, "GGUF is not read",
       [](const auto&) { return with_model("model.gguf"); }},
      {"GgufInAFolder", 1, "GGUF is not read",
       [](const testing::TempDir& directory) {
         directory.write("model.gguf", "GGUF");
         return with_model(directory.path().string());
       }},
      {"WeightsForTheModel", 1, "fable-llama-relu-8m, which has its config.json",
       [](const auto&) { return with_model(llama() + "/model.safetensors"); }},
      {"FolderOfTheHubsCache", 1, "snapshots/abc has: give that",
       [](const testing::TempDir& directory) {
         directory.write("snapshots/abc/config.json", "{}");
         return with_model(directory.path().string());
       }},
      {"LfsConfig", 1, "run 'git lfs pull'", changed("config.json", lfs_pointer)},
      {"LfsTokenizer", 1, "run 'git lfs pull'", changed("tokenizer.model", lfs_pointer)},
      {"LfsWeights", 1, "run 'git lfs pull'", changed("model.safetensors", lfs_pointer)},
      {"ModelIsAFile", 1, "config.json",
       [](const testing::TempDir& directory) {
         return with_model(directory.write("model", "x").string());
       }},
      {"EmptyFolder", 1, "config.json",
       [](const testing::TempDir& directory) { return with_model(directory.path().string()); }},
      {"PytorchOnly", 1, "tools/bin_to_safetensors.py",
       [](const testing::TempDir& directory) {
         link_model(directory);
         fs::remove(directory.path() / "model.safetensors");
         directory.write("pytorch_model.bin", "x");
         return with_model(directory.path().string());
       }},
      {"NoTokenizer", 1, "tokenizer",
       [](const testing::TempDir& directory) {
         link_model(directory);
         fs::remove(directory.path() / "tokenizer.model");
         return with_model(directory.path().string());
       }},
      {"TokenizerDamaged", 1, "tokenizer.model",
       changed("tokenizer.model", [](const std::string&) { return "not a model"; })},
      {"ConfigNotJson", 1, "config.json",
       changed("config.json", [](const std::string&) { return "{"; })},
      {"Architecture", 1, "supported are",
       config_with("architectures", nlohmann::json::array({"MambaForCausalLM"}))},
      {"Activation", 1, "hidden_act", config_with("hidden_act", "mish")},
      {"RopeType", 1, "yarn",
       config_with("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}})},
      {"HeadsDoNotDivide", 1, "num_key_value_heads", config_with("num_key_value_heads", 3)},
      {"NegativeSize", 1, "hidden_size", config_with("hidden_size", -256)},
      {"WrongShape", 1, "has shape [768, 256], but the config asks for [512, 256]",
       config_with("intermediate_size", 512)},
      {"MissingTensor", 1, "model.layers.8", config_with("num_hidden_layers", 9)},
      {"MissingHead", 1, R"("lm_head.weight" is missing)",
       config_with("tie_word_embeddings", false)},
      {"UnusedTensor", 1, "model.layers.7", config_with("num_hidden_layers", 7)},
      {"TruncatedWeights", 1, "model.safetensors",
       changed("model.safetensors",
               [](const std::string& bytes) { return bytes.substr(0, bytes.size() - 1); })},
      {"WeightsCutInTheHeader", 1, "model.safetensors",
       changed("model.safetensors", [](const std::string& bytes) { return bytes.substr(0, 100); })},
      {"HugeHeader", 1, "model.safetensors",
       changed("model.safetensors",
               [](std::string bytes) {
                 bytes.replace(0, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f");
                 return bytes;
               })},
  };
}

class RunBadInput : public ::testing::TestWithParam<BadInput> {};
INSTANTIATE_TEST_SUITE_P(Cases, RunBadInput, ::testing::ValuesIn(bad_inputs()),
                         [](const auto& test) { return test.param.name; });

TEST_P(RunBadInput, OneClearLine) {
  const testing::TempDir directory;
  const Outcome outcome = run("sparsellm-run", GetParam().args(directory));
  EXPECT_EQ(outcome.exit_code, GetParam().exit_code);
  EXPECT_NE(outcome.err.find(GetParam().message), std::string::npos) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with("sparsellm-run: ")) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

TEST(OtherTools, SayTheSameOfModelsAndFlags) {
  const std::string text = testing::data("text/peter_pan.txt").string();
  struct Case {
    const char* program;
    int exit_code;
    std::string message;
    std::vector<std::string> args;
  };
  const std::vector<Case> cases{
      {"sparsellm-eval", 1, "hf download", {"perplexity", "-m", "a/b", "--text", text}},
      {"sparsellm-eval", 1, "hf download", {"compare", llama(), "a/b", "--text", text}},
      {"sparsellm-convert", 1, "hf download", {"-m", "a/b", "--dry-run"}},
      {"sparsellm-bench", 1, "hf download", {"throughput", "-m", "a/b", "--device", "cpu"}},
      {"sparsellm-eval", 1, "GGUF is not", {"perplexity", "-m", "a.gguf", "--text", text}},
      {"sparsellm-convert", 1, "GGUF is not", {"-m", "a.gguf", "--dry-run"}},
      {"sparsellm-bench", 1, "GGUF is not", {"throughput", "-m", "a.gguf", "--device", "cpu"}},
      {"sparsellm-convert",
       1,
       "which has its config.json",
       {"-m", llama() + "/model.safetensors", "--dry-run"}},
      {"sparsellm-eval", 2, "use --text", {"perplexity", "-m", llama(), "-f", text}},
      {"sparsellm-eval", 2, "use --context", {"perplexity", "-m", llama(), "--ctx-size", "8"}},
      {"sparsellm-eval", 2, "in front of a command: perplexity, compare", {"-m", llama()}},
      {"sparsellm-convert", 2, "use --sparsity", {"-m", llama(), "--sparsity_ratio", "0.5"}},
      {"sparsellm-convert", 2, "use --output", {"-m", llama(), "-o", "out"}},
      {"sparsellm-convert", 2, "did you mean --prune?", {"-m", llama(), "--prun", "2:4"}},
      {"sparsellm-bench", 2, "there is no command \"speed\"", {"speed"}},
      {"sparsellm-convert", 2, "--output - is no directory", {"-m", llama(), "--output", "-"}},
  };
  for (const Case& c : cases) {
    const Outcome outcome = run(c.program, c.args);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << outcome.err;
    EXPECT_NE(outcome.err.find(c.message), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST(EvalBadInput, OneClearLine) {
  const testing::TempDir directory;
  const std::string empty = directory.write("empty.txt", "").string();
  const std::string shorter = directory.write("short.txt", "A king.").string();
  struct Case {
    int exit_code;
    std::string message;
    std::vector<std::string> args;
  };
  const std::vector<Case> cases{
      {2, "a subcommand is missing", {}},
      {2, "frobnicate", {"frobnicate"}},
      {2, "frobnicate", {"frobnicate", "-m", llama()}},
      {2, "--model: is empty", {"perplexity", "-m", "", "--text", shorter}},
      {2, "--text: is empty", {"perplexity", "-m", llama(), "--text", ""}},
      {2, "B: is empty", {"compare", llama(), "", "--text", shorter}},
      {2, "--device-b: is empty", {"compare", llama(), "--device-b", "", "--text", shorter}},
      {2, "--text", {"perplexity", "-m", llama()}},
      {2, "--context", {"perplexity", "-m", llama(), "--text", shorter, "--context", "1"}},
      {2, "--protocol", {"perplexity", "-m", llama(), "--text", shorter, "--protocol", "best"}},
      {1, "/no/such/text", {"perplexity", "-m", llama(), "--text", "/no/such/text"}},
      {1, "is empty", {"perplexity", "-m", llama(), "--text", empty}},
      {1, "less than one window", {"perplexity", "-m", llama(), "--text", shorter}},
      {1,
       "more than the 1024",
       {"perplexity", "-m", llama(), "--text", shorter, "--context", "2048"}},
      {2, "A is required", {"compare", "--text", shorter}},
      {2, "--text", {"compare", llama()}},
      {2, "--model", {"compare", "--model", llama(), llama(), "--text", shorter}},
      {1, "/no/such/text", {"compare", llama(), "--text", "/no/such/text"}},
      {1, "is empty", {"compare", llama(), "--text", empty}},
      {1, "model A (/no/such/model): ", {"compare", "/no/such/model", "--text", shorter}},
      {1, "model B (/no/such/model): ", {"compare", llama(), "/no/such/model", "--text", shorter}},
      {1, "unknown device 'tpu'", {"compare", llama(), "--text", shorter, "--device-b", "tpu"}},
      {1, "less than one window", {"compare", llama(), "--text", shorter}},
      {1,
       "model B (" + testing::data("tiny/llama3").string() + "): a context of 1000 tokens",
       {"compare", llama(), testing::data("tiny/llama3").string(), "--text", shorter, "--context",
        "1000"}},
      {1,
       "the vocabularies do not fit",
       {"compare", llama(), testing::data("tiny/llama3").string(), "--text", shorter, "--context",
        "4"}},
      {1,
       "the tokenizers do not fit",
       {"compare", llama(), opt(), "--text", shorter, "--context", "4"}},
  };
  for (const Case& c : cases) {
    const Outcome outcome = run("sparsellm-eval", c.args);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << outcome.err;
    EXPECT_NE(outcome.err.find(c.message), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

}  // namespace
}  // namespace sparsellm
