#include "sparse/general_sparse/format/layout.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tests/sparse/general_sparse/naive_encoding.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using general_sparse::layout_from;
using general_sparse::PositionCode;
using testing::throws_error;
using PanelLayout = general_sparse::Layout;

TEST(GeneralSparseLayout, IsItsText) {
  EXPECT_EQ(to_text(PanelLayout()),
            "positions=u16 shared-rows=1 panel=4096 window=256 sorted=no interleave=1 vector=1");
  EXPECT_EQ(to_text(PanelLayout{.positions = PositionCode::u32,
                                .shared_rows = 4,
                                .panel_columns = 0,
                                .window_rows = 1024,
                                .sorted = true,
                                .interleave = 32,
                                .vector = 2}),
            "positions=u32 shared-rows=4 panel=0 window=1024 sorted=yes interleave=32 vector=2");
  std::set<std::string> texts;
  for (const PanelLayout& layout : testing::layout_grid()) {
    EXPECT_EQ(why_invalid(layout), std::nullopt) << to_text(layout);
    EXPECT_EQ(layout_from(to_text(layout)), layout);
    texts.insert(to_text(layout));
  }
  EXPECT_EQ(texts.size(), testing::layout_grid().size());
}

TEST(GeneralSparseLayout, InvalidOnesSayWhy) {
  const std::vector<std::pair<std::function<void(PanelLayout&)>, std::string>> cases{
      {[](auto& l) { l.shared_rows = 3; }, "shared-rows=3 is no power of 2 from 1 to 8"},
      {[](auto& l) { l.shared_rows = 16; }, "shared-rows=16"},
      {[](auto& l) { l.shared_rows = 0; }, "shared-rows=0"},
      {[](auto& l) { l.panel_columns = 0; },
       "panel=0, which is one of all columns, but positions=u16, not u32"},
      {[](auto& l) { l.panel_columns = 32; }, "panel=32 is no power of 2 from 64 to 65536"},
      {[](auto& l) { l.panel_columns = 131072; }, "panel=131072"},
      {[](auto& l) { l.panel_columns = -64; }, "panel=-64"},
      {[](auto& l) { l.interleave = 2; }, "interleave=2 is neither 1 nor 32"},
      {[](auto& l) { l.vector = 16; }, "vector=16 is no power of 2 from 1 to 8"},
      {[](auto& l) { l.window_rows = 384; },
       "window=384 is no power of 2 from 1 to 65536, for shared-rows=1 interleave=1"},
      {[](auto& l) { l.interleave = 32, l.window_rows = 16; }, "window=16"},
      {[](auto& l) { l.shared_rows = 8, l.window_rows = 4; }, "window=4"},
      {[](auto& l) { l.window_rows = 131072; }, "window=131072"}};
  for (const auto& [change, reason] : cases) {
    PanelLayout layout;
    change(layout);
    const std::optional<std::string> given = why_invalid(layout);
    ASSERT_TRUE(given) << reason;
    EXPECT_NE(given->find(reason), std::string::npos) << *given;
    EXPECT_THROW(layout_from(to_text(layout)), Error) << to_text(layout);
  }
}

TEST(GeneralSparseLayout, HostileTexts) {
  const std::string good = to_text(PanelLayout());
  for (const auto& [text, reason] : std::vector<std::pair<std::string, std::string>>{
           {"", "layout: expected 'positions='"},
           {"positions=u64", "layout: positions is 'u64'; expected one of u8, i8, u16, u32, bits"},
           {good + " ", "layout: nothing should follow"},
           {good + " vector=1", "layout: nothing should follow"},
           {good + "0", "layout: vector is '10'; expected a whole number from 1 to 8"},
           {"positions=u16 shared-rows=1 panel=4096 window=256 sorted=maybe", "sorted is 'maybe'"},
           {"positions=u16 shared-rows=99999999999999999999", "shared-rows is"},
           {"positions=u16 shared-rows=3 panel=64 window=3 sorted=no interleave=1 vector=1",
            "layout: shared-rows=3 is no power of 2"}}) {
    EXPECT_TRUE(throws_error([&, t = text] { layout_from(t); }, reason)) << text;
  }
  testing::Random random(3);
  for (size_t at = 0; at < good.size(); ++at) {
    for (int i = 0; i < 20; ++i) {
      std::string text = good;
      text[at] = static_cast<char>(random.below(256));
      try {
        EXPECT_EQ(to_text(layout_from(text)), text);
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
