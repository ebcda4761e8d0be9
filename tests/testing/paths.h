#pragma once

#include <filesystem>

namespace sparsellm::testing {

std::filesystem::path source_dir();               // the root of the source tree
std::filesystem::path program(const char* name);  // a built tool, e.g. "sparsellm-run"

// tests/data/...
std::filesystem::path data(const std::filesystem::path& relative);

}  // namespace sparsellm::testing
