#include "tools/serve/access.h"

#include <algorithm>
#include <array>

namespace sparsellm {
namespace {

constexpr std::array<std::string_view, 3> kLoopbackNames{"localhost", "127.0.0.1", "[::1]"};

// Without a port.
std::string_view host_name_of(std::string_view host) {
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  return has_port ? host.substr(0, colon) : host;
}

}  // namespace

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) {
    return false;
  }
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

std::optional<Access::Refusal> Access::refuse(const HttpHead& head, bool needs_key) const {
  const std::string_view host = head.header("Host");
  if (options_.on_loopback && !is_allowed_host(host)) {
    return Refusal{403, "Host is not a name of this machine's loopback"};
  }
  const std::string_view origin = head.header("Origin");
  if (options_.on_loopback && !origin.empty() && !is_allowed_origin(origin, host)) {
    return Refusal{403, "pages of this origin may not use the server; --cors-origin allows one"};
  }
  if (needs_key && !options_.keys.empty() && !has_key(head.header("Authorization"))) {
    return Refusal{401, "the API key is missing or wrong"};
  }
  return {};
}

std::vector<HttpHeader> Access::cors_headers() const {
  if (!options_.cors_origin) {
    return {};
  }
  return {{.name = "Access-Control-Allow-Origin", .value = *options_.cors_origin},
          {.name = "Vary", .value = "Origin"}};
}

// HTTP/1.0 has none, and browsers do not speak it.
bool Access::is_allowed_host(std::string_view host) const {
  const std::string_view name = host_name_of(host);
  return host.empty() || std::any_of(kLoopbackNames.begin(), kLoopbackNames.end(),
                                     [name](auto own) { return equal_without_case(own, name); });
}

bool Access::is_allowed_origin(std::string_view origin, std::string_view host) const {
  if (options_.cors_origin && (*options_.cors_origin == "*" || *options_.cors_origin == origin)) {
    return true;
  }
  constexpr std::string_view kScheme = "http://";
  return origin.starts_with(kScheme) && equal_without_case(origin.substr(kScheme.size()), host);
}

bool Access::has_key(std::string_view authorization) const {
  constexpr std::string_view kBearer = "Bearer ";
  if (authorization.size() < kBearer.size() ||
      !equal_without_case(authorization.substr(0, kBearer.size()), kBearer)) {
    return false;
  }
  const std::string_view key = authorization.substr(kBearer.size());
  bool found = false;
  for (const std::string& own : options_.keys) {
    found = equal_in_constant_time(own, key) || found;
  }
  return found;
}

}  // namespace sparsellm
