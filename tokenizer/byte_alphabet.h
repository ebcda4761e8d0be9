#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sparsellm {

// The printable characters that stand for the 256 bytes in the files of byte-level BPE (GPT-2):
// bytes that are printable in Latin-1 stand for themselves, the others are numbered from U+0100.
std::string byte_symbol(uint8_t byte);

// The bytes that a token of such a file stands for; nullopt if it has a character that stands for
// no byte. `token` must be well-formed UTF-8.
std::optional<std::string> bytes_of_symbols(std::string_view token);

}  // namespace sparsellm
