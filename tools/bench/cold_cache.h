#pragma once

#include <algorithm>
#include <cstdint>

namespace sparsellm {

// Several times the last-level cache of today's GPUs (50 MB on Hopper): who has read this much of
// something else finds nothing of what was read before.
inline constexpr int64_t kRotationBytes = int64_t{320} << 20;

// More copies would take longer to make than they are worth: those of 50 kB exceed that cache too.
inline constexpr int64_t kMaxCopies = 1024;

// Copies of `bytes` > 0 each that, used in turn, are out of the cache whenever they come up again.
inline int64_t cold_copies(int64_t bytes, int64_t rotation_bytes = kRotationBytes) {
  return std::clamp((rotation_bytes + bytes - 1) / bytes, int64_t{1}, kMaxCopies);
}

}  // namespace sparsellm
