#pragma once

#include <cstdint>
#include <functional>

namespace sparsellm {

// Bytes of the checkpoint that are loaded, and in all.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

}  // namespace sparsellm
