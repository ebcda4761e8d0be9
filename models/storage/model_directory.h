#pragma once

#include <filesystem>

#include "kernels/base/open_directory.h"

namespace sparsellm {

// What people give in place of a model directory gets an Error of one line that says what to do: a
// name of the Hugging Face Hub, a file of a checkpoint, GGUF, a directory of the Hub's cache, one
// without config.json.
OpenDirectory open_model_directory(const std::filesystem::path& path);

}  // namespace sparsellm
