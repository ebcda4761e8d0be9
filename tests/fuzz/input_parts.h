#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace sparsellm::fuzz {

// An input that stands for several texts and files: `count` parts with a byte 0xFF, which UTF-8
// never has, between them. The last part is all that is left and may have such bytes itself. Parts
// that are not there are empty.
std::vector<std::string_view> split_parts(std::string_view input, size_t count);

}  // namespace sparsellm::fuzz
