#include "tools/serve/json_text.h"

#include <algorithm>
#include <utility>

#include "kernels/base/json_writer.h"

namespace sparsellm {
namespace {

bool is_plain(char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; }

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

void append_json(std::string_view text, std::string& out) {
  if (std::all_of(text.begin(), text.end(), is_plain)) {  // most tokens
    out.append("\"").append(text).append("\"");
    return;
  }
  JsonWriter json;
  json.value(text);
  out += std::move(json).text();
}

std::string error_body(int status, std::string_view message) {
  JsonWriter json;
  json.object().key("error").object();
  json.member("message", message).member("type", error_type(status)).key("param").null();
  json.member("code", status).end().end();
  return std::move(json).text();
}

}  // namespace sparsellm
