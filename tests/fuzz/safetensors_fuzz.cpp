// The input is a safetensors file.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/safetensors.h"
#include "tests/fuzz/check_message.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"

namespace sparsellm::fuzz {
namespace {

std::string_view data_after_header(std::string_view file) {
  uint64_t header_bytes = 0;
  expect(file.size() >= sizeof(header_bytes), "the length of the header");
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  expect(header_bytes <= file.size() - sizeof(header_bytes), "a header inside the file");
  return file.substr(sizeof(header_bytes) + header_bytes);
}

void check_size(const std::string& name, const StoredTensor& tensor) {
  int64_t elements = 1;
  for (int64_t size : tensor.shape) {
    expect(!__builtin_mul_overflow(elements, size, &elements), "a shape that fits 64 bits");
  }
  try {
    const DType dtype = tensor.float_dtype(quote(name));
    expect(std::ssize(tensor.bytes) == elements * static_cast<int64_t>(size_of(dtype)),
           "as many bytes as the shape takes");
  } catch (const Error& error) {  // of another type
    check_message(error);
  }
}

}  // namespace

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  folder.write("model.safetensors", input);
  const Checkpoint checkpoint(folder.path());

  std::vector<const StoredTensor*> tensors;
  for (const std::string& name : checkpoint.names()) {
    tensors.push_back(checkpoint.find(name));
    expect(tensors.back() != nullptr, "a tensor of every name");
    check_size(name, *tensors.back());
  }
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return a->bytes.data() != b->bytes.data() ? a->bytes.data() < b->bytes.data()
                                              : a->bytes.size() < b->bytes.size();
  });

  // One after the other they are the data, also when their pages have to be read again.
  std::string_view rest = data_after_header(input);
  expect(checkpoint.bytes() == std::ssize(rest), "the bytes of all tensors");
  for (const StoredTensor* tensor : tensors) {
    release_pages(tensor->bytes);
    expect(tensor->bytes.empty() ||
               std::memcmp(tensor->bytes.data(), rest.data(), tensor->bytes.size()) == 0,
           "the bytes of the file");
    rest.remove_prefix(tensor->bytes.size());
  }
}

}  // namespace sparsellm::fuzz
