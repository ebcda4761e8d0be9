#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace sparsellm::testing {

// How many of the whole pages inside these bytes are in the memory of this process; nothing where
// the system does not say. What is in the page cache alone does not count.
std::optional<int64_t> resident_pages(std::span<const std::byte> bytes);

}  // namespace sparsellm::testing
