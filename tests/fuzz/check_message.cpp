#include "tests/fuzz/check_message.h"

#include <algorithm>
#include <string_view>

#include "tests/fuzz/expect.h"

namespace sparsellm::fuzz {

void check_message(const Error& error) {
  constexpr size_t kMaxBytes = 2000;
  const std::string_view text = error.what();
  expect(!text.empty() && text.size() <= kMaxBytes, "a message of at most 2,000 bytes");
  expect(
      std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }),
      "a message without control characters");
}

}  // namespace sparsellm::fuzz
