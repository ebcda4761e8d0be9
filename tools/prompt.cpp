#include "tools/prompt.h"

namespace sparsellm {

Request make_request(const Tokenizer& tokenizer, const Prompt& prompt, bool parse_special) {
  Request request = prompt.request;
  if (prompt.text) {
    request.prompt = tokenizer.encode(*prompt.text,
                                      {.add_special_tokens = true, .parse_special = parse_special});
  }
  request.prompt_log_probs = prompt.echo && request.log_probs.has_value();
  return request;
}

}  // namespace sparsellm
