#include "tools/run/prompt.h"

#include <algorithm>
#include <vector>

#include "kernels/base/error.h"
#include "tokenizer/utf8.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {
namespace {

// Of a prompt that is longer than its context. So many are counted at once, and then the engine
// says how many they are.
constexpr int64_t kCountedTokens = 1 << 16;

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const Prompt& prompt,
                                   bool parse_special, int64_t context) {
  const std::string& text = *prompt.text;
  const auto bytes = static_cast<int64_t>(text.size());
  if (const std::optional<int64_t> longest = tokenizer.max_token_bytes()) {
    const int64_t least = bytes / *longest + (bytes % *longest == 0 ? 0 : 1);
    require(least <= context,
            "the prompt has {} bytes, which are at least {} tokens, but the context holds {}",
            bytes, least, context);
  }
  try {
    return tokenizer.encode(text, {.add_special_tokens = prompt.add_special_tokens,
                                   .parse_special = parse_special,
                                   .max_tokens = std::max(context, kCountedTokens),
                                   .poll = throw_if_interrupted});
  } catch (const TooManyTokens&) {
    fail("the prompt has {} bytes, which are more than {} tokens, but the context holds {}", bytes,
         std::max(context, kCountedTokens), context);
  }
}

}  // namespace

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

bool read_line(std::istream& terminal, std::string& line) {
  terminal.exceptions(std::ios::badbit);
  return static_cast<bool>(std::getline(terminal, line));
}

Request make_request(const Tokenizer& tokenizer, const Prompt& prompt, bool parse_special,
                     int64_t context) {
  Request request = prompt.request;
  if (prompt.text) {
    request.prompt = encode_prompt(tokenizer, prompt, parse_special, context);
  }
  request.prompt_log_probs = prompt.echo && request.log_probs.has_value();
  return request;
}

int64_t check_log_probs(const Request& request, int64_t context) {
  if (!request.log_probs) {
    return 0;
  }
  constexpr char kWhat[] = "log-probabilities";
  const auto length = static_cast<int64_t>(request.prompt.size());
  const int64_t room = std::max<int64_t>(context - length, 0);
  const int64_t tokens = request.max_tokens < 0 ? room : std::min(request.max_tokens, room);
  const int64_t places = checked_add(checked_mul(request.samples, tokens, kWhat),
                                     request.prompt_log_probs ? length : 0, kWhat);
  const int64_t all = checked_mul(places, int64_t{1} + *request.log_probs, kWhat);
  require(all <= kMaxResultLogProbs,
          "{} samples of up to {} tokens with {} log-probabilities at each place are more than {} "
          "in all",
          request.samples, tokens, *request.log_probs, kMaxResultLogProbs);
  return all;
}

}  // namespace sparsellm
