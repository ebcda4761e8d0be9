#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/storage/safetensors.h"

namespace sparsellm {

std::string shape_string(const std::vector<int64_t>& shape);  // "[4096, 11008]"

struct NamedTensor {
  std::string_view name;  // as it is stored; a view of the requested one
  const StoredTensor* tensor = nullptr;
};

// A tensor as a checkpoint has it, under its name or one of stored_names(). Throws Error if it is
// missing or has another shape, both in the message.
NamedTensor required_tensor(const Checkpoint& checkpoint, std::string_view name,
                            const std::vector<int64_t>& shape);

}  // namespace sparsellm
