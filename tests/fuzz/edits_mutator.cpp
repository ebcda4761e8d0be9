// For libFuzzer: targets whose inputs are edits change whole lines as often as bytes.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "tests/fuzz/random_edits.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  if (seed % 3 == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  const std::string text = sparsellm::fuzz::RandomEdits(seed).changed(
      {reinterpret_cast<const char*>(data), size}, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
