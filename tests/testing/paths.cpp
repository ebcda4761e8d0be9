#include "tests/testing/paths.h"

namespace sparsellm::testing {

std::filesystem::path source_dir() { return SPARSELLM_SOURCE_DIR; }

std::filesystem::path program(const char* name) {
  return std::filesystem::path(SPARSELLM_BINARY_DIR) / name;
}

std::filesystem::path data(const std::filesystem::path& relative) {
  return source_dir() / "tests" / "data" / relative;
}

}  // namespace sparsellm::testing
