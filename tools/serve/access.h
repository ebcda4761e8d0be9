#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/serve/http.h"

namespace sparsellm {

struct AccessOptions {
  std::vector<std::string> keys;           // of the API; empty: it needs none
  std::optional<std::string> cors_origin;  // "*", or an origin whose pages may read answers
  // Nobody but this machine's users reaches the server: then their browsers are kept from asking it
  // for somebody else's page, by names that resolve to this machine (DNS rebinding) and by the
  // Origin of a page.
  bool on_loopback = true;
};

// Who may ask for what, from the header alone.
class Access {
 public:
  explicit Access(AccessOptions options) : options_(std::move(options)) {}

  // What refuses a request, with its status. `needs_key`: the endpoint is one of the API.
  struct Refusal {
    int status;
    std::string_view why;
  };
  std::optional<Refusal> refuse(const HttpHead& head, bool needs_key) const;

  // Those that let the page of an origin read the answer; none without --cors-origin.
  std::vector<HttpHeader> cors_headers() const;
  bool has_cors() const { return options_.cors_origin.has_value(); }

 private:
  bool is_allowed_host(std::string_view host) const;
  bool is_allowed_origin(std::string_view origin, std::string_view host) const;
  bool has_key(std::string_view authorization) const;

  AccessOptions options_;
};

// Takes the same time wherever two texts of one length differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace sparsellm
