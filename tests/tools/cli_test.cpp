// The programs as a user meets them: output, exit codes, and one clear line for every bad input.

#include <fcntl.h>
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
#include <string>
#include <string_view>
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
  for (const char* row : {"load", "prefill", "decode", "memory"}) {
    EXPECT_NE(outcome.err.find(row), std::string::npos) << outcome.err;
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

// What the tool writes to a terminal of so many columns.
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

TEST(Run, IgnoredInterruptsStayIgnored) {
  testing::RunOptions options;
  options.before_exec = [] { ::signal(SIGINT, SIG_IGN); };
  options.meanwhile = [](pid_t child, const fs::path& out) {
    while (fs::file_size(out) == 0 && testing::is_running(child)) {
      ::usleep(1000);
    }
    ::kill(child, SIGINT);
  };
  const Outcome outcome = testing::run_program(
      "sparsellm-run",
      {"-m", llama(), "-p", kPrompt, "--ignore-eos", "-n", "100", "--threads", "1"}, options);
  EXPECT_EQ(outcome.exit_code, 0);
}

TEST(Run, Verbose) {
  const Outcome outcome = run("sparsellm-run", greedy(llama(), {"-v", "--threads", "1"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"sparsellm-run: info: model \"", "LlamaForCausalLM, 8 layers", "device ",
                           ", 1 threads; ", "context of 1024 tokens; KV cache of 1024 tokens, "}) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(outcome.out, ", and the youngest was the youngest of the other two,\n");
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

TEST(Run, InterruptEndsCleanly) {
  // Longer than any machine takes to notice the first text.
  const auto interrupt = [](pid_t child, const fs::path& out) {
    while (fs::file_size(out) == 0 && testing::is_running(child)) {
      ::usleep(1000);
    }
    ::kill(child, SIGINT);
  };
  const Outcome outcome = testing::run_program(
      "sparsellm-run", {"-m", llama(), "-p", kPrompt, "--ignore-eos", "-n", "-1", "--threads", "1"},
      {.input = {}, .before_exec = {}, .meanwhile = interrupt});
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_TRUE(outcome.out.ends_with('\n'));
  EXPECT_GT(outcome.out.size(), 1u);
  EXPECT_NE(outcome.err.find("decode"), std::string::npos);
}

TEST(Run, ReportsAFullDisk) {
  const std::string command = testing::program("sparsellm-run").string() + " -m " + llama() +
                              " -p king -n 5 >/dev/full 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
}

TEST(Tools, AnswersThatCannotBeWrittenAreErrors) {
  for (const char* tool :
       {"sparsellm-run", "sparsellm-eval", "sparsellm-bench", "sparsellm-convert"}) {
    for (const char* flag : {"--help", "--version"}) {
      const std::string command = testing::program(tool).string() + " " + flag + " >/dev/full";
      EXPECT_EQ(WEXITSTATUS(std::system((command + " 2>/dev/null").c_str())), 1) << command;
    }
  }
}

TEST(Run, AStderrThatCannotBeWrittenIsNoError) {
  const std::string run = testing::program("sparsellm-run").string();
  const auto exit_code = [](const std::string& command) {
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  for (const char* redirection : {"2>/dev/full", "2>&-"}) {
    EXPECT_EQ(exit_code(run + " -m " + llama() + " -p king -n 3 >/dev/null " + redirection), 0);
    EXPECT_EQ(exit_code(run + " -m /no/such/model -p king >/dev/null " + redirection), 1);
  }
}

TEST(Eval, PerplexityAsJson) {
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
    EXPECT_EQ(report.at("protocol"), protocol);
    EXPECT_EQ(report.at("tokens").get<int64_t>(),
              report.at("windows").get<int64_t>() * (protocol == "windows" ? 127 : 63));
    EXPECT_GT(report.at("perplexity").get<double>(), 20.0);
    EXPECT_LT(report.at("perplexity").get<double>(), 120.0);
    EXPECT_GT(report.at("standard_error").get<double>(), 0.0);
  }
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

TEST(Eval, CompareAsTable) {
  const testing::TempDir directory;
  const std::string text = read(testing::data("text/peter_pan.txt")).substr(0, 1000);
  const std::string file = directory.write("text.txt", text).string();
  const Outcome outcome =
      run("sparsellm-eval", {"compare", llama(), "--text", file, "--context", "64"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part :
       {"KL(A || B)       0 +- 0 nats", "top-1 agreement  100.000 %", "  gap, maximum   0\n",
        "B / A            1.000000 +- 0.000000", "worst token"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out;
  }
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
       flags({"-p", "x", "--json", "--logprobs", "100", "--samples", "1024", "-n", "500"})},
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
