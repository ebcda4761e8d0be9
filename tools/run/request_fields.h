#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/json_reader.h"
#include "tools/run/prompt.h"

namespace sparsellm {

// A field of a JSON object that asks for continuations, read as the parts of the document come
// (JsonEvents). Both functions throw Error for what the field may not hold.
struct RequestField {
  // An element of an array, or a member of an object.
  struct Item {
    const JsonValue& field;
    const std::string& key;
    const nlohmann::json& value;
  };

  std::string_view name;
  // Of an array or an object, `value` is its beginning: it is empty.
  void (*read)(const JsonValue& value, Prompt& prompt);
  // Of an array or an object, one of its items.
  void (*add)(const Item& item, Prompt& prompt) = nullptr;
};

// Those that a line of a batch and the body of a request to a server have in common.
std::span<const RequestField> request_fields();

// nullptr if none of them has this name.
const RequestField* find_field(std::span<const RequestField> fields, std::string_view name);

inline constexpr int32_t kMaxTokenId = std::numeric_limits<int32_t>::max();
int32_t read_token_id(const JsonValue& field, const nlohmann::json& element);

}  // namespace sparsellm
