#pragma once

#include <string_view>

namespace sparsellm {

// Patterns in which * stands for any characters, or none, and ? for one. Time grows with the
// product of the two lengths at most.
bool glob_matches(std::string_view pattern, std::string_view text);

// Whether `pattern` certainly matches every text that `special`, a pattern too, matches.
bool glob_covers(std::string_view pattern, std::string_view special);

}  // namespace sparsellm
