// The entry point for libFuzzer.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/check_message.h"
#include "tests/fuzz/fuzz_one.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    sparsellm::fuzz::fuzz_one({reinterpret_cast<const char*>(data), size});
  } catch (const sparsellm::Error& error) {
    sparsellm::fuzz::check_message(error);
  }
  return 0;
}
