#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace sparsellm {

// Choices that depend on the number of tokens are measured and kept for buckets of it: 1, 2, 4, ...
// The bucket of `tokens` is the next power of two.
constexpr int64_t token_bucket(int64_t tokens) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(tokens, 1))));
}

// All of them up to that of `most`.
inline std::vector<int64_t> token_buckets_up_to(int64_t most) {
  std::vector<int64_t> buckets{1};
  while (buckets.back() < most) {
    buckets.push_back(2 * buckets.back());
  }
  return buckets;
}

}  // namespace sparsellm
