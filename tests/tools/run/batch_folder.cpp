#include "tests/tools/run/batch_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/testing/paths.h"
#include "tests/testing/sanitized.h"

namespace sparsellm::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Outcome run(const fs::path& model, const std::vector<std::string>& more,
            const RunOptions& options) {
  std::vector<std::string> args{"-m", model.string(), "--threads", "1"};
  args.insert(args.end(), more.begin(), more.end());
  return run_program("sparsellm-run", args, options);
}

// For a whole line: its end is written after it.
void wait_for_results(const BatchFolder& folder, pid_t child) {
  while (is_running(child) && (!fs::exists(folder.partial()) ||
                               read_file(folder.partial()).find('\n') == std::string::npos)) {
    ::usleep(1000);
  }
}

}  // namespace

std::string batch_model() { return data("models/fable-llama-relu-8m").string(); }

Outcome run_model(const std::vector<std::string>& more, const RunOptions& options) {
  return run(batch_model(), more, options);
}

Outcome BatchFolder::batch(const std::vector<std::string>& more, const RunOptions& options) const {
  return batch_of(batch_model(), more, options);
}

Outcome BatchFolder::batch_of(const fs::path& model, const std::vector<std::string>& more,
                              const RunOptions& options) const {
  std::vector<std::string> args{"--prompts", prompts().string(), "--output", output().string()};
  args.insert(args.end(), more.begin(), more.end());
  return run(model, args, options);
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::vector<json> results_of(const fs::path& path) {
  std::vector<json> results;
  for (const std::string& line : lines_of(path)) {
    results.push_back(json::parse(line));
  }
  return results;
}

void write_file(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string many_prompts(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += json{{"id", "line " + std::to_string(i)},
                  {"prompt", i % 2 == 0 ? "The king" : "Once upon a time there was"},
                  {"seed", i},
                  {"ignore_eos", true},
                  {"max_tokens", 1 + i * 7 % 40}}
                 .dump() +
             "\n";
  }
  return lines;
}

std::string slow_prompt() {
  return json{
      {"prompt", "Alice"}, {"seed", 1}, {"ignore_eos", true}, {"max_tokens", kSanitized ? 60 : 400}}
      .dump();
}

void expect_error(const Outcome& outcome, int exit_code, std::string_view message) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
  EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

void kill_in_mid_batch(const BatchFolder& folder, int signal, pid_t child) {
  wait_for_results(folder, child);
  ::kill(child, signal);
}

Outcome with_meddling(const BatchFolder& folder, const std::function<void()>& meddle,
                      const std::vector<std::string>& more) {
  RunOptions options;
  options.meanwhile = [&](pid_t child, const fs::path&) {
    wait_for_results(folder, child);
    meddle();
  };
  return folder.batch(more, options);
}

}  // namespace sparsellm::testing
