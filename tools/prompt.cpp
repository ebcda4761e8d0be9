#include "tools/prompt.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "tokenizer/utf8.h"

namespace sparsellm {

std::string prompt_of_file(std::string text) {
  if (text.starts_with(kByteOrderMark)) {
    text.erase(0, kByteOrderMark.size());
  }
  if (text.ends_with('\n')) {
    text.pop_back();
    if (text.ends_with('\r')) {
      text.pop_back();
    }
  }
  return text;
}

Request make_request(const Tokenizer& tokenizer, const Prompt& prompt, bool parse_special) {
  Request request = prompt.request;
  if (prompt.text) {
    request.prompt = tokenizer.encode(*prompt.text,
                                      {.add_special_tokens = true, .parse_special = parse_special});
  }
  request.prompt_log_probs = prompt.echo && request.log_probs.has_value();
  return request;
}

void check_log_probs(const Request& request, int64_t context) {
  if (!request.log_probs) {
    return;
  }
  constexpr char kWhat[] = "log-probabilities";
  const auto length = static_cast<int64_t>(request.prompt.size());
  const int64_t room = std::max<int64_t>(context - length, 0);
  const int64_t tokens = request.max_tokens < 0 ? room : std::min(request.max_tokens, room);
  const int64_t places = checked_add(checked_mul(request.samples, tokens, kWhat),
                                     request.prompt_log_probs ? length : 0, kWhat);
  require(checked_mul(places, int64_t{1} + *request.log_probs, kWhat) <= kMaxResultLogProbs,
          "{} samples of up to {} tokens with {} log-probabilities at each place are more than {} "
          "in all",
          request.samples, tokens, *request.log_probs, kMaxResultLogProbs);
}

}  // namespace sparsellm
