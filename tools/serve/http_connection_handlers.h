#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string_view>

#include "tools/serve/http_server.h"

namespace sparsellm {

// The program's handlers, of which no exception gets out.
class SafeHandlers {
 public:
  explicit SafeHandlers(const HttpHandlers& handlers) : handlers_(handlers) {}

  std::optional<HttpResponse> check(const HttpHead& head) const;     // 500 if it throws
  bool handle(const std::shared_ptr<HttpExchange>& exchange) const;  // false: it has thrown
  HttpResponse error(int status, std::string_view why) const;        // with a Retry-After, of 503
  HttpResponse failure() const;                                      // 500

  void report(const std::exception_ptr& failure) const noexcept;  // HttpHandlers::failed

 private:
  const HttpHandlers& handlers_;
};

}  // namespace sparsellm
