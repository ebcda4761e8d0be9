#include "tools/bench/server_url.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "kernels/base/json_reader.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

constexpr std::string_view kHttpPort = "80";

bool is_port(std::string_view text) {
  uint16_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end && number > 0;
}

// "HOST:PORT", "[::1]:PORT", "HOST".
bool split_authority(std::string_view authority, ServerUrl& url) {
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t bracket = authority.find(']');
    if (bracket == std::string_view::npos) {
      return false;
    }
    url.host = authority.substr(1, bracket - 1);
    port = authority.substr(bracket + 1);
  } else {
    const size_t colon = authority.find(':');
    url.host = authority.substr(0, colon);
    port = colon == std::string_view::npos ? "" : authority.substr(colon);
  }
  if (!port.empty() && !port.starts_with(':')) {
    return false;
  }
  url.port = port.empty() ? kHttpPort : port.substr(1);
  return !url.host.empty() && is_port(url.port);
}

void drop_end(std::string& text, std::string_view end) {
  if (text.ends_with(end)) {
    text.erase(text.size() - end.size());
  }
}

}  // namespace

std::string ServerUrl::host_header() const {
  if (!unix_path.empty()) {
    return "localhost";
  }
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == kHttpPort ? name : name + ":" + port;
}

ServerUrl parse_server_url(const std::string& flag, const std::string& text) {
  constexpr std::string_view kHttp = "http://";
  constexpr std::string_view kUnix = "unix:";
  const auto refuse = [&](std::string_view why) {
    throw UsageError(fmt::format("{} {}; {}", flag, quote(text), why));
  };
  ServerUrl url;
  url.shown = text;
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    refuse("there is no TLS; expected http://HOST:PORT");
  }
  // A request has them in lines of their own.
  const bool visible =
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (rest.starts_with(kUnix)) {
    url.unix_path = rest.substr(kUnix.size());
    if (url.unix_path.empty()) {
      refuse("expected the path of a socket file after unix:");
    }
    return url;
  }
  if (!rest.starts_with(kHttp) || !visible) {
    refuse("expected http://HOST:PORT or unix:PATH");
  }
  rest.remove_prefix(kHttp.size());
  const size_t path = rest.find('/');
  const std::string_view authority = rest.substr(0, path);
  if (authority.find('@') != std::string_view::npos) {
    refuse("a name and a password are not sent; a key comes from --api-key-file");
  }
  if (!split_authority(authority, url) || rest.find_first_of("?#") != std::string_view::npos) {
    refuse("expected http://HOST:PORT or unix:PATH");
  }
  url.prefix = path == std::string_view::npos ? "" : rest.substr(path);
  drop_end(url.prefix, "/");
  drop_end(url.prefix, "/v1");
  return url;
}

}  // namespace sparsellm
