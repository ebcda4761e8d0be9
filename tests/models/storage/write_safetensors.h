#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sparsellm::testing {

// A tensor of a safetensors file that a test makes by hand.
struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// A safetensors file with the tensors in this order. `spaces` are added to the header, which moves
// the data.
std::string write_safetensors(std::span<const TestTensor> tensors,
                              const std::map<std::string, std::string>& metadata = {},
                              size_t spaces = 0);

}  // namespace sparsellm::testing
