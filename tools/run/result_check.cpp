#include "tools/run/result_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/delivery.h"
#include "engine/sequence.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tools/run/results.h"

namespace sparsellm {
namespace {

// Reads a line in the one form in which results are written, which has no spaces and a fixed order:
// without a tree of its values, of which there may be millions.
class Cursor {
 public:
  explicit Cursor(std::string_view line) : line_(line) {}

  bool take(std::string_view text) {
    const bool found = line_.substr(at_).starts_with(text);
    at_ += found ? text.size() : 0;
    return found;
  }
  void expect(std::string_view text) {
    require(take(text), "expected {} at byte {}", quote(text), at_ + 1);
  }
  // A string in quotes, as it is in the line.
  std::string_view string() {
    const size_t begin = at_;
    expect("\"");
    while (at_ < line_.size() && line_[at_] != '"') {
      at_ += line_[at_] == '\\' ? 2 : 1;
    }
    at_ = std::min(at_, line_.size());
    expect("\"");
    return line_.substr(begin, at_ - begin);
  }
  template <class Number>
  Number number() {
    Number value = 0;
    const char* const begin = line_.data() + at_;
    const auto [end, error] = std::from_chars(begin, line_.data() + line_.size(), value);
    require(error == std::errc(), "expected a number at byte {}", at_ + 1);
    at_ += static_cast<size_t>(end - begin);
    return value;
  }
  // Calls read() at each item of an array.
  template <class Read>
  void array(const Read& read) {
    expect("[");
    if (take("]")) {
      return;
    }
    do {
      read();
    } while (take(","));
    expect("]");
  }
  void expect_end() { require(at_ == line_.size(), "it continues after byte {}", at_); }

 private:
  std::string_view line_;
  size_t at_ = 0;
};

TokenLogProb read_log_prob(Cursor& cursor) {
  TokenLogProb entry;
  cursor.expect("{\"id\":");
  entry.token = cursor.number<int32_t>();
  cursor.expect(",\"token\":");
  cursor.string();
  cursor.expect(",\"logprob\":");
  entry.log_prob =
      cursor.take("null") ? -std::numeric_limits<float>::infinity() : cursor.number<float>();
  return entry;
}

std::vector<TokenLogProbs> read_log_probs(Cursor& cursor) {
  std::vector<TokenLogProbs> places;
  cursor.array([&] {
    TokenLogProbs place;
    place.token = read_log_prob(cursor);
    cursor.expect(",\"top_logprobs\":");
    cursor.array([&] {
      place.top.push_back(read_log_prob(cursor));
      cursor.expect("}");
    });
    cursor.expect("}");
    places.push_back(std::move(place));
  });
  return places;
}

// What a line says that does not follow from the rest of it.
struct Sample {
  std::vector<int32_t> tokens;
  std::vector<TokenLogProbs> log_probs;
};

struct ReadLine {
  std::vector<TokenLogProbs> prompt_log_probs;
  std::vector<Sample> samples;
};

Sample read_sample(Cursor& cursor, bool has_log_probs) {
  Sample sample;
  cursor.expect("\"text\":");
  cursor.string();
  cursor.expect(",\"token_ids\":");
  cursor.array([&] { sample.tokens.push_back(cursor.number<int32_t>()); });
  cursor.expect(",\"finish_reason\":");
  cursor.string();
  if (has_log_probs) {
    cursor.expect(",\"logprobs\":");
    sample.log_probs = read_log_probs(cursor);
  }
  return sample;
}

ReadLine read_line(std::string_view line, const PromptLine& prompt) {
  const bool has_log_probs = prompt.prompt.request.log_probs.has_value();
  Cursor cursor(line);
  ReadLine read;
  cursor.expect(result_prefix(prompt.id));
  if (prompt.prompt.echo) {
    if (prompt.prompt.text) {
      cursor.expect("\"prompt\":");
      cursor.string();
    } else {
      cursor.expect("\"prompt_ids\":");
      cursor.array([&] { cursor.number<int32_t>(); });
    }
    cursor.expect(",");
    if (has_log_probs) {
      cursor.expect("\"prompt_logprobs\":");
      read.prompt_log_probs = read_log_probs(cursor);
      cursor.expect(",");
    }
  }
  if (prompt.prompt.request.samples == 1) {
    read.samples.push_back(read_sample(cursor, has_log_probs));
  } else {
    cursor.expect("\"samples\":");
    cursor.array([&] {
      cursor.expect("{");
      read.samples.push_back(read_sample(cursor, has_log_probs));
      cursor.expect("}");
    });
  }
  cursor.expect("}");
  cursor.expect_end();
  return read;
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void check_id(int32_t id, int64_t vocab_size) {
  require(id >= 0 && id < vocab_size, "the token id {} is outside the vocabulary of {}", id,
          vocab_size);
}

void check_log_prob(const TokenLogProb& entry, int64_t vocab_size) {
  constexpr float kRounding = 1e-3f;
  check_id(entry.token, vocab_size);
  require(entry.log_prob <= kRounding, "the log-probability {} is positive", entry.log_prob);
}

// Of the place where `token` stands.
void check_place(const TokenLogProbs& place, int32_t token, int64_t top, int64_t vocab_size) {
  require(place.token.token == token, "a log-probability is of the token {}, not {}",
          place.token.token, token);
  check_log_prob(place.token, vocab_size);
  require(std::ssize(place.top) == std::min(top, vocab_size), "{} log-probabilities at a place",
          place.top.size());
  std::set<int32_t> seen;
  double sum = 0.0;
  float before = std::numeric_limits<float>::infinity();
  bool has_token = false;
  for (const TokenLogProb& entry : place.top) {
    check_log_prob(entry, vocab_size);
    require(entry.log_prob <= before && seen.insert(entry.token).second,
            "log-probabilities are not in order");
    before = entry.log_prob;
    sum += std::exp(static_cast<double>(entry.log_prob));
    if (entry.token == token) {
      require(entry.log_prob == place.token.log_prob, "a token has two log-probabilities");
      has_token = true;
    }
  }
  constexpr double kMaxProbability = 1.001;
  require(sum <= kMaxProbability, "probabilities add up to {}", sum);
  require(place.top.empty() || has_token || place.token.log_prob <= before,
          "a likely token is not among the likeliest");
}

// Delivers the tokens of a sample again; nothing but the prompt's length is left of the prompt.
class Replay {
 public:
  Replay(const Tokenizer& tokenizer, const Request& request, size_t prompt_length, Results& results)
      : tokenizer_(&tokenizer),
        submission_(std::make_shared<Submission>(
            Submission{.request = request,
                       .on_token = [&results](const TokenEvent& event) { results.add(event); }})) {
    submission_->request.prompt.assign(prompt_length, 0);
  }

  FinishReason run(const Sample& sample, int32_t index, std::vector<TokenLogProbs> of_prompt,
                   const std::vector<int32_t>& eos) const {
    Sequence sequence;
    sequence.submission = submission_;
    sequence.sample = index;
    sequence.text.emplace(*tokenizer_, /*continues=*/true);
    sequence.stops = StopMatcher(submission_->request.stop);
    sequence.prompt_log_probs = std::move(of_prompt);
    sequence.tokens = submission_->request.prompt;
    sequence.max_length = sequence.prompt_length() + std::ssize(sample.tokens);
    for (size_t i = 0; i < sample.tokens.size(); ++i) {
      require(!sequence.finish, "it continues after the end of its text");
      Choice choice{.token = sample.tokens[i], .log_probs = {}, .error = {}};
      if (!sample.log_probs.empty()) {
        choice.log_probs = sample.log_probs[i];
      }
      deliver(sequence, choice, eos);
    }
    finish(sequence, FinishReason::length);  // if nothing was to be generated
    return *sequence.finish;
  }

 private:
  const Tokenizer* tokenizer_;
  std::shared_ptr<Submission> submission_;
};

}  // namespace

ResultCheck::ResultCheck(const Tokenizer& tokenizer, const ModelConfig& config,
                         int64_t context_size, bool parse_special)
    : tokenizer_(&tokenizer),
      config_(&config),
      context_size_(context_size),
      parse_special_(parse_special) {}

void ResultCheck::require_error(std::string_view line, const PromptLine& prompt,
                                int64_t number) const {
  const std::string of_line = fmt::format("line {}: ", number);
  if (line == error_json(prompt.id, of_line + kOutOfMemory)) {
    return;  // which another run may have more of
  }
  if (!prompt.error.empty()) {
    require(line == error_json(prompt.id, prompt.error), "it has not the error of its prompt");
    return;
  }
  const std::string prefix = error_prefix(prompt.id);
  Cursor cursor(line);
  cursor.expect(prefix);
  const std::string_view text = cursor.string();
  cursor.expect("}");
  cursor.expect_end();
  constexpr int kMaxDepth = 1;
  const JsonDocument document = parse_json(text, "the error", kMaxDepth);
  const std::string& error = JsonValue(document, "the error").string();
  require(error.starts_with(of_line), "its error is of another line");
  require(line == error_json(prompt.id, error), "its error is written otherwise");
}

void ResultCheck::require_result(std::string_view line, const PromptLine& prompt,
                                 int64_t number) const {
  if (line.starts_with(error_prefix(prompt.id))) {
    require_error(line, prompt, number);
    return;
  }
  require(prompt.error.empty(), "its prompt cannot have a result: {}", prompt.error);
  const ReadLine read = read_line(line, prompt);
  const Request& request = prompt.prompt.request;
  require(std::ssize(read.samples) == request.samples, "{} samples, not {}", read.samples.size(),
          request.samples);

  const bool scores_prompt = prompt.prompt.echo && request.log_probs;
  std::optional<std::vector<int32_t>> ids;  // of the prompt, which takes time to find out
  const auto prompt_ids = [&]() -> const std::vector<int32_t>& {
    if (!ids) {
      ids = make_request(*tokenizer_, prompt.prompt, parse_special_, context_size_).prompt;
    }
    return *ids;
  };
  if (scores_prompt) {
    require(read.prompt_log_probs.size() + 1 == prompt_ids().size(),
            "{} log-probabilities of the prompt", read.prompt_log_probs.size());
    for (size_t i = 0; i < read.prompt_log_probs.size(); ++i) {
      check_place(read.prompt_log_probs[i], prompt_ids()[i + 1], *request.log_probs,
                  config_->vocab_size);
    }
  }

  Results results(request.samples);
  const Replay replay(*tokenizer_, request, scores_prompt ? prompt_ids().size() : 1, results);
  for (int32_t i = 0; i < request.samples; ++i) {
    const Sample& sample = read.samples[static_cast<size_t>(i)];
    const int64_t count = std::ssize(sample.tokens);
    for (int32_t id : sample.tokens) {
      check_id(id, config_->vocab_size);
      require(!request.ignore_eos || !contains(config_->eos_token_ids, id),
              "it has the end of the text, which is never chosen");
    }
    if (request.log_probs) {
      require(std::ssize(sample.log_probs) == count, "{} log-probabilities of {} tokens",
              sample.log_probs.size(), count);
      for (size_t j = 0; j < sample.tokens.size(); ++j) {
        check_place(sample.log_probs[j], sample.tokens[j], *request.log_probs, config_->vocab_size);
      }
    }
    require(count <= context_size_ && (request.max_tokens < 0 || count <= request.max_tokens),
            "{} tokens are too many", count);
    const FinishReason reason =
        replay.run(sample, i, i == 0 ? read.prompt_log_probs : std::vector<TokenLogProbs>(),
                   config_->eos_token_ids);
    if (reason == FinishReason::length && count < request.max_tokens) {
      require(std::ssize(prompt_ids()) + count == context_size_, "{} tokens are too few", count);
    }
    require(count > 0 || request.max_tokens == 0, "it has no tokens");
  }
  require(line == result_json(prompt.id, *tokenizer_, prompt.prompt, results),
          "its parts do not agree");
}

}  // namespace sparsellm
