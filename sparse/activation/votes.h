#pragma once

#include <cstdint>

namespace sparsellm {

// What a vote of the sign predictor counts (sparse/activation/sign_predictor.h).
enum class Votes : uint8_t {
  sign,      // each vote counts 1: the paper
  weighted,  // it counts q_j, |x_j| in 4 bits; an x_j with q_j = 0 does not vote
};

}  // namespace sparsellm
