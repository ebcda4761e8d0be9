#pragma once

#include <string>
#include <vector>

namespace sparsellm {

// The keys in a file, one a line; blank lines and those that begin with # are passed over. Throws
// Error for a file without a key, and for a key with other characters than visible ASCII.
std::vector<std::string> read_api_keys(const std::string& path);

}  // namespace sparsellm
