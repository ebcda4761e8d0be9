#include "tools/cli/session_message.h"

#include <limits>
#include <string_view>
#include <utility>

#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"

namespace sparsellm {

std::vector<std::byte> session_message_bytes(const SessionMessage& message) {
  JsonWriter json;
  json.object();
  if (message.engine == 0) {
    json.member("end", message.status);
  } else {
    json.member("engine", message.engine)
        .member("model", message.model)
        .member("options", message.options);
  }
  json.end();
  const std::string text = std::move(json).text();
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

SessionMessage parse_session_message(std::span<const std::byte> bytes, int models) {
  constexpr char kSource[] = "what rank 0 says";
  constexpr int kMaxStatus = 255;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const JsonDocument document = parse_json(text, kSource, 1);
  const JsonValue json(document, kSource);
  if (const JsonValue end = json["end"]; end.present()) {
    json.allow_only({"end"});
    return {.engine = 0,
            .model = 0,
            .options = {},
            .status = static_cast<int>(end.integer(0, kMaxStatus))};
  }
  json.allow_only({"engine", "model", "options"});
  return {.engine = static_cast<int>(json["engine"].integer(1, std::numeric_limits<int>::max())),
          .model = static_cast<int>(json["model"].integer(0, models - 1)),
          .options = json["options"].string(),
          .status = 0};
}

}  // namespace sparsellm
