#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace sparsellm {

inline constexpr int64_t kMaxTokenizerFileBytes = 100'000'000;

// A JSON file of the tokenizer. Throws Error that names the file if it cannot be read, has more
// than kMaxTokenizerFileBytes, is not JSON, or is nested so deep that no tokenizer needs it.
nlohmann::json read_tokenizer_json(const std::filesystem::path& path);

// Text out of a file, for messages: in quotes, on one line, shortened if it is long.
std::string in_quotes(std::string_view text);

// A typed view of a part of a JSON document; it owns nothing but its name. Every read checks the
// type and throws Error with the name, the value and what was expected.
class JsonNode {
 public:
  // `name` is what messages call it, for a whole file "<path>:"; `value` may be nullptr for
  // something that is not there.
  JsonNode(const nlohmann::json* value, std::string name);

  // The member `key` of an object; not present if the object has none.
  JsonNode operator[](std::string_view key) const;

  bool present() const;  // neither absent nor null
  bool is_string() const;
  bool is_object() const;

  const std::string& string() const;
  bool boolean(std::optional<bool> fallback = {}) const;       // the fallback if not present
  int32_t token_id() const;                                    // an integer in [0, 2^31)
  std::unordered_map<std::string, int32_t> token_ids() const;  // an object of token ids
  const nlohmann::json& object() const;
  const nlohmann::json& array() const;

  // Throws Error "<name> is <value>; <why>".
  [[noreturn]] void refuse(std::string_view why) const;
  const std::string& name() const { return name_; }

 private:
  const nlohmann::json* value_;
  std::string name_;
};

}  // namespace sparsellm
