#include "tokenizer/byte_alphabet.h"

#include <array>

#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr std::array<char32_t, 256> make_symbols() {
  std::array<char32_t, 256> symbols{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    symbols[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return symbols;
}

constexpr std::array<char32_t, 256> kSymbols = make_symbols();
constexpr char32_t kSymbolEnd = 0x100 + 68;  // 68 bytes do not stand for themselves

constexpr std::array<int, kSymbolEnd> make_bytes() {
  std::array<int, kSymbolEnd> bytes{};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    bytes[kSymbols[byte]] = byte;
  }
  return bytes;
}

constexpr std::array<int, kSymbolEnd> kBytes = make_bytes();

}  // namespace

std::string byte_symbol(uint8_t byte) {
  std::string symbol;
  append_utf8(kSymbols[byte], symbol);
  return symbol;
}

std::optional<std::string> bytes_of_symbols(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const char32_t symbol = take_character(token);
    if (symbol >= kSymbolEnd || kBytes[symbol] < 0) {
      return {};
    }
    bytes += static_cast<char>(kBytes[symbol]);
  }
  return bytes;
}

}  // namespace sparsellm
