#include "kernels/base/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string_view>
#include <vector>

#include "tests/testing/random.h"

namespace sparsellm {
namespace {

struct Known {
  std::vector<uint8_t> bytes;
  uint32_t crc;
};

std::vector<uint8_t> text(std::string_view characters) {
  return {characters.begin(), characters.end()};
}

std::vector<uint8_t> counting(bool up) {
  std::vector<uint8_t> bytes(32);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  return up ? bytes : std::vector<uint8_t>(bytes.rbegin(), bytes.rend());
}

// RFC 3720, appendix B.4, and the check value of the catalogue of CRC algorithms.
TEST(Crc32c, KnownValues) {
  const Known cases[] = {{{}, 0u},
                         {text("123456789"), 0xe3069283u},
                         {std::vector<uint8_t>(32, 0x00), 0x8a9136aau},
                         {std::vector<uint8_t>(32, 0xff), 0x62a8ab43u},
                         {counting(true), 0x46dd794eu},
                         {counting(false), 0x113fdb5cu}};
  for (const Known& known : cases) {
    EXPECT_EQ(crc32c(std::as_bytes(std::span(known.bytes))), known.crc);
    EXPECT_EQ(crc32c_by_table(std::as_bytes(std::span(known.bytes))), known.crc);
  }
}

TEST(Crc32c, EqualsTheTableForAllLengthsAndAlignments) {
  testing::Random random(7);
  std::vector<uint8_t> storage(20'000);
  for (uint8_t& byte : storage) {
    byte = static_cast<uint8_t>(random.below(256));
  }
  const std::span<const std::byte> bytes = std::as_bytes(std::span(storage));
  for (size_t length = 0; length < 100; ++length) {
    EXPECT_EQ(crc32c(bytes.subspan(length % 9, length)),
              crc32c_by_table(bytes.subspan(length % 9, length)));
  }
  for (size_t length : {3071, 3072, 3073, 3080, 6143, 6144, 9999, 19990}) {
    for (size_t begin = 0; begin < 9; ++begin) {
      EXPECT_EQ(crc32c(bytes.subspan(begin, length)), crc32c_by_table(bytes.subspan(begin, length)))
          << length << " bytes from " << begin;
    }
  }
}

TEST(Crc32c, GoesOnWhereItStopped) {
  testing::Random random(8);
  std::vector<uint8_t> storage(10'000);
  for (uint8_t& byte : storage) {
    byte = static_cast<uint8_t>(random.below(256));
  }
  const std::span<const std::byte> bytes = std::as_bytes(std::span(storage));
  const uint32_t whole = crc32c(bytes);
  for (size_t cut : {0, 1, 8, 100, 3072, 5000, 9999, 10'000}) {
    EXPECT_EQ(crc32c(bytes.subspan(cut), crc32c(bytes.first(cut))), whole);
    EXPECT_EQ(crc32c_by_table(bytes.subspan(cut), crc32c_by_table(bytes.first(cut))), whole);
  }
}

}  // namespace
}  // namespace sparsellm
