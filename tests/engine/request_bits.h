#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace sparsellm::testing {

// What a request got: its tokens, and the bits of all logits that they were chosen from.
struct RequestBits {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> bits;

  friend bool operator==(const RequestBits&, const RequestBits&) = default;
};

// Of requests that run together; expects that none fails, and that no page is lost.
std::vector<RequestBits> run_bits(Engine& engine, std::vector<Request> requests);

// Six requests with prompts of 9 to 29 ids below 61 and 30 sampled tokens each.
std::vector<Request> sampled_crowd();

}  // namespace sparsellm::testing
