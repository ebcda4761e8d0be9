#pragma once

#include <string>
#include <string_view>

#include "tools/serve/completion_request.h"

namespace sparsellm {

// The answers to POST /tokenize and /detokenize, in vLLM's form:
//   {"prompt": "a text", "add_special_tokens": true} -> {"count": 2, "max_model_len": 2048,
//                                                        "tokens": [5, 7]}
//   {"tokens": [5, 7]} -> {"prompt": "a text"}
// Throw Error for what is wrong with the body, and for more tokens or text than below; the
// tokenizer's errors; UnknownModel; Interrupted.
inline constexpr size_t kMaxTokenized = 1 << 20;
inline constexpr size_t kMaxDetokenizedBytes = size_t{16} << 20;
std::string tokenize(const CompletionContext& context, std::string_view body);
std::string detokenize(const CompletionContext& context, std::string_view body);

}  // namespace sparsellm
