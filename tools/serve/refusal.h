#pragma once

#include <functional>
#include <optional>
#include <string>

namespace sparsellm {

// Why a request is not answered as it asks.
struct Refusal {
  int status = 500;  // of HTTP
  std::string why;   // one line
};

// Calls `body`. What it throws becomes what a client is told: UnknownModel 404, any other Error
// 400; want of memory, and an interruption of the server, 503; anything else 500.
std::optional<Refusal> refusal_of(const std::function<void()>& body) noexcept;

}  // namespace sparsellm
