#include "tokenizer/tokenizer_config.h"

#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"

namespace sparsellm {
namespace {

std::optional<bool> optional_boolean(const JsonValue& node) {
  return node.present() ? std::optional(node.boolean()) : std::nullopt;
}

// A token for a purpose is a string, or an object like an entry of added_tokens.
AddedToken read_named_token(const JsonValue& node) {
  AddedToken token;
  if (node.is_object()) {
    token = read_added_token(node);
  } else {
    token.content = node.string();
  }
  token.special = true;
  return token;
}

std::vector<AddedToken> read_added_tokens_decoder(const JsonValue& decoder) {
  std::vector<AddedToken> tokens;
  for (const std::string& key : decoder.keys()) {
    AddedToken token = read_added_token(decoder[key]);
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token.id);
    require(error == std::errc() && end == key.data() + key.size() && token.id >= 0,
            "{}: {} is not a token id", decoder.name(), quote(key));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<AddedToken> read_added_tokens_file(const InputFile& file) {
  const nlohmann::json document =
      read_json_file(file, kMaxTokenizerFileBytes, kMaxTokenizerJsonDepth);
  std::vector<AddedToken> tokens;
  for (const auto& [content, id] : JsonValue(document, file.string()).integer_map(0, INT32_MAX)) {
    AddedToken token;
    token.content = content;
    token.id = id;
    token.normalized = true;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void read_config_file(const JsonValue& root, TokenizerConfig& config) {
  if (const JsonValue name = root["tokenizer_class"]; name.present()) {
    config.tokenizer_class = name.string();
  }
  config.add_bos_token = optional_boolean(root["add_bos_token"]);
  config.add_eos_token = optional_boolean(root["add_eos_token"]);
  config.add_prefix_space = optional_boolean(root["add_prefix_space"]);
  config.legacy = root["legacy"].boolean(false);

  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const JsonValue node = root[key];
    if (!node.present()) {
      continue;
    }
    AddedToken token = read_named_token(node);
    if (token.content.empty()) {
      continue;  // as early Llama conversions have it
    }
    if (key == std::string_view("bos_token")) {
      config.bos_token = token.content;
    } else if (key == std::string_view("eos_token")) {
      config.eos_token = token.content;
    }
    config.named_tokens.push_back(std::move(token));
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const JsonValue list = root[key];
    if (list.is_object()) {  // the newer key may name each token: {"image_token": "<image>"}
      for (const std::string& name : list.keys()) {
        config.named_tokens.push_back(read_named_token(list[name]));
      }
    } else if (list.present()) {
      for (int64_t i = 0; i < list.size(); ++i) {
        config.named_tokens.push_back(read_named_token(list.element(i)));
      }
    }
  }
  if (const JsonValue decoder = root["added_tokens_decoder"]; decoder.present()) {
    config.added_tokens = read_added_tokens_decoder(decoder);
  }
}

}  // namespace

TokenizerConfig read_tokenizer_config(const OpenDirectory& directory) {
  TokenizerConfig config;
  const InputFile file = directory / "tokenizer_config.json";
  config.path = file.path();
  if (is_there(file)) {
    const nlohmann::json document =
        read_json_file(file, kMaxTokenizerFileBytes, kMaxTokenizerJsonDepth);
    read_config_file(JsonValue(document, config.path.string()), config);
  }
  const InputFile added_tokens = directory / "added_tokens.json";
  if (config.added_tokens.empty() && is_there(added_tokens)) {
    config.added_tokens = read_added_tokens_file(added_tokens);
  }
  return config;
}

AddedToken read_added_token(const JsonValue& entry) {
  if (const JsonValue single_word = entry["single_word"]; single_word.boolean(false)) {
    single_word.refuse("only tokens that may stand inside a word are supported (false)");
  }
  return {.content = entry["content"].string(),
          .id = 0,
          .special = entry["special"].boolean(false),
          .normalized = entry["normalized"].boolean(true),
          .lstrip = entry["lstrip"].boolean(false),
          .rstrip = entry["rstrip"].boolean(false)};
}

SpecialTokens resolve_special_tokens(
    std::vector<AddedToken> added, const TokenizerConfig& config,
    const std::function<std::optional<int32_t>(const std::string&)>& model_id) {
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < added.size(); ++i) {
    places.emplace(added[i].content, i);
  }
  for (AddedToken token : config.named_tokens) {
    if (const auto known = places.find(token.content); known != places.end()) {
      added[known->second].special = true;
    } else if (const auto id = model_id(token.content)) {
      token.id = *id;
      places.emplace(token.content, added.size());
      added.push_back(std::move(token));
    }
  }

  SpecialTokens special;
  const auto id_of = [&](const std::optional<std::string>& content,
                         std::string_view key) -> std::optional<int32_t> {
    if (!content) {
      return {};
    }
    const auto found = places.find(*content);
    require(found != places.end(), "{}: {} {} is not in the vocabulary", config.path.string(), key,
            quote(*content));
    return added[found->second].id;
  };
  special.bos_id = id_of(config.bos_token, "bos_token");
  special.eos_id = id_of(config.eos_token, "eos_token");
  special.added_tokens = std::move(added);
  return special;
}

Frame make_frame(const TokenizerConfig& config, bool add_bos_by_default,
                 std::optional<int32_t> bos_id, std::optional<int32_t> eos_id) {
  const auto side = [&](std::optional<bool> wanted, bool by_default, std::optional<int32_t> id,
                        std::string_view name) {
    require(!wanted.value_or(false) || id, "{}: add_{}_token is true, but there is no {}_token",
            config.path.string(), name, name);
    return wanted.value_or(by_default) && id ? std::vector{*id} : std::vector<int32_t>();
  };
  return {.prefix = side(config.add_bos_token, add_bos_by_default, bos_id, "bos"),
          .suffix = side(config.add_eos_token, false, eos_id, "eos")};
}

}  // namespace sparsellm
