// The target record_pieces without a fuzzer: its seeds, and what random changes make of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/fuzz/check_message.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/record_input.h"
#include "tests/fuzz/record_seeds.h"
#include "tests/sparse/tca_bme/check_in_pieces.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm::fuzz {
namespace {

using testing::Random;
using testing::throws_error;

TEST(FuzzRecordPieces, TakesItsSeeds) {
  for (const Seed& seed : record_seeds()) {
    SCOPED_TRACE(seed.name);
    EXPECT_LE(seed.input.size(), 16384u);  // what tools/fuzz.sh lets inputs be
    EXPECT_NO_THROW(fuzz_one(seed.input));
    EXPECT_EQ(record_input(read_record_input(seed.input)), seed.input);
  }
}

// Whatever throws something else than an Error fails.
bool is_refused(std::string_view input) {
  try {
    fuzz_one(input);
  } catch (const Error& error) {
    check_message(error);
    return true;
  }
  return false;
}

TEST(FuzzRecordPieces, SurvivesRandomChanges) {
  Random random(101);
  int64_t refused = 0;
  int64_t changed = 0;
  for (const Seed& seed : record_seeds()) {
    SCOPED_TRACE(seed.name);
    const auto size = std::ssize(seed.input);
    for (int i = 0; i < 60; ++i) {
      std::string input = seed.input;
      for (int64_t edits = 1 + random.below(3); edits > 0; --edits) {
        // Half of them in the head, the layout and the first starts.
        const int64_t at = random.below(random.below(2) == 0 ? std::min<int64_t>(size, 64) : size);
        switch (random.below(4)) {
          case 0: {
            char& byte = input[static_cast<size_t>(at)];
            byte = static_cast<char>(byte ^ (1 << random.below(8)));
            break;
          }
          case 1:
            input[static_cast<size_t>(at)] = static_cast<char>(random.below(256));
            break;
          case 2:
            input[static_cast<size_t>(at)] = random.below(2) == 0 ? '\0' : '\xff';
            break;
          default:
            input.resize(static_cast<size_t>(random.below(8) == 0 ? at : size));
            input.resize(static_cast<size_t>(size) + static_cast<size_t>(random.below(2)) * 16);
            break;
        }
      }
      refused += is_refused(input) ? 1 : 0;
      ++changed;
    }
  }
  EXPECT_GT(refused, changed / 2);
  EXPECT_LT(refused, changed);
}

// With no bytes there is no piece to check: nothing looked at such a weight on its way to a GPU.
TEST(FuzzRecordPieces, RefusesRecordsWithoutBytes) {
  for (const Seed& seed : record_seeds()) {
    SCOPED_TRACE(seed.name);
    RecordInput read = read_record_input(seed.input);
    EncodedWeight& e = read.weight;
    if (e.rows * e.columns == 0) {
      continue;
    }
    const int64_t count = e.part(tca_bme::kStarts).count();
    EncodedPart& starts = e.parts[1];
    ASSERT_EQ(starts.name, tca_bme::kStarts);
    auto* const values = static_cast<uint32_t*>(starts.memory.data());
    const std::span<const std::byte> records = e.parts[2].bytes;
    const auto expect_refused = [&](std::string_view why) {
      EXPECT_TRUE(throws_error([&] { tca_bme_format().validate(e); }, why));
      for (const int64_t most_bytes : {0, 4000, 2 << 20}) {
        EXPECT_TRUE(throws_error([&] { testing::check_in_pieces(e, most_bytes, 1); }, why));
      }
      EXPECT_TRUE(is_refused(record_input(read)));
    };
    // The last record: as many bytes as are left of a header that is one unit too short, and none.
    const uint32_t end = values[count - 1];
    const uint32_t begin = values[count - 2];
    const int32_t header_bytes = tca_bme::is_quantized(e)
                                     ? tca_bme::read_quantized_layout(e).header_bytes()
                                     : tca_bme::read_record_layout(e).header_bytes();
    const auto header = static_cast<uint32_t>(header_bytes / 16);
    for (const uint32_t left : {header - 1, 1U, 0U}) {
      values[count - 1] = begin + left;
      e.parts[2].bytes = records.first((size_t{begin} + left) * tca_bme::kRecordAlignment);
      expect_refused(fmt::format("record {} has {} bytes, fewer than any of its layout", count - 2,
                                 left * 16));
    }
    // All of them, with nonzeros and without.
    std::fill_n(values, count, 0);
    e.parts[2].bytes = {};
    expect_refused("record 0 has 0 bytes, fewer than any of its layout");
    e.nonzeros = 0;
    expect_refused("record 0 has 0 bytes, fewer than any of its layout");
    EXPECT_NE(begin, end);
  }
}

TEST(FuzzRecordPieces, HasSeedsOfBothVersions) {
  int64_t quantized = 0;
  int64_t with_scales = 0;
  for (const Seed& seed : record_seeds()) {
    const RecordInput read = read_record_input(seed.input);
    if (tca_bme::is_quantized(read.weight)) {
      ++quantized;
      with_scales += read.weight.parts.size() == 4 ? 1 : 0;
    }
  }
  EXPECT_EQ(quantized, 5 * 7 * 2);
  EXPECT_EQ(with_scales, 2 * 7 * 2);
  EXPECT_LT(quantized, std::ssize(record_seeds()));
}

// Scales that are not there, that no input has the bytes for, and of i4, whose are in the records.
TEST(FuzzRecordPieces, RefusesWrongScales) {
  for (const Seed& seed : record_seeds()) {
    const RecordInput read = read_record_input(seed.input);
    const EncodedWeight& e = read.weight;
    if (!tca_bme::is_quantized(e)) {
      continue;
    }
    SCOPED_TRACE(seed.name);
    constexpr size_t kHead = 32 + 4 * tca_bme::kQuantizedLayoutWords;
    const size_t at = kHead + 4 * static_cast<size_t>(e.part(tca_bme::kStarts).count());
    uint32_t count = 0;
    std::memcpy(&count, &seed.input[at], sizeof(count));
    for (const uint32_t other : {count - 1, count + 1, count + 100}) {
      std::string input = seed.input;
      std::memcpy(&input[at], &other, sizeof(other));
      const size_t there = std::min<size_t>(other, (input.size() - at - 4) / 4);
      EXPECT_EQ(is_refused(input), there != count) << other;
    }
  }
}

// A check that gets other bytes than it was told of reads none of them.
TEST(FuzzRecordPieces, ACheckWantsAllOfItsBytes) {
  const RecordInput read = read_record_input(record_seeds().front().input);
  const tca_bme::RecordChecker checker(read.weight);
  const std::span<const std::byte> records = read.weight.part(tca_bme::kRecords).bytes;
  EXPECT_EQ(checker.check(0, 1, records), read.weight.nonzeros);
  for (const size_t bytes : {size_t{0}, size_t{1}, records.size() - 1}) {
    EXPECT_TRUE(throws_error(
        [&] { checker.check(0, 1, records.first(bytes)); },
        fmt::format("{} bytes of the 1 records from 0 on, not {}", bytes, records.size())));
  }
  EXPECT_TRUE(throws_error([&] { checker.check(1, 0, records); }, "of the 0 records from 1 on"));
}

}  // namespace
}  // namespace sparsellm::fuzz
