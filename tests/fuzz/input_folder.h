#pragma once

#include <filesystem>
#include <string_view>

#include "tests/testing/temp_dir.h"

namespace sparsellm::fuzz {

// The folder that the loaders of a target read, used for one input after the other.
class InputFolder {
 public:
  const std::filesystem::path& path() const { return folder_.path(); }

  void write(std::string_view name, std::string_view bytes) const;
  // For files that a model may lack: without bytes there is none.
  void write_unless_empty(std::string_view name, std::string_view bytes) const;

 private:
  testing::TempDir folder_;
};

}  // namespace sparsellm::fuzz
