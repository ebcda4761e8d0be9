#pragma once

#include <string_view>

namespace sparsellm::fuzz {

// What every fuzz target defines: takes `input` for the files of its format, loads them and uses
// what was loaded. Throws Error if they are refused. Whatever else happens is a bug.
void fuzz_one(std::string_view input);

}  // namespace sparsellm::fuzz
