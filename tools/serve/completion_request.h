#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "tokenizer/tokenizer.h"
#include "tools/run/prompt.h"
#include "tools/serve/completion_reply.h"

namespace sparsellm {

// A model that does not have the name that a request asks for: 404.
class UnknownModel : public Error {
 public:
  using Error::Error;
};

// What requests are made with; immutable, shared by threads.
struct CompletionContext {
  const Tokenizer& tokenizer;
  int64_t context_size;
  std::string model;  // its name
  Prompt defaults;    // for fields that a body does not have
  // Continuations of a body at most: what there is room for when nobody else asks.
  int64_t max_samples = kMaxSamples;
};

// Of what every prompt of a body gets a copy: logit_bias, stop, stop_token_ids.
inline constexpr int64_t kMaxCopiedBytes = int64_t{16} << 20;
// Of echoes, of all continuations.
inline constexpr int64_t kMaxEchoBytes = int64_t{64} << 20;

// A body as the engine and the reply need it.
struct CompletionRequest {
  std::vector<Request> requests;  // one for each prompt
  ReplyFormat format;             // `id` and `created` are not set
  int64_t samples = 0;            // of all prompts
  int64_t bytes = 0;              // of memory at most, without the texts that are generated
};

// Reads a body and encodes its prompts. Throws the errors of read_completion_body(),
// make_request(), check_log_probs() (for all prompts together, with what each continuation
// echoes), those of prompts that cannot fit the context with what they ask for, of more than the
// limits above, and UnknownModel.
CompletionRequest make_completion(const CompletionContext& context, std::string_view body);

}  // namespace sparsellm
