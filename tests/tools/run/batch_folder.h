#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm::testing {

// The model of all batches that name no other.
std::string batch_model();

// sparsellm-run of that model in one thread.
Outcome run_model(const std::vector<std::string>& more, const RunOptions& options = {});

// A folder with in.jsonl, and the batch that turns it into out.jsonl.
class BatchFolder {
 public:
  explicit BatchFolder(std::string_view prompts) { directory_.write("in.jsonl", prompts); }

  std::filesystem::path path(const char* name) const { return directory_.path() / name; }
  std::filesystem::path prompts() const { return path("in.jsonl"); }
  std::filesystem::path output() const { return path("out.jsonl"); }
  std::filesystem::path partial() const { return path("out.jsonl.partial"); }
  std::filesystem::path mark() const { return path("out.jsonl.partial.json"); }

  Outcome batch(const std::vector<std::string>& more = {}, const RunOptions& options = {}) const;
  Outcome batch_of(const std::filesystem::path& model, const std::vector<std::string>& more = {},
                   const RunOptions& options = {}) const;

 private:
  TempDir directory_;
};

std::vector<std::string> lines_of(const std::filesystem::path& path);
std::vector<nlohmann::json> results_of(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, std::string_view text);

// Lines of different lengths that together take a while.
std::string many_prompts(int count);
// Behind it there is time to look at a batch that is not done yet.
std::string slow_prompt();

// That there was one line of error.
void expect_error(const Outcome& outcome, int exit_code, std::string_view message);

void kill_in_mid_batch(const BatchFolder& folder, int signal, pid_t child);
// What becomes of a batch when another program changes its files after the first result.
Outcome with_meddling(const BatchFolder& folder, const std::function<void()>& meddle,
                      const std::vector<std::string>& more = {});

}  // namespace sparsellm::testing
