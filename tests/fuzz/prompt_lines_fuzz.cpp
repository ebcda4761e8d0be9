// The input is a file of prompts, one JSON object a line.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/sampler.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"
#include "tools/run/line_reader.h"
#include "tools/run/prompt_lines.h"
#include "tools/run/results.h"

namespace sparsellm::fuzz {
namespace {

constexpr int64_t kMaxLineBytes = 2000;

void check_prompt(const Prompt& prompt) {
  const Request& request = prompt.request;
  expect(!prompt.text || request.prompt.empty(), "a prompt in one form");
  expect(request.max_tokens >= -1 && request.max_tokens <= kMaxGeneratedTokens, "a length");
  expect(request.samples >= 1 && request.samples <= kMaxSamples, "a number of samples");
  expect(!request.seed || *request.seed <= uint64_t{kMaxSeed}, "a seed");
  for (const std::string& text : request.stop) {
    expect(!text.empty(), "stop texts that are not empty");
  }
  validate(request.sampling);
}

// What is written about a line is JSON again.
void check_result(const std::string& id, const std::string& error) {
  constexpr int kMaxDepth = 1;
  parse_json(error_json(id, error), "the result", kMaxDepth);
}

}  // namespace

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  folder.write("prompts.jsonl", input);
  LineReader reader(folder.path() / "prompts.jsonl", kMaxLineBytes);
  std::string first_error;
  for (LineReader::Line line; reader.next(line);) {
    expect(std::ssize(line.text) <= kMaxLineBytes, "lines of bounded length");
    if (line.too_long || is_blank(line.text)) {
      continue;
    }
    const PromptLine read = read_prompt_line(line.text, line.number, Prompt{});
    const auto id = read_prompt_id(line.text, line.number);
    expect(!id || *id == read.id, "the same id from both readers");
    try {
      if (read.error.empty()) {
        check_prompt(read.prompt);
      }
      check_result(read.id, read.error);
    } catch (const Error&) {
      expect(false, "sampling parameters in range, and a result in JSON");
    }
    if (first_error.empty()) {
      first_error = read.error;
    }
  }
  require(first_error.empty(), "{}", first_error);
}

}  // namespace sparsellm::fuzz
