#pragma once

#include <optional>
#include <string>

namespace sparsellm {

// Why a request is not answered as it asks.
struct Refusal {
  int status = 500;  // of HTTP
  std::string why;   // one line
};

// Of the exception that is being handled, what a client is told: UnknownModel 404, any other Error
// 400; want of memory, and an interruption of the server, 503; anything else 500.
Refusal current_refusal() noexcept;

// Calls `body`; nothing if it throws nothing.
template <class Body>
std::optional<Refusal> refusal_of(Body&& body) noexcept {
  try {
    body();
    return {};
  } catch (...) {
    return current_refusal();
  }
}

}  // namespace sparsellm
