#pragma once

#include <cstddef>
#include <string_view>

namespace sparsellm {

// The first place at or after `from` where `text` has `part`, which is not empty; npos if there is
// none. Takes time proportional to what it passes over, whatever the two are.
size_t find_text(std::string_view text, std::string_view part, size_t from);

}  // namespace sparsellm
