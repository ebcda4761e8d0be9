// The input is the body of POST /v1/completions, and once more that of /tokenize and /detokenize.
// Its tokens are bytes; a body that is taken is answered.

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampler.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tests/fuzz/check_message.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/testing/byte_tokenizer.h"
#include "tools/serve/completion_body.h"
#include "tools/serve/completion_reply.h"
#include "tools/serve/completion_request.h"
#include "tools/serve/tokenize.h"

namespace sparsellm::fuzz {
namespace {

using testing::ByteTokenizer;

constexpr int64_t kContext = 64;
constexpr int64_t kMaxContinuations = 40;
constexpr int32_t kVocabulary = ByteTokenizer::kFirstText;
constexpr int kAnswerDepth = 8;

const ByteTokenizer& tokenizer() {
  static const ByteTokenizer bytes;
  return bytes;
}

CompletionContext context() {
  Prompt defaults;
  defaults.request.max_tokens = 16;
  return {.tokenizer = tokenizer(),
          .context_size = kContext,
          .model = "m",
          .defaults = defaults,
          .max_samples = kMaxContinuations};
}

// What the engine takes; ids may be outside of its vocabulary.
void check_request(const Request& request) {
  const int64_t length = std::ssize(request.prompt);
  expect(length >= 1 && length <= kContext, "a prompt that fits the context");
  expect(request.max_tokens == 0 || length < kContext, "room for a token");
  expect(
      std::all_of(request.prompt.begin(), request.prompt.end(), [](int32_t id) { return id >= 0; }),
      "token ids");
  expect(request.max_tokens >= 0 && request.max_tokens <= kContext, "a length");
  expect(request.samples >= 1 && request.samples <= kMaxContinuations, "a number of samples");
  expect(request.stop.size() <= kMaxStops, "few stop texts");
  for (const std::string& text : request.stop) {
    expect(!text.empty() && text.size() <= kMaxStopBytes, "short stop texts that are not empty");
    check_text(text);
  }
  expect(request.stop_token_ids.size() <= kMaxStopTokens, "few stop tokens");
  const int32_t log_probs = request.log_probs.value_or(0);
  expect(log_probs >= 0 && log_probs <= kMaxTopLogProbs, "a number of log-probabilities");
  expect(request.log_probs || !request.prompt_log_probs, "log-probabilities of the prompt");
  validate(request.sampling);
}

TokenLogProbs scored(int32_t token) {
  return {.token = {.token = token, .log_prob = -1.0f},
          .top = {{.token = (token + 1) % kVocabulary, .log_prob = -0.5f}}};
}

// Each continuation says what its prompt said last.
void answer(CompletionRequest made) {
  const bool streams = made.format.stream;
  const bool has_log_probs = made.format.log_probs.has_value();
  const int64_t prompt_tokens = made.format.prompt_tokens;
  CompletionReply reply(tokenizer(), made.requests.size(), std::move(made.format));
  const auto expect_json = [](std::string_view text) {
    try {
      parse_json(text, "the answer", kAnswerDepth);
    } catch (const Error&) {
      expect(false, "an answer in JSON");
    }
  };
  for (size_t i = 0; i < made.requests.size(); ++i) {
    const Request& request = made.requests[i];
    for (int32_t sample = 0; sample < request.samples; ++sample) {
      LoopEvents events;
      LoopEvents::Event event{.request = static_cast<int32_t>(i), .sample = sample};
      event.token = request.prompt.back();
      event.finish = FinishReason::length;
      if (has_log_probs) {
        event.log_probs = 0;
        events.log_probs.push_back(scored(*event.token));
      }
      if (request.prompt_log_probs && sample == 0) {
        event.prompt_log_probs = static_cast<int32_t>(events.log_probs.size());
        for (size_t k = 1; k < request.prompt.size(); ++k) {
          events.log_probs.push_back(scored(request.prompt[k]));
          ++event.prompt_log_probs_count;
        }
      }
      std::string chunk;
      reply.add(events, event, chunk);
      expect(chunk.empty() != streams, "chunks of streams alone");
      if (streams) {
        expect(chunk.starts_with("data: ") && chunk.ends_with("\n\n"), "an event");
        expect(chunk.find('\n') == chunk.size() - 2, "an event of one line");
        expect_json(std::string_view(chunk).substr(6));
      }
    }
  }
  expect(reply.finished(), "an answer that ends");
  expect(reply.prompt_tokens() == prompt_tokens, "the same number of tokens");
  expect_json(reply.body());
}

template <class Make>
void try_other(Make make, std::string_view input) {
  try {
    parse_json(make(context(), input), "the answer", kAnswerDepth);
  } catch (const Error& error) {
    check_message(error);
  }
}

}  // namespace

void fuzz_one(std::string_view input) {
  try_other(tokenize, input);
  try_other(detokenize, input);
  CompletionRequest made = make_completion(context(), input);
  int64_t samples = 0;
  for (const Request& request : made.requests) {
    try {
      check_request(request);
    } catch (const Error&) {
      expect(false, "values in range");
    }
    samples += request.samples;
  }
  expect(!made.requests.empty() && made.requests.size() <= kMaxBodyPrompts, "a number of prompts");
  expect(samples == made.samples && samples <= kMaxContinuations, "a number of continuations");
  expect(made.bytes >= 0 && made.bytes < int64_t{1} << 30, "bounded memory");
  answer(std::move(made));
}

}  // namespace sparsellm::fuzz
