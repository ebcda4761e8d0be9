#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/base/open_directory.h"

namespace sparsellm {

// The shards that a model.safetensors.index.json names, files of the same directory, and the
// tensors promised for each. Throws Error that begins with the path.
std::map<std::string, std::vector<std::string>> read_safetensors_index(const InputFile& file);

}  // namespace sparsellm
