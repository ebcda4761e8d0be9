// The programs as a user meets them: output, exit codes, and one clear line for every bad input.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int exit_code = -1;  // minus the signal if one ended the program
  std::string out;
  std::string err;
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs a program with `input` on stdin; `meanwhile` gets its process id and the file that its
// stdout goes to.
Outcome run(const char* program, const std::vector<std::string>& args,
            const std::string& input = {},
            const std::function<void(pid_t, const fs::path&)>& meanwhile = {}) {
  const testing::TempDir directory;
  const fs::path in = directory.write("in", input);
  const fs::path out = directory.write("out", "");
  const fs::path err = directory.write("err", "");
  const std::string path = testing::program(program).string();
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open(in.c_str(), O_RDONLY), STDIN_FILENO);
    ::dup2(::open(out.c_str(), O_WRONLY), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY), STDERR_FILENO);
    std::vector<char*> argv{const_cast<char*>(path.c_str())};
    for (const std::string& arg : args) {
      argv.push_back(const_cast<char*>(arg.c_str()));
    }
    argv.push_back(nullptr);
    ::execv(path.c_str(), argv.data());
    ::_exit(127);
  }
  if (meanwhile) {
    meanwhile(child, out);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
          .out = read(out),
          .err = read(err)};
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
  const Outcome outcome = run(
      "sparsellm-run", {"-m", llama(), "-p", kPrompt, "--ignore-eos", "-n", "-1", "--threads", "1"},
      {}, [](pid_t child, const fs::path& out) {
        while (fs::file_size(out) == 0 && ::kill(child, 0) == 0) {
          ::usleep(1000);
        }
        ::kill(child, SIGINT);
      });
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
  const std::string text = read(testing::data("text/peter_pan.txt")).substr(0, 12000);
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
      {"MissingHead", 1, "lm_head.weight is missing", config_with("tie_word_embeddings", false)},
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
      {2, "subcommand", {}},
      {2, "--text", {"perplexity", "-m", llama()}},
      {2, "--context", {"perplexity", "-m", llama(), "--text", shorter, "--context", "1"}},
      {2, "--protocol", {"perplexity", "-m", llama(), "--text", shorter, "--protocol", "best"}},
      {1, "/no/such/text", {"perplexity", "-m", llama(), "--text", "/no/such/text"}},
      {1, "is empty", {"perplexity", "-m", llama(), "--text", empty}},
      {1, "less than one window", {"perplexity", "-m", llama(), "--text", shorter}},
      {1,
       "more than the 1024",
       {"perplexity", "-m", llama(), "--text", shorter, "--context", "2048"}},
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
