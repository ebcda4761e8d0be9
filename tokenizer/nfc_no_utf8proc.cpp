#include "kernels/base/error.h"
#include "tokenizer/nfc.h"

// Stands in for nfc.cpp in a build without utf8proc.
namespace sparsellm {

std::string_view to_nfc(std::string_view, std::string&, const std::function<void()>&) {
  fail("this tokenizer normalizes text (NFC), but this build has no utf8proc");
}

}  // namespace sparsellm
