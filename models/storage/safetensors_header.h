#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "models/storage/safetensors.h"

namespace sparsellm {

struct SafetensorsHeader {
  StoredTensors tensors;
  std::map<std::string, std::string> metadata;
};

// Reads the header of a safetensors file, which may be hostile, in little more memory than the
// result takes. The tensors' bytes are views of `data`, what follows the header; each has the
// size that its shape and dtype give. Throws Error that begins with `source`.
SafetensorsHeader read_safetensors_header(std::string_view text, const std::string& source,
                                          std::span<const std::byte> data);

}  // namespace sparsellm
