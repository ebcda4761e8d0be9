#include "tools/serve/completion_request.h"

#include <utility>
#include <variant>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tools/serve/completion_body.h"

namespace sparsellm {

CompletionRequest make_completion(const CompletionContext& context, std::string_view body) {
  CompletionBody read = read_completion_body(body, context.defaults);
  if (read.model && *read.model != context.model) {
    throw UnknownModel(fmt::format("the model {} does not exist; {} does", quote(*read.model),
                                   quote(context.model)));
  }
  CompletionRequest made;
  ReplyFormat& format = made.format;
  format.model = context.model;
  format.stream = read.stream;
  format.include_usage = read.include_usage;
  format.samples = read.common.request.samples;
  format.log_probs = read.common.request.log_probs;
  int64_t log_probs = 0;
  for (auto& input : read.prompts) {
    Prompt prompt = read.common;
    if (auto* const text = std::get_if<std::string>(&input)) {
      prompt.text = std::move(*text);
    } else {
      prompt.request.prompt = std::move(std::get<std::vector<int32_t>>(input));
    }
    Request request =
        make_request(context.tokenizer, prompt, /*parse_special=*/false, context.context_size);
    log_probs += check_log_probs(request, context.context_size);
    require(log_probs <= kMaxResultLogProbs,
            "the prompts ask for more than {} log-probabilities in all", kMaxResultLogProbs);
    format.prompt_tokens += std::ssize(request.prompt);
    made.samples += request.samples;
    if (prompt.echo) {
      format.echoes.push_back(
          prompt.text ? std::move(*prompt.text)
                      : decode(context.tokenizer, request.prompt, request.show_special_tokens));
      if (request.prompt_log_probs) {
        format.echoed_tokens.push_back(request.prompt);
      }
    }
    made.requests.push_back(std::move(request));
  }
  return made;
}

}  // namespace sparsellm
