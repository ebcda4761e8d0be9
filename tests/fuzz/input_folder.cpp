#include "tests/fuzz/input_folder.h"

namespace sparsellm::fuzz {

void InputFolder::write(std::string_view name, std::string_view bytes) const {
  folder_.write(name, bytes);
}

void InputFolder::write_unless_empty(std::string_view name, std::string_view bytes) const {
  if (bytes.empty()) {
    std::filesystem::remove(path() / name);
  } else {
    write(name, bytes);
  }
}

}  // namespace sparsellm::fuzz
