#pragma once

#include <source_location>
#include <string_view>

namespace sparsellm {

// A source file's path from the root of the source tree, "kernels/base/upload.cu": where the tree
// lies on the machine of the builder is no part of a message. The name alone of a file elsewhere.
constexpr std::string_view source_path(std::string_view file) {
  constexpr std::string_view kThis = "kernels/base/source_path.h";
  std::string_view root = std::source_location::current().file_name();
  root.remove_suffix(root.ends_with(kThis) ? kThis.size() : 0);
  return file.starts_with(root) ? file.substr(root.size()) : file.substr(file.rfind('/') + 1);
}

}  // namespace sparsellm
