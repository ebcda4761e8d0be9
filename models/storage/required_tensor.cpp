#include "models/storage/required_tensor.h"

#include <spdlog/fmt/ranges.h>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/storage/stored_names.h"

namespace sparsellm {

std::string shape_string(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

NamedTensor required_tensor(const Checkpoint& checkpoint, std::string_view name,
                            const std::vector<int64_t>& shape) {
  const auto describe = [&] {
    return fmt::format("{}: the tensor {}", checkpoint.directory().string(), quote(name));
  };
  for (std::string_view stored_name : stored_names(name)) {
    if (const StoredTensor* tensor = checkpoint.find(stored_name)) {
      require(tensor->shape == shape, "{} has shape {}, but the config asks for {}", describe(),
              shape_string(tensor->shape), shape_string(shape));
      return {.name = stored_name, .tensor = tensor};
    }
  }
  fail("{} is missing", describe());
}

}  // namespace sparsellm
