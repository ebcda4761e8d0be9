#include "sparse/general_sparse/offset_function.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace general_sparse;
using testing::Random;

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

using QuasiLinear8 = QuasiLinearOffsets<uint8_t>;
using QuasiLinear16 = QuasiLinearOffsets<uint16_t>;

OffsetFunction function_of(const std::vector<int64_t>& offsets) {
  return OffsetFunction::of(std::span<const int64_t>(offsets));
}

// The function of an array, after all that holds for each has been checked.
OffsetFunction checked_function(const std::vector<int64_t>& offsets) {
  OffsetFunction function = function_of(offsets);
  EXPECT_EQ(function.count(), std::ssize(offsets));
  bool fits = true;
  for (size_t i = 0; i < offsets.size(); ++i) {
    EXPECT_EQ(function(static_cast<int64_t>(i)), offsets[i]) << function.to_text() << " at " << i;
    fits = fits && offsets[i] >= 0 && offsets[i] <= int64_t{0xffffffff};
  }
  EXPECT_EQ(function.fits_u32(), fits);
  EXPECT_EQ(OffsetFunction::from_text(function.to_text()), function);
  if (fits) {
    EXPECT_EQ(std::ssize(function.table()), function.bytes());
    EXPECT_NE(function.to_source("f").find("unsigned f(unsigned i, const void* table)"),
              std::string::npos);
  } else {
    EXPECT_THROW(function.table(), Error);
    EXPECT_THROW(function.to_source("f"), Error);
  }
  return function;
}

template <class Form>
bool is(const OffsetFunction& function) {
  return std::holds_alternative<Form>(function.form());
}

// Checks the array, and whether it has another form with one of its offsets changed.
template <class Form>
void check_class(std::vector<int64_t> offsets, Random& random) {
  const OffsetFunction function = checked_function(offsets);
  ASSERT_TRUE(is<Form>(function)) << function.to_text();
  const auto changed = static_cast<size_t>(random.below(std::ssize(offsets)));
  const int64_t before = offsets[changed];
  for (const int64_t by : {int64_t{1}, int64_t{70'000}}) {
    offsets[changed] = before + by;
    const OffsetFunction other = checked_function(offsets);
    EXPECT_TRUE(other.form() != function.form()) << other.to_text();
  }
}

std::vector<int64_t> line(int64_t a, int64_t b, int64_t count) {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < count; ++i) {
    offsets.push_back(a * i + b);
  }
  return offsets;
}

TEST(GeneralSparseOffsets, FindsTheClassOfRandomArrays) {
  constexpr uint64_t kSeed = 41;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (int round = 0; round < 100; ++round) {
    const int64_t count = 200 + random.below(300);
    const int64_t a = random.below(1000) - (round % 3 == 0 ? 500 : 0);
    const int64_t b = random.below(1'000'000) + 500'000;
    check_class<LinearOffsets>(line(a, b, count), random);

    std::vector<int64_t> branch;
    const int64_t pieces = 2 + random.below(4);
    for (int64_t k = 0; k < pieces; ++k) {
      branch.insert(branch.end(), static_cast<size_t>(1 + random.below(100)),
                    3 * k + random.below(3) + (k == 2 ? 1000 : 0));
    }
    if (branch[0] != branch.back() && branch.size() > 20) {
      const OffsetFunction function = checked_function(branch);
      EXPECT_TRUE(is<BranchOffsets>(function) || is<LinearOffsets>(function));
    }

    const int64_t period = 2 + random.below(63);
    std::vector<int64_t> cycle = {0, 7};  // no line
    while (std::ssize(cycle) < period) {
      cycle.push_back(random.below(100'000));
    }
    std::vector<int64_t> cyclic;
    for (int64_t i = 0; i < count; ++i) {
      cyclic.push_back((a + 600) * (i / period) + cycle[static_cast<size_t>(i % period)]);
    }
    check_class<CyclicOffsets>(cyclic, random);

    std::vector<int64_t> near = line(a, b, count);
    std::vector<int64_t> far = near;
    std::vector<int64_t> wild = near;
    for (size_t i = 0; i < near.size(); ++i) {
      near[i] += random.below(256);
      far[i] += random.below(65'536);
      wild[i] = random.below(int64_t{1} << 32);
    }
    check_class<QuasiLinear8>(near, random);
    check_class<QuasiLinear16>(far, random);
    const OffsetFunction stored = checked_function(wild);
    EXPECT_TRUE(is<StoredOffsets>(stored));
    EXPECT_EQ(stored.bytes(), 4 * count);
  }
}

TEST(GeneralSparseOffsets, ArraysOfFewOffsetsAreLinear) {
  EXPECT_EQ(checked_function({}).to_text(), "linear count=0 a=0 b=0");
  EXPECT_EQ(checked_function({7}).to_text(), "linear count=1 a=0 b=7");
  EXPECT_EQ(checked_function({7, 3}).to_text(), "linear count=2 a=-4 b=7");
  EXPECT_EQ(checked_function({5, 5, 5}).to_text(), "linear count=3 a=0 b=5");
  EXPECT_EQ(checked_function({kMost}).bytes(), 0);
  EXPECT_EQ(checked_function({kLeast, kMost}).bytes(), 0);
}

TEST(GeneralSparseOffsets, TakesTheCheapestForm) {
  EXPECT_EQ(checked_function({1, 1, 2, 2}).to_text(), "branch count=4 ends=2,4 values=1,2");
  EXPECT_EQ(checked_function({4, 4, 9, 9, 9, 4, 0, 1}).to_text(),
            "branch count=8 ends=2,5,6,7,8 values=4,9,4,0,1");
  EXPECT_EQ(checked_function({0, 2, 5, 8, 10, 13}).to_text(), "cyclic count=6 a=8 c=0,2,5");
  EXPECT_EQ(checked_function({0, 2, 5, 8, 10, 14}).to_text(),
            "quasi-linear-u8 count=6 a=3 b=-2 residuals=2,1,1,1,0,1");
}

// Every third offset lies above a line, by as much as a residual holds, or one more.
TEST(GeneralSparseOffsets, ResidualsReachAsFarAsTheirTypes) {
  for (const int64_t slope : {int64_t{0}, int64_t{11}, int64_t{-3}, int64_t{1} << 40}) {
    const auto bumped = [slope](int64_t by) {
      std::vector<int64_t> offsets = line(slope, 1000, 400);
      for (size_t i = 1; i + 1 < offsets.size(); i += 3) {
        offsets[i] += by;
      }
      offsets[2] += 1;  // no cycle
      return offsets;
    };
    EXPECT_TRUE(is<QuasiLinear8>(checked_function(bumped(255)))) << slope;
    EXPECT_TRUE(is<QuasiLinear16>(checked_function(bumped(256)))) << slope;
    EXPECT_TRUE(is<QuasiLinear16>(checked_function(bumped(65'535)))) << slope;
    EXPECT_TRUE(is<StoredOffsets>(checked_function(bumped(65'536)))) << slope;
    EXPECT_EQ(checked_function(bumped(255)).bytes(), 400);
    EXPECT_EQ(checked_function(bumped(256)).bytes(), 800);
  }
}

// The smallest range that any slope leaves is found.
TEST(GeneralSparseOffsets, FindsTheBestSlope) {
  constexpr uint64_t kSeed = 42;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (int round = 0; round < 40; ++round) {
    std::vector<int64_t> offsets;
    const int64_t count = 6 + random.below(4);
    const int64_t reach = round % 2 == 0 ? 400 : 100'000;
    for (int64_t i = 0; i < count; ++i) {
      offsets.push_back(random.below(reach));
    }
    int64_t narrowest = kMost;
    for (int64_t slope = -2 * reach / count; slope <= 2 * reach / count; ++slope) {
      int64_t least = kMost;
      int64_t most = kLeast;
      for (size_t i = 0; i < offsets.size(); ++i) {
        const int64_t residual = offsets[i] - slope * static_cast<int64_t>(i);
        least = std::min(least, residual);
        most = std::max(most, residual);
      }
      narrowest = std::min(narrowest, most - least);
    }
    const OffsetFunction function = checked_function(offsets);
    EXPECT_EQ(is<QuasiLinear8>(function), narrowest < 256) << function.to_text();
    EXPECT_EQ(is<QuasiLinear16>(function), narrowest >= 256 && narrowest < 65'536)
        << function.to_text();
  }
}

TEST(GeneralSparseOffsets, NothingOverflows) {
  constexpr uint64_t kSeed = 43;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  checked_function({kLeast, kMost, kLeast});
  checked_function({kMost, kLeast, 0, 1, 5, kMost});
  checked_function({0, kMost, kLeast, -1, 7, 7, 7});
  checked_function({int64_t{1} << 60, -(int64_t{1} << 60), 0, 1, 2, int64_t{1} << 60});
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> offsets;
    for (int64_t i = random.below(40); i >= 0; --i) {
      const int64_t any = random.below(kMost);
      offsets.push_back(random.below(3) == 0 ? kLeast + any % 100 : any);
    }
    checked_function(offsets);
  }
}

TEST(GeneralSparseOffsets, OfU32IsThatOfI64) {
  const std::vector<uint32_t> offsets{0, 0xffffffff, 1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> wide(offsets.begin(), offsets.end());
  EXPECT_EQ(OffsetFunction::of(std::span<const uint32_t>(offsets)), function_of(wide));
}

// A line that leaves the range of u32 somewhere, and a cycle whose last, partial round does not.
TEST(GeneralSparseOffsets, KnowsWhetherValuesAreU32) {
  const auto fits = [](const char* text) { return OffsetFunction::from_text(text).fits_u32(); };
  EXPECT_TRUE(fits("linear count=4294967296 a=1 b=0"));
  EXPECT_FALSE(fits("linear count=4294967297 a=1 b=0"));
  EXPECT_TRUE(fits("linear count=3 a=-5 b=10"));
  EXPECT_FALSE(fits("linear count=4 a=-5 b=10"));
  EXPECT_FALSE(fits("linear count=9223372036854775807 a=9223372036854775807 b=0"));
  EXPECT_TRUE(fits("linear count=0 a=1 b=-1"));
  EXPECT_TRUE(fits("cyclic count=4 a=4294967294 c=1,0"));
  EXPECT_FALSE(fits("cyclic count=5 a=4294967294 c=1,0"));
  EXPECT_TRUE(fits("cyclic count=5 a=2147483647 c=0,2147483648"));
  EXPECT_FALSE(fits("cyclic count=6 a=2147483647 c=0,2147483648"));
  EXPECT_FALSE(fits("cyclic count=4 a=4294967295 c=1,0"));
  EXPECT_FALSE(fits("branch count=2 ends=1,2 values=0,4294967296"));
}

TEST(GeneralSparseOffsets, SourceOfEachForm) {
  const auto source = [](const char* text) {
    return OffsetFunction::from_text(text).to_source("f");
  };
  const std::string head =
      "__device__ inline unsigned f(unsigned i, const void* table) {\n  return ";
  const std::string tail = ";\n}\n";
  EXPECT_EQ(source("linear count=9 a=4 b=7"), head + "4u * i + 7u" + tail);
  EXPECT_EQ(source("linear count=9 a=0 b=7"), head + "7u" + tail);
  EXPECT_EQ(source("linear count=3 a=-2 b=7"), head + "4294967294u * i + 7u" + tail);
  EXPECT_EQ(source("branch count=12 ends=3,9,12 values=0,5,7"),
            head + "i < 3u ? 0u : i < 9u ? 5u : 7u" + tail);
  EXPECT_EQ(source("cyclic count=12 a=8 c=0,2,5"),
            "__device__ const unsigned f_cycle[3] = {0u, 2u, 5u};\n" + head +
                "8u * (i / 3u) + f_cycle[i % 3u]" + tail);
  EXPECT_EQ(source("quasi-linear-u8 count=4 a=3 b=1 residuals=0,2,255,0"),
            head + "3u * i + 1u + static_cast<const unsigned char*>(table)[i]" + tail);
  EXPECT_EQ(source("quasi-linear-u16 count=3 a=3 b=1 residuals=0,2,256"),
            head + "3u * i + 1u + static_cast<const unsigned short*>(table)[i]" + tail);
  EXPECT_EQ(source("array count=3 values=5,9,2"),
            head + "static_cast<const unsigned*>(table)[i]" + tail);
  for (const char* name : {"", "3f", "f-g", "f(", "\xc3\xa9"}) {
    EXPECT_THROW(OffsetFunction::from_text("linear count=1 a=0 b=0").to_source(name), Error);
  }
}

TEST(GeneralSparseOffsets, TableIsWhatASourceReads) {
  const std::vector<std::byte> wide =
      OffsetFunction::from_text("array count=2 values=5,4294967295").table();
  std::vector<uint32_t> words(2);
  ASSERT_EQ(wide.size(), 8u);
  std::memcpy(words.data(), wide.data(), 8);
  EXPECT_EQ(words, (std::vector<uint32_t>{5, 0xffffffff}));
  const auto narrow =
      OffsetFunction::from_text("quasi-linear-u16 count=2 a=1 b=0 residuals=1,65535").table();
  std::vector<uint16_t> halves(2);
  ASSERT_EQ(narrow.size(), 4u);
  std::memcpy(halves.data(), narrow.data(), 4);
  EXPECT_EQ(halves, (std::vector<uint16_t>{1, 65535}));
}

TEST(GeneralSparseOffsets, RefusesOtherText) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      OffsetFunction::from_text(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"",
       "offset function: '' is no form; expected one of linear, branch, cyclic, "
       "quasi-linear-u8, quasi-linear-u16, array"},
      {"line\nar count=1",
       "offset function: 'line?ar' is no form; expected one of linear, branch, "
       "cyclic, quasi-linear-u8, quasi-linear-u16, array"},
      {"linear", "offset function: expected 'count=', found ''"},
      {"linear a=1 b=2", "offset function: expected 'count=', found 'a=1'"},
      {"linear  count=1 a=1 b=2", "offset function: expected 'count=', found ''"},
      {"linear count=-1 a=1 b=2",
       "offset function: count is '-1'; expected a whole number from 0 to 9223372036854775807"},
      {"linear count=1 a=01 b=2",
       "offset function: a is '01'; expected a whole number from -9223372036854775808 to "
       "9223372036854775807"},
      {"linear count=1 a=1 b=2 ", "offset function: nothing should follow, but ' ' does"},
      {"linear count=1 a=1 b=2 c=3", "offset function: nothing should follow, but 'c=3' does"},
      {"branch count=3 ends=1,3 values=4", "offset function: 1 values of 2 branches"},
      {"branch count=3 ends=1,2 values=4,5", "offset function: the last branch ends at 2 of 3"},
      {"branch count=3 ends=3,3 values=4,5",
       "offset function: a branch ends at 3 after one that ends at 3"},
      {"branch count=6 ends=1,2,3,4,5,6 values=1,2,3,4,5,6",
       "offset function: 6 ends of branches; expected 1 to 5"},
      {"branch count=0 ends= values=", "offset function: 0 ends of branches; expected 1 to 5"},
      {"branch count=3 ends=4 values=4",
       "offset function: ends is '4'; expected a whole number from 1 to 3"},
      {"cyclic count=6 a=1 c=1", "offset function: a cycle of 1 offsets; expected 2 to 3"},
      {"cyclic count=6 a=1 c=1,2,3,4", "offset function: a cycle of 4 offsets; expected 2 to 3"},
      {"quasi-linear-u8 count=2 a=1 b=1 residuals=0,256",
       "offset function: residuals is '256'; expected a whole number from 0 to 255"},
      {"quasi-linear-u8 count=9000000000000000000 a=1 b=1 residuals=0,1",
       "offset function: 2 residuals of 9000000000000000000 offsets"},
      {"array count=2 values=1,",
       "offset function: values is ''; expected a whole number from "
       "-9223372036854775808 to 9223372036854775807"},
      {"array count=2 values=1,2,3", "offset function: 3 values of 2 offsets"},
      {"array count=1 values=99999999999999999999999999999999999999999999",
       "offset function: values is '9999999999999999999999999999999999999999...'; expected a whole "
       "number from -9223372036854775808 to 9223372036854775807"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(message(text), expected) << text;
  }
}

// Any change of a byte is an error, or the text of what was read.
TEST(GeneralSparseOffsets, ReadsNothingElseThanItWrites) {
  constexpr uint64_t kSeed = 44;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  const std::vector<std::string> texts{"linear count=9 a=4 b=-7",
                                       "branch count=12 ends=3,9,12 values=0,-5,7",
                                       "cyclic count=12 a=8 c=0,2,5",
                                       "quasi-linear-u8 count=4 a=3 b=1 residuals=0,2,255,0",
                                       "quasi-linear-u16 count=3 a=3 b=1 residuals=0,2,256",
                                       "array count=3 values=5,9,2"};
  for (int round = 0; round < 6000; ++round) {
    std::string text = texts[static_cast<size_t>(round) % texts.size()];
    const auto place = static_cast<size_t>(random.below(std::ssize(text)));
    switch (random.below(3)) {
      case 0:
        text[place] = " ,=-0123456789ab\n\xff"[random.below(18)];
        break;
      case 1:
        text.erase(place, 1);
        break;
      default:
        text.insert(place, 1, text[static_cast<size_t>(random.below(std::ssize(text)))]);
    }
    try {
      EXPECT_EQ(OffsetFunction::from_text(text).to_text(), text);
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("offset function: ")) << error.what();
    }
  }
}

}  // namespace
}  // namespace sparsellm
