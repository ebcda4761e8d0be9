#include "tools/serve/http_connection_handlers.h"

#include <algorithm>

namespace sparsellm {

std::optional<HttpResponse> SafeHandlers::check(const HttpHead& head) const {
  try {
    return handlers_.check(head);
  } catch (...) {
    report(std::current_exception());
    return failure();
  }
}

bool SafeHandlers::handle(const std::shared_ptr<HttpExchange>& exchange) const {
  try {
    handlers_.handle(exchange);
    return true;
  } catch (...) {
    report(std::current_exception());
    return false;
  }
}

HttpResponse SafeHandlers::error(int status, std::string_view why) const {
  try {
    HttpResponse response = handlers_.error(status, why);
    const bool says_when = std::any_of(
        response.headers.begin(), response.headers.end(),
        [](const HttpHeader& header) { return equal_without_case(header.name, "Retry-After"); });
    if (status == 503 && !says_when) {
      response.headers.push_back({.name = "Retry-After", .value = "1"});
    }
    return response;
  } catch (...) {
    report(std::current_exception());
    return {.status = status, .content_type = "", .body = "", .headers = {}};
  }
}

HttpResponse SafeHandlers::failure() const {
  return error(500, "the request could not be answered");
}

void SafeHandlers::report(const std::exception_ptr& failure) const noexcept {
  if (!handlers_.failed) {
    return;
  }
  try {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      handlers_.failed(error.what());
    } catch (...) {
      handlers_.failed("an exception of no known type");
    }
  } catch (...) {  // nobody is left to be told
  }
}

}  // namespace sparsellm
