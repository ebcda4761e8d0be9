#include "tools/serve/completion_request.h"

#include <utility>
#include <variant>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tools/serve/completion_body.h"

namespace sparsellm {
namespace {

constexpr int64_t kLogProbBytes = 64;  // of one in an answer, roughly

// Of the fields that every request of the body has a copy of.
int64_t copied_bytes(const Request& request) {
  auto bytes = static_cast<int64_t>(request.sampling.logit_bias.size() * sizeof(LogitBias) +
                                    request.stop_token_ids.size() * sizeof(int32_t));
  for (const std::string& stop : request.stop) {
    bytes += static_cast<int64_t>(sizeof(std::string) + stop.size());
  }
  return bytes;
}

// Before anything is made of it.
void check_body(const CompletionContext& context, const CompletionBody& body) {
  if (body.model && *body.model != context.model) {
    throw UnknownModel(fmt::format("the model {} does not exist; {} does", quote(*body.model),
                                   quote(context.model)));
  }
  const int64_t prompts = std::ssize(body.prompts);
  const int64_t samples = prompts * body.common.request.samples;
  require(samples <= context.max_samples,
          "{} prompts with n {} are {} continuations; use at most {} in all", prompts,
          body.common.request.samples, samples, context.max_samples);
  const int64_t copied = prompts * copied_bytes(body.common.request);
  require(copied <= kMaxCopiedBytes,
          "logit_bias, stop and stop_token_ids of {} prompts take {} bytes; use at most {}",
          prompts, copied, kMaxCopiedBytes);
}

// A default of max_tokens is cut to what the context has left.
void check_length(const CompletionContext& context, const Request& request, bool has_max_tokens) {
  const int64_t length = std::ssize(request.prompt);
  const int64_t least = has_max_tokens ? request.max_tokens : int64_t{request.max_tokens != 0};
  require(length <= context.context_size && least <= context.context_size - length,
          "the prompt has {} tokens, and {} are asked for; the context holds {}", length, least,
          context.context_size);
}

// As check_log_probs(), and the prompt's once more for each further continuation.
int64_t count_log_probs(const CompletionContext& context, const Request& request) {
  const int64_t once = check_log_probs(request, context.context_size);
  const int64_t echoed =
      request.prompt_log_probs ? std::ssize(request.prompt) * (*request.log_probs + 1) : 0;
  return once + (request.samples - 1) * echoed;
}

}  // namespace

CompletionRequest make_completion(const CompletionContext& context, std::string_view body) {
  CompletionBody read = read_completion_body(body, context.defaults);
  check_body(context, read);
  CompletionRequest made;
  ReplyFormat& format = made.format;
  format.model = context.model;
  format.stream = read.stream;
  format.include_usage = read.include_usage;
  format.samples = read.common.request.samples;
  format.log_probs = read.common.request.log_probs;
  format.show_special_tokens = read.common.request.show_special_tokens;
  int64_t log_probs = 0;
  int64_t echoed = 0;
  for (auto& input : read.prompts) {
    Prompt prompt = read.common;
    if (auto* const text = std::get_if<std::string>(&input)) {
      prompt.text = std::move(*text);
    } else {
      prompt.request.prompt = std::move(std::get<std::vector<int32_t>>(input));
    }
    Request request =
        make_request(context.tokenizer, prompt, /*parse_special=*/false, context.context_size);
    check_length(context, request, read.has_max_tokens);
    log_probs += count_log_probs(context, request);
    require(log_probs <= kMaxResultLogProbs,
            "the prompts ask for more than {} log-probabilities in all", kMaxResultLogProbs);
    format.prompt_tokens += std::ssize(request.prompt);
    made.samples += request.samples;
    if (prompt.echo) {
      Echo echo{.text = {}, .has_special_tokens = !prompt.text && format.show_special_tokens};
      echo.text = prompt.text
                      ? std::move(*prompt.text)
                      : decode(context.tokenizer, request.prompt, format.show_special_tokens);
      if (request.prompt_log_probs) {
        echo.tokens = request.prompt;
      }
      echoed += request.samples * std::ssize(echo.text);
      require(echoed <= kMaxEchoBytes,
              "the continuations would echo more than {} bytes of prompts in all", kMaxEchoBytes);
      format.echoes.push_back(std::move(echo));
    }
    made.bytes += copied_bytes(request) + 2 * std::ssize(request.prompt) * int64_t{sizeof(int32_t)};
    made.requests.push_back(std::move(request));
  }
  made.bytes += echoed + log_probs * kLogProbBytes;
  return made;
}

}  // namespace sparsellm
