#include "tests/testing/temp_dir.h"

#include <stdlib.h>

#include <fstream>
#include <string>
#include <system_error>

#include "kernels/base/error.h"

namespace sparsellm::testing {

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "sparsellm-XXXXXX").string();
  require(::mkdtemp(pattern.data()) != nullptr, "cannot make the folder {}", pattern);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TempDir::write(const std::filesystem::path& name,
                                     std::string_view bytes) const {
  std::filesystem::path file = path_ / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  require(out.good(), "cannot write {}", file.string());
  return file;
}

}  // namespace sparsellm::testing
