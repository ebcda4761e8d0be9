// Batches of random prompts, many of them malformed, through sparsellm-run:
//   random_batches COUNT [SEED [FIRST]]
// Each batch runs undisturbed first: it ends within a time limit, not by a signal, and with one
// line of error or a result in JSON for each prompt. Then it is killed at a random time, for some
// of them the partial output is damaged as well, and --resume goes on with another number of
// threads and of parallel requests: it ends with the bytes of the undisturbed run, or, if something
// was damaged, with an error. Prints a line for each batch for which that does not hold.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/random.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::Outcome;
using testing::Random;

constexpr unsigned kHangSeconds = 20;

template <size_t count>
const char* any(const char* const (&choices)[count], Random& random) {
  return choices[random.below(static_cast<int64_t>(count))];
}

std::string prompt_line(Random& random, int64_t number) {
  static constexpr const char* kPrompts[]{
      R"("prompt": "king")",
      R"("prompt": "The queen of the \u00e4\ud83d\ude00")",
      R"("prompt": "a b c d e f g h i j k l m n o p q r s t u v w x y z")",
      R"("prompt_ids": [5, 6, 7])",
      R"("prompt": [1])",
      R"("prompt": "")",
      R"("prompt_ids": [999999])",
      R"("prompt": 3)"};
  static constexpr const char* kFields[]{R"("max_tokens": 3)",
                                         R"("max_tokens": 0)",
                                         R"("max_tokens": -1)",
                                         R"("max_tokens": 12)",
                                         R"("temperature": 0)",
                                         R"("temperature": 1.5)",
                                         R"("temperature": 1e999)",
                                         R"("temperature": -1)",
                                         R"("top_k": 3)",
                                         R"("top_p": 0.5)",
                                         R"("min_p": 0.2)",
                                         R"("seed": 4)",
                                         R"("seed": -1, "seed": 9)",
                                         R"("n": 2)",
                                         R"("n": 100000)",
                                         R"("logprobs": 2)",
                                         R"("logprobs": 0)",
                                         R"("echo": true)",
                                         R"("stop": "a")",
                                         R"("stop": ["b", ""])",
                                         R"("stop_token_ids": [3])",
                                         R"("logit_bias": {"5": -100})",
                                         R"("ignore_eos": true)",
                                         R"("unknown": 1)",
                                         R"("repetition_penalty": 2)"};
  std::string line = fmt::format("{{{}", any(kPrompts, random));
  for (int64_t fields = random.below(4); fields > 0; --fields) {
    line += fmt::format(", {}", any(kFields, random));
  }
  // A fresh seed would give another text each time.
  line += fmt::format(R"(, "seed": {})", number);
  if (random.below(3) == 0) {
    line += fmt::format(R"(, "id": "{}")", random.below(1000));
  }
  return line + "}";
}

void damage(std::string& text, Random& random) {
  static constexpr const char* kPieces[]{"{",       "}",    "[[[[[[[[", "\"",       "\\u0000",
                                         "\\ud800", "\xff", "\n",       "1e400",    "-",
                                         "null",    ",",    ":",        "\xc3\xa4", "\r\n"};
  if (text.empty()) {
    return;
  }
  const auto at = static_cast<size_t>(random.below(std::ssize(text)));
  switch (random.below(5)) {
    case 0:
      text[at] = static_cast<char>(random.below(256));
      break;
    case 1:
      text.erase(at, static_cast<size_t>(1 + random.below(6)));
      break;
    case 2:
      text.insert(at, any(kPieces, random));
      break;
    case 3:
      text.insert(at, text.substr(at, static_cast<size_t>(random.below(40))));
      break;
    default:
      text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
  }
}

std::string prompts(Random& random) {
  std::string text;
  for (int64_t i = 0, count = random.below(13); i < count; ++i) {
    std::string line = prompt_line(random, i);
    for (int64_t times = random.below(4) == 0 ? 1 + random.below(3) : 0; times > 0; --times) {
      damage(line, random);
    }
    text += line + "\n";
  }
  return text;
}

class Batch {
 public:
  Batch(uint64_t seed, int64_t number) : random_(seed * 1'000'003 + static_cast<uint64_t>(number)) {
    static constexpr const char* kModels[]{"llama3", "llama_bias", "llama_fatrelu",
                                           "llama_gelu_tanh", "opt_gelu"};
    model_ = testing::data(fmt::format("tiny/{}", any(kModels, random_))).string();
    directory_.write("prompts.jsonl", prompts(random_));
    static constexpr const char* kFlags[]{"--echo",       "--ignore-eos", "--temp=0", "--samples=2",
                                          "--logprobs=1", "--top-k=5",    "--stop=e"};
    for (int64_t flags = random_.below(3); flags > 0; --flags) {
      const std::string flag = any(kFlags, random_);
      if (flag.starts_with("--logprobs")) {
        logprobs_ = true;
      }
      if (std::find(flags_.begin(), flags_.end(), flag) == flags_.end()) {
        flags_.push_back(flag);
      }
    }
  }

  // What is wrong; empty: nothing.
  std::string check() {
    const auto begin = std::chrono::steady_clock::now();
    const Outcome undisturbed = run("good.jsonl", {}, {});
    const auto time = std::chrono::steady_clock::now() - begin;
    std::string wrong = check_outcome(undisturbed, "good.jsonl");
    if (!wrong.empty() || undisturbed.exit_code != 0) {
      return wrong;
    }
    const auto delay = time * random_.below(1000) / 1000;
    const Outcome killed = run("out.jsonl", {}, [&](pid_t child, const fs::path&) {
      std::this_thread::sleep_for(delay);
      ::kill(child, SIGKILL);
    });
    const bool is_damaged =
        killed.exit_code != 0 && !logprobs_ && random_.below(2) == 0 && damage_partial_output();
    const Outcome resumed = run("out.jsonl", {"--resume"}, {});
    if (resumed.exit_code == 0) {
      return read("out.jsonl") == read("good.jsonl") ? "" : "--resume gives other bytes";
    }
    wrong = check_outcome(resumed, "out.jsonl");
    return !wrong.empty() ? wrong : is_damaged ? "" : "--resume: " + resumed.err;
  }

  std::string describe() const {
    return fmt::format("{} {}\n{}", model_, fmt::join(flags_, " "), read("prompts.jsonl"));
  }

 private:
  Outcome run(const char* output, const std::vector<std::string>& more,
              const std::function<void(pid_t, const fs::path&)>& meanwhile) {
    std::vector<std::string> args{"-m",         model_,
                                  "--prompts",  path("prompts.jsonl"),
                                  "--output",   path(output),
                                  "-n",         "5",
                                  "--device",   "cpu",
                                  "--seed",     "1",
                                  "--threads",  std::to_string(1 + random_.below(2)),
                                  "--parallel", std::to_string(2 + random_.below(5))};
    args.insert(args.end(), flags_.begin(), flags_.end());
    args.insert(args.end(), more.begin(), more.end());
    testing::RunOptions options;
    options.before_exec = [] { ::alarm(kHangSeconds); };
    options.meanwhile = meanwhile;
    return testing::run_program("sparsellm-run", args, options);
  }

  std::string check_outcome(const Outcome& outcome, const char* output) const {
    if (outcome.exit_code < 0) {
      return fmt::format("signal {}: {}", -outcome.exit_code, outcome.err);
    }
    if (outcome.exit_code != 0) {
      size_t errors = 0;
      std::istringstream lines(outcome.err);
      for (std::string line; std::getline(lines, line);) {
        errors += line.starts_with("sparsellm-run: ") ? 1 : 0;
      }
      return errors != 1                ? "not one line of error: " + outcome.err
             : fs::exists(path(output)) ? "an error, and an output: " + outcome.err
                                        : "";
    }
    return check_results(output);
  }

  // A result for each line that is not blank.
  std::string check_results(const char* output) const {
    int64_t expected = 0;
    std::istringstream lines(read("prompts.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      expected += line.find_first_not_of(" \t\r") == std::string::npos ? 0 : 1;
    }
    std::istringstream results(read(output));
    int64_t count = 0;
    for (std::string line; std::getline(results, line); ++count) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_object() || !json.contains("id") ||
          json.contains("error") == (json.contains("text") || json.contains("samples"))) {
        return "no result: " + line;
      }
    }
    return count == expected ? "" : fmt::format("{} results of {} prompts", count, expected);
  }

  bool damage_partial_output() {
    std::string text = read("out.jsonl.partial");
    const std::string before = text;
    damage(text, random_);
    if (text != before) {
      directory_.write("out.jsonl.partial", text);
    }
    return text != before;
  }

  std::string path(const char* name) const { return (directory_.path() / name).string(); }
  std::string read(const char* name) const {
    return fs::exists(path(name)) ? testing::read_file(path(name)) : "";
  }

  Random random_;
  testing::TempDir directory_;
  std::string model_;
  std::vector<std::string> flags_;
  bool logprobs_ = false;
};

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  const auto number = [&](int i, int64_t otherwise) {
    return argc > i ? std::strtoll(argv[i], nullptr, 10) : otherwise;
  };
  if (argc < 2) {
    std::cerr << "usage: random_batches COUNT [SEED [FIRST]]\n";
    return 2;
  }
  const int64_t count = number(1, 0);
  const int64_t seed = number(2, 1);
  const int64_t first = number(3, 0);
  int64_t failed = 0;
  for (int64_t i = first; i < first + count; ++i) {
    sparsellm::Batch batch(static_cast<uint64_t>(seed), i);
    if (const std::string wrong = batch.check(); !wrong.empty()) {
      ++failed;
      std::cout << "batch " << i << ": " << wrong << "\n" << batch.describe() << std::endl;
    }
  }
  std::cout << failed << " of " << count << " failed" << std::endl;
  return failed == 0 ? 0 : 1;
}
