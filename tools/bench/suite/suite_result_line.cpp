#include "tools/bench/suite/suite_result_line.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"

namespace sparsellm {
namespace {

constexpr int kMaxResultDepth = 8;

// The text of a JSON value as it is in a line.
std::string json_text_of(const JsonValue& value) { return value.raw().dump(); }

std::string json_object_text(const JsonValue& value) {
  if (!value.is_object()) {
    value.refuse("expected an object");
  }
  return json_text_of(value);
}

std::string json_groups_text(const JsonValue& value) {
  for (int64_t i = 0; i < value.size(); ++i) {
    json_object_text(value.element(i));
  }
  return json_text_of(value);
}

std::string nonempty_string(const JsonValue& value) {
  if (value.string().empty()) {
    value.refuse("expected a text that is not empty");
  }
  return value.string();
}

std::string quoted_json(const std::string& text) {
  JsonWriter json(-1);
  json.value(text);
  return std::move(json).text();
}

void add_member(std::string& line, std::string_view key, const std::string& json) {
  if (!json.empty()) {
    line += fmt::format("{}\"{}\":{}", line.empty() ? "{" : ",", key, json);
  }
}

}  // namespace

std::string to_json_line(const SuiteResult& result) {
  std::string line;
  add_member(line, "suite", quoted_json(result.key.suite));
  add_member(line, "cell", quoted_json(result.key.cell));
  add_member(line, "commit", quoted_json(result.key.commit));
  add_member(line, "gpu", quoted_json(result.key.gpu));
  add_member(line, "gpu_memory",
             result.key.gpu_memory.empty() ? "" : quoted_json(result.key.gpu_memory));
  add_member(line, "error", result.error.empty() ? "" : quoted_json(result.error));
  add_member(line, "row", result.row);
  add_member(line, "groups", result.groups);
  add_member(line, "environment", result.environment);
  line += "}";
  // Members that are given as JSON may be anything, and a line end would tear the line.
  require(line.find('\n') == std::string::npos, "the result of {} is more than one line",
          quote(result.key.cell));
  parse_suite_result(line, "the result of " + quote(result.key.cell));
  return line;
}

SuiteResult parse_suite_result(std::string_view line, const std::string& source) {
  const JsonDocument document = parse_json(line, source, kMaxResultDepth);
  const JsonValue json(document, source);
  json.allow_only(
      {"suite", "cell", "commit", "gpu", "gpu_memory", "error", "row", "groups", "environment"});
  SuiteResult result;
  result.key.suite = nonempty_string(json["suite"]);
  result.key.cell = nonempty_string(json["cell"]);
  result.key.commit = nonempty_string(json["commit"]);
  result.key.gpu = nonempty_string(json["gpu"]);
  if (json["gpu_memory"].present()) {
    result.key.gpu_memory = nonempty_string(json["gpu_memory"]);
  }
  result.environment = json_object_text(json["environment"]);
  if (json["error"].present()) {
    result.error = nonempty_string(json["error"]);
    for (const char* key : {"row", "groups"}) {
      if (json[key].present()) {
        json[key].refuse("an error has none");
      }
    }
    return result;
  }
  result.row = json_object_text(json["row"]);
  if (json["groups"].present()) {
    result.groups = json_groups_text(json["groups"]);
  }
  return result;
}

}  // namespace sparsellm
