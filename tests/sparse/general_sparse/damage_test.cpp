// What validate() says of general_sparse encodings that a file has wrong.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/format.h"
#include "sparse/general_sparse/general_sparse.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/general_sparse/naive_encoding.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using general_sparse::PositionCode;
using testing::Random;
using testing::throws_error;
using PanelLayout = general_sparse::Layout;

// The elements of a part, to be changed.
template <class T>
T* data_of(EncodedWeight& e, std::string_view name) {
  const auto part = std::ranges::find(e.parts, name, &EncodedPart::name);
  return static_cast<T*>(part->memory.data());
}

class GeneralSparseDamage : public ::testing::Test {
 protected:
  EncodedWeight encode(const Tensor& w, const PanelLayout& layout) {
    return general_sparse::encode(compress_rows(w, threads_), layout, threads_);
  }
  // Of f16: row 0 has ones in columns 0, 2, 5 and 68, row 1 in column 3, row 2 none.
  EncodedWeight small(const PanelLayout& layout) {
    return encode(testing::ones_matrix(DType::f16, 3, 70,
                                       [](int64_t row, int64_t column) {
                                         return row == 0 ? column == 0 || column == 2 ||
                                                               column == 5 || column == 68
                                                         : row == 1 && column == 3;
                                       })
                      .view,
                  layout);
  }
  ::testing::AssertionResult refused(const EncodedWeight& e, std::string_view reason) {
    return throws_error([&] { general_sparse::validate(e, threads_); }, reason);
  }

  // A valid encoding can be used; others are refused with one line.
  void check_use(const EncodedWeight& e) {
    try {
      general_sparse::validate(e, threads_);
    } catch (const Error& error) {
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
      return;
    }
    const CompressedRows m = general_sparse::to_compressed_rows(e, threads_);
    ASSERT_NO_THROW(sparsellm::validate(m, threads_));
    EXPECT_EQ(compress_rows(general_sparse::decode(e, threads_).view, threads_).nonzeros(),
              e.nonzeros);
    if (e.rows > 0 && e.columns > 64) {
      general_sparse::slice_columns(e, {0, 64});
      general_sparse::slice_rows(e, {0, e.rows});
    }
  }

  ThreadPool threads_{1};
};

TEST_F(GeneralSparseDamage, OfHeaders) {
  const EncodedWeight good = small({.panel_columns = 64, .window_rows = 4, .sorted = true});
  const auto damaged = [&](const std::function<void(EncodedWeight&)>& damage) {
    EncodedWeight e = testing::copy_of(good);
    damage(e);
    return e;
  };
  ASSERT_NO_THROW(general_sparse::validate(good, threads_));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.format = "dense"; }),
                      "an encoding in the format dense is not one in general_sparse"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.version = 2; }),
                      "version 2 of the format general_sparse is not known"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.dtype = DType::u16; }), "a weight of u16 values"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.dtype = DType::bf16; }), "is F16, not BF16"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.rows = -1; }), "a weight of -1 x 70 elements"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.rows = int64_t{1} << 62; }),
                      "at most 2147483647 rows and columns are possible"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.rows = 0x7fffffff; }),
                      "the part starts of the encoding general_sparse has 28 bytes"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.rows = 0x7fffffff, e.columns = 0, e.nonzeros = 0; }),
                      "the part starts of the encoding general_sparse has 28 bytes"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.columns = 0x7fffffff; }), "the part starts"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.columns = 0x7fffffff, e.rows = 0; }), "nonzeros"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.columns = 68; }),
                      "the part positions: window 0, panel 1, place 0: an entry in column 4 of 4"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.nonzeros = 4; }), "4 nonzeros, but 5 are stored"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.nonzeros = 211; }), "211 nonzeros in a weight"));
  EXPECT_TRUE(refused(damaged([](auto& e) { e.nonzeros = -1; }), "-1 nonzeros in a weight"));
  for (const std::string_view name : {"layout", "starts", "row_order", "positions", "values"}) {
    EncodedWeight e = testing::copy_of(good);
    const auto part = std::ranges::find(e.parts, name, &EncodedPart::name);
    const std::span<const std::byte> bytes = part->bytes;
    part->bytes = bytes.first(bytes.size() - 1);
    EXPECT_TRUE(refused(e, "")) << name;
    part->bytes = {};
    EXPECT_TRUE(refused(e, "")) << name;
    part->bytes = bytes;
    part->name = "other";
    EXPECT_TRUE(refused(e, "has no part")) << name;
  }
  EXPECT_TRUE(refused(damaged([](auto& e) { e.parts.pop_back(); }), "has no part values"));
  EXPECT_TRUE(refused(
      damaged([](auto& e) { e.parts.push_back(new_part<uint8_t>("more", DType::u8, 0).part); }),
      "has 6 parts, not 5"));
  EXPECT_TRUE(refused(damaged([](auto& e) { data_of<char>(e, "layout")[0] = 'q'; }),
                      "layout: expected 'positions=', found 'qositions=u16'"));
}

// [3, 70] in panels of 64 columns and one window: three groups of each panel, 1 lane each.
TEST_F(GeneralSparseDamage, OfStartsAndOrder) {
  const EncodedWeight good = small({.panel_columns = 64, .window_rows = 4, .sorted = true});
  const auto damaged = [&](const std::function<void(EncodedWeight&)>& damage) {
    EncodedWeight e = testing::copy_of(good);
    damage(e);
    return e;
  };
  EXPECT_TRUE(refused(damaged([](auto& e) { data_of<uint32_t>(e, "starts")[0] = 1; }),
                      "the part starts: the first is 1, not 0"));
  EXPECT_TRUE(refused(damaged([](auto& e) { data_of<uint32_t>(e, "starts")[2] = 2; }),
                      "the part starts: slice 1 begins with 3 and ends with 2"));
  EXPECT_TRUE(refused(damaged([](auto& e) { data_of<uint32_t>(e, "starts")[1] = 0xffffffff; }),
                      "the part starts: slice 1 begins with 4294967295 and ends with 4"));
  EXPECT_TRUE(refused(damaged([](auto& e) { data_of<uint32_t>(e, "starts")[6] = 0xffffffff; }),
                      "the part positions"));
  EXPECT_TRUE(refused(damaged([](auto& e) { data_of<uint16_t>(e, "row_order")[4] = 3; }),
                      "the part row_order: window 0, panel 1, place 1: group 3 of 3"));
  EXPECT_TRUE(refused(damaged([](auto& e) { data_of<uint16_t>(e, "row_order")[1] = 0; }),
                      "the part row_order: window 0, panel 0, place 1: group 0 has a place"));
}

TEST_F(GeneralSparseDamage, OfColumns) {
  const PanelLayout narrow{.positions = PositionCode::u16, .panel_columns = 64, .window_rows = 4};
  EncodedWeight e = small(narrow);
  data_of<uint16_t>(e, "positions")[1] = 64;
  EXPECT_TRUE(refused(e, "the part positions: window 0, panel 0, place 0: an entry in column 64"));
  data_of<uint16_t>(e, "positions")[1] = 5;
  EXPECT_TRUE(refused(e, "the part positions: window 0, panel 0, place 0: two nonzeros in column"));
  data_of<Half>(e, "values")[1] = {0};  // what is no nonzero may be anywhere
  e.nonzeros = 4;
  EXPECT_NO_THROW(general_sparse::validate(e, threads_));
  data_of<Half>(e, "values")[1] = {0x8000};
  EXPECT_TRUE(refused(e, "the part values: window 0, panel 0, place 0: entry 1 has a negative"));

  PanelLayout differences = narrow;
  differences.positions = PositionCode::u8;
  e = small(differences);
  data_of<uint8_t>(e, "positions")[2] = 0;
  EXPECT_TRUE(refused(e, "two nonzeros in column 2"));
  data_of<uint8_t>(e, "positions")[2] = 62;
  EXPECT_TRUE(refused(e, "an entry in column 64 of 64"));

  differences.positions = PositionCode::i8;
  e = small(differences);
  data_of<uint8_t>(e, "positions")[0] = 0xff;
  EXPECT_TRUE(refused(e, "an entry in column -1 of 64"));

  PanelLayout wide = narrow;
  wide.positions = PositionCode::u32;
  wide.panel_columns = 0;
  e = small(wide);
  data_of<uint32_t>(e, "positions")[3] = 70;
  EXPECT_TRUE(refused(e, "an entry in column 70 of 70"));
  data_of<uint32_t>(e, "positions")[3] = 0xffffffff;
  EXPECT_TRUE(refused(e, "an entry in column 4294967295 of 70"));
}

TEST_F(GeneralSparseDamage, OfBits) {
  const PanelLayout layout{
      .positions = PositionCode::bits, .panel_columns = 64, .window_rows = 4, .vector = 4};
  EncodedWeight e = small(layout);
  auto* const words = data_of<uint32_t>(e, "positions");  // 3 x 2, then 3 x 1 of 6 columns
  words[6] |= 0x40;
  EXPECT_TRUE(refused(e,
                      "the part positions: window 0, panel 1, place 0: word 0 is 0x50, but "
                      "there are 6 columns"));
  words[6] = 0x10;
  words[0] |= 0x1c0;
  EXPECT_TRUE(refused(e, "the part positions: window 0, panel 0, place 0: 6 bits, but 4 entries"));
  words[0] = 0x5;  // column 5 is missing
  EXPECT_TRUE(refused(e, "the part values: window 0, panel 0, place 0: entry 2 after 2 bits is"));
  words[0] = 0x25;
  EXPECT_NO_THROW(general_sparse::validate(e, threads_));
  words[4] = 1;
  EXPECT_TRUE(refused(e, "place 2: 1 bits, but 0 entries"));

  e = small({.positions = PositionCode::bits, .window_rows = 32, .interleave = 32});
  data_of<uint32_t>(e, "positions")[3] = 1;
  EXPECT_TRUE(refused(e, "place 3: word 0 of a lane without a group is 0x1"));
}

TEST_F(GeneralSparseDamage, OfRowsThatDoNotExist) {
  EncodedWeight e = small({.shared_rows = 4, .window_rows = 4});
  data_of<Half>(e, "values")[3] = {0x3c00};
  EXPECT_TRUE(refused(e,
                      "the part values: window 0, panel 0, place 0: entry 0 has a nonzero in "
                      "row 3, of 3 rows"));
  e = small({.window_rows = 32, .interleave = 32});
  data_of<Half>(e, "values")[5] = {0x3c00};
  EXPECT_TRUE(refused(e, "place 5: entry 5 has a nonzero in row 0, of 0 rows"));
}

TEST_F(GeneralSparseDamage, OfAnyByte) {
  Random random(31);
  const OwnedTensor w = testing::special_matrix(DType::f16, 5, 70, 0.06, random);
  for (const PositionCode code : {PositionCode::u8, PositionCode::i8, PositionCode::u16,
                                  PositionCode::u32, PositionCode::bits}) {
    for (const int interleave : {1, 32}) {
      const PanelLayout layout{.positions = code,
                               .shared_rows = 2,
                               .panel_columns = 64,
                               .window_rows = int64_t{2} * interleave,
                               .sorted = true,
                               .interleave = interleave,
                               .vector = 2};
      EncodedWeight e = encode(w.view, layout);
      for (EncodedPart& part : e.parts) {
        auto* const bytes = static_cast<std::byte*>(part.memory.data());
        for (size_t i = 0; i < part.bytes.size(); ++i) {
          const std::byte before = bytes[i];
          for (const std::byte mask : {std::byte{0x01}, std::byte{0x40}, std::byte{0x80}}) {
            bytes[i] = before ^ mask;
            SCOPED_TRACE(fmt::format("{} byte {} of {}", to_text(layout), i, part.name));
            check_use(e);
          }
          bytes[i] = before;
        }
      }
    }
  }
}

TEST_F(GeneralSparseDamage, OfSeveralThings) {
  Random random(32);
  const OwnedTensor w = testing::special_matrix(DType::f32, 40, 150, 0.05, random);
  const std::vector<PanelLayout> layouts = testing::layout_grid();
  for (size_t i = 0; i < layouts.size(); i += testing::kSanitized ? 40 : 8) {
    SCOPED_TRACE(to_text(layouts[i]));
    const EncodedWeight e = encode(w.view, layouts[i]);
    for (int damage = 0; damage < 25; ++damage) {
      check_use(testing::damaged_copy_of(e, random));
    }
  }
}

}  // namespace
}  // namespace sparsellm
