#pragma once

#include <span>
#include <string>
#include <vector>

namespace sparsellm {

// What rank 0 tells the processes of other ranks (tools/cli/rank_session.h), as JSON:
//   {"engine": 1, "model": 0, "options": "..."}  there is an engine to share
//   {"end": 0}                                   there is no more to do; the exit code
struct SessionMessage {
  int engine = 0;       // its number, from 1; 0: the end
  int model = 0;        // of those that the processes know
  std::string options;  // engine/rank_options.h
  int status = 0;

  friend bool operator==(const SessionMessage&, const SessionMessage&) = default;
};

std::vector<std::byte> session_message_bytes(const SessionMessage& message);

// Throws Error for bytes that are no message, and for a model that is not one of `models`.
SessionMessage parse_session_message(std::span<const std::byte> bytes, int models);

}  // namespace sparsellm
