#include "tests/models/storage/write_safetensors.h"

#include <nlohmann/json.hpp>

namespace sparsellm::testing {

std::string write_safetensors(std::span<const TestTensor> tensors,
                              const std::map<std::string, std::string>& metadata, size_t spaces) {
  nlohmann::json header = nlohmann::json::object();
  header["__metadata__"] = metadata;
  std::string data;
  for (const TestTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump() + std::string(spaces, ' ');
  return bytes_of(std::vector<uint64_t>{text.size()}) + text + data;
}

}  // namespace sparsellm::testing
