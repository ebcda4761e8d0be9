#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/json_reader.h"
#include "kernels/base/open_directory.h"
#include "tokenizer/added_tokens.h"

namespace sparsellm {

// Of a file with a part of a tokenizer; far above what tokenizers need.
inline constexpr int64_t kMaxTokenizerFileBytes = 100'000'000;
inline constexpr int kMaxTokenizerJsonDepth = 32;

// What a model directory says about its tokenizer beside the vocabulary: tokenizer_config.json and,
// from older versions of Hugging Face, added_tokens.json. Both may be missing.
struct TokenizerConfig {
  std::filesystem::path path;  // of tokenizer_config.json, for messages
  std::string tokenizer_class;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_prefix_space;
  bool legacy = false;  // of Llama: a dummy prefix after every control token too
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  // BOS, EOS and the other tokens that are named for a purpose, all special. They have no id here.
  std::vector<AddedToken> named_tokens;
  std::vector<AddedToken> added_tokens;
};

// Throws Error that names the file, the key and the value of anything that is not as it should be.
TokenizerConfig read_tokenizer_config(const OpenDirectory& directory);

// The text and the flags of one entry of "added_tokens" or "added_tokens_decoder", without its id.
AddedToken read_added_token(const JsonValue& entry);

// The special tokens of a model, with their ids.
struct SpecialTokens {
  std::vector<AddedToken> added_tokens;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
};

// `added` with the named tokens of the config: those in `added` become special, those that only the
// model has (its id, or nullopt) are added, and those in neither are left out; for BOS and EOS that
// is an Error.
SpecialTokens resolve_special_tokens(
    std::vector<AddedToken> added, const TokenizerConfig& config,
    const std::function<std::optional<int32_t>(const std::string&)>& model_id);

// What is put around the ids of a text if special tokens are added.
struct Frame {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

// BOS and EOS as add_bos_token and add_eos_token say. Throws Error for one that is requested but
// not there.
Frame make_frame(const TokenizerConfig& config, bool add_bos_by_default,
                 std::optional<int32_t> bos_id, std::optional<int32_t> eos_id);

}  // namespace sparsellm
