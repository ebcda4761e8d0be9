#include "kernels/base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__SSE4_2__) && defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace sparsellm {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they are stored");

// Bit 31 is the coefficient of 1, as in all of this file.
constexpr uint32_t kPolynomial = 0x82f63b78u;

using ByteTable = std::array<uint32_t, 256>;

// tables[i][b] is what a byte b becomes when i more bytes, all zeros, have followed it.
constexpr std::array<ByteTable, 8> make_byte_tables() {
  std::array<ByteTable, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    }
    tables[0][byte] = crc;
  }
  for (size_t i = 1; i < tables.size(); ++i) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[i - 1][byte];
      tables[i][byte] = (crc >> 8) ^ tables[0][crc & 0xffu];
    }
  }
  return tables;
}

constexpr std::array<ByteTable, 8> kByteTables = make_byte_tables();

uint64_t load_word(const std::byte* p) {
  uint64_t word = 0;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

#if defined(__SSE4_2__) && defined(__x86_64__)

// A linear map of checksums: the image of each bit.
using BitMap = std::array<uint32_t, 32>;

constexpr uint32_t product(const BitMap& map, uint32_t crc) {
  uint32_t result = 0;
  for (size_t bit = 0; bit < 32; ++bit) {
    result ^= (crc >> bit & 1u) != 0 ? map[bit] : 0u;
  }
  return result;
}

// The instruction takes three cycles, but one can start every cycle: three streams of so many bytes
// are read side by side.
constexpr size_t kStreamBytes = 1024;

// What a checksum becomes when kStreamBytes zeros follow, byte by byte of the checksum.
constexpr std::array<ByteTable, 4> make_stream_tables() {
  BitMap map{};
  for (uint32_t bit = 0; bit < 32; ++bit) {  // one zero byte
    const uint32_t crc = 1u << bit;
    map[bit] = (crc >> 8) ^ kByteTables[0][crc & 0xffu];
  }
  for (size_t bytes = 1; bytes < kStreamBytes; bytes *= 2) {
    BitMap twice{};
    for (size_t bit = 0; bit < 32; ++bit) {
      twice[bit] = product(map, map[bit]);
    }
    map = twice;
  }
  std::array<ByteTable, 4> tables{};
  for (size_t i = 0; i < tables.size(); ++i) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      tables[i][byte] = product(map, byte << (8 * i));
    }
  }
  return tables;
}

constexpr std::array<ByteTable, 4> kStreamTables = make_stream_tables();

uint64_t append_stream(uint64_t first, uint64_t second) {
  const auto crc = static_cast<uint32_t>(first);
  return kStreamTables[0][crc & 0xffu] ^ kStreamTables[1][crc >> 8 & 0xffu] ^
         kStreamTables[2][crc >> 16 & 0xffu] ^ kStreamTables[3][crc >> 24] ^ second;
}

uint32_t run_instruction(const std::byte* p, const std::byte* end, uint32_t so_far) {
  uint64_t crc = so_far;
  for (; end - p >= static_cast<ptrdiff_t>(3 * kStreamBytes); p += 3 * kStreamBytes) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kStreamBytes; i += sizeof(uint64_t)) {
      crc = _mm_crc32_u64(crc, load_word(p + i));
      second = _mm_crc32_u64(second, load_word(p + kStreamBytes + i));
      third = _mm_crc32_u64(third, load_word(p + 2 * kStreamBytes + i));
    }
    crc = append_stream(append_stream(crc, second), third);
  }
  for (; end - p >= 8; p += 8) {
    crc = _mm_crc32_u64(crc, load_word(p));
  }
  auto rest = static_cast<uint32_t>(crc);
  for (; p != end; ++p) {
    rest = _mm_crc32_u8(rest, std::to_integer<uint8_t>(*p));
  }
  return rest;
}

#endif

}  // namespace

uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t so_far) {
  const std::byte* p = bytes.data();
  const std::byte* const end = p + bytes.size();
  uint32_t crc = ~so_far;
  for (; end - p >= 8; p += 8) {
    const uint64_t word = load_word(p) ^ crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) {
      crc ^= kByteTables[7 - i][word >> (8 * i) & 0xffu];
    }
  }
  for (; p != end; ++p) {
    crc = (crc >> 8) ^ kByteTables[0][(crc ^ std::to_integer<uint32_t>(*p)) & 0xffu];
  }
  return ~crc;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t so_far) {
#if defined(__SSE4_2__) && defined(__x86_64__)
  return ~run_instruction(bytes.data(), bytes.data() + bytes.size(), ~so_far);
#else
  return crc32c_by_table(bytes, so_far);
#endif
}

}  // namespace sparsellm
