#include "engine/calibration_sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/mapped_file.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::throws_error;
using Sequences = std::vector<std::vector<int32_t>>;

constexpr int32_t kBos = 1000;
constexpr int32_t kEos = 1001;

// Its tokens are the bytes of the text.
class ByteTokenizer : public Tokenizer {
 public:
  enum class Frame : uint8_t { none, bos, bos_and_eos, eos };
  explicit ByteTokenizer(Frame frame) : frame_(frame) {}

  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids(text.begin(), text.end());
    if (options.add_special_tokens && (frame_ == Frame::bos || frame_ == Frame::bos_and_eos)) {
      ids.insert(ids.begin(), kBos);
    }
    if (options.add_special_tokens && (frame_ == Frame::eos || frame_ == Frame::bos_and_eos)) {
      ids.push_back(kEos);
    }
    return ids;
  }
  std::string token_bytes(int32_t, bool) const override { return ""; }
  bool strips_leading_space() const override { return false; }
  int64_t vocab_size() const override { return kEos + 1; }
  std::optional<int32_t> bos_id() const override { return kBos; }
  std::optional<int32_t> eos_id() const override { return kEos; }

 private:
  Frame frame_;
};

// 0, 1, 2, ..., 126: where a piece was taken from is what is in it.
std::string counting(size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    text += static_cast<char>(i);
  }
  return text;
}

Sequences cut(ByteTokenizer::Frame frame, size_t text, int64_t tokens, int64_t length) {
  const std::string bytes = counting(text);
  return calibration_sequences(ByteTokenizer(frame),
                               {.text = bytes, .tokens = tokens, .length = length});
}

using Frame = ByteTokenizer::Frame;

TEST(CalibrationSequences, AreSpreadOverTheText) {
  EXPECT_EQ(cut(Frame::none, 11, 6, 2), (Sequences{{0, 1}, {4, 5}, {9, 10}}));
  EXPECT_EQ(cut(Frame::none, 10, 6, 2), (Sequences{{0, 1}, {4, 5}, {8, 9}}));
  EXPECT_EQ(cut(Frame::none, 6, 6, 2), (Sequences{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(cut(Frame::none, 100, 4, 4), (Sequences{{0, 1, 2, 3}}));
}

TEST(CalibrationSequences, StartWithBosWhereTheTokenizerPutsIt) {
  EXPECT_EQ(cut(Frame::bos, 9, 9, 3), (Sequences{{kBos, 0, 1}, {kBos, 3, 4}, {kBos, 7, 8}}));
  EXPECT_EQ(cut(Frame::bos_and_eos, 9, 6, 3), (Sequences{{kBos, 0, 1}, {kBos, 7, 8}}));
  EXPECT_EQ(cut(Frame::eos, 9, 6, 3), (Sequences{{0, 1, 2}, {6, 7, 8}}));
}

TEST(CalibrationSequences, LastMayBeShort) {
  EXPECT_EQ(cut(Frame::none, 9, 5, 3), (Sequences{{0, 1, 2}, {7, 8}}));
  EXPECT_EQ(cut(Frame::bos, 9, 5, 3), (Sequences{{kBos, 0, 1}, {kBos, 8}}));
  EXPECT_EQ(cut(Frame::bos, 9, 4, 3), (Sequences{{kBos, 0, 1}}));  // no BOS alone
  EXPECT_EQ(cut(Frame::bos, 9, 2, 30), (Sequences{{kBos, 0}}));
}

TEST(CalibrationSequences, TakeAShortTextAsAWhole) {
  EXPECT_EQ(cut(Frame::none, 5, 1'000'000, 3), (Sequences{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(cut(Frame::bos, 3, 1'000'000, 3), (Sequences{{kBos, 0, 1}, {kBos, 2}}));
}

TEST(CalibrationSequences, RefuseInvalidArguments) {
  EXPECT_TRUE(throws_error([] { cut(Frame::bos, 0, 10, 5); }, "no tokens"));
  EXPECT_TRUE(throws_error([] { cut(Frame::bos, 5, 1, 5); }, "1 tokens are too few"));
  EXPECT_TRUE(throws_error([] { cut(Frame::bos, 5, -3, 5); }, "-3 tokens"));
  EXPECT_TRUE(throws_error([] { cut(Frame::bos, 5, 5, 1); }, "sequences of 1 tokens"));
}

TEST(CalibrationSequences, CanBeInterrupted) {
  struct Stop {};
  const std::string text =
      read_text_file(testing::data("text/calibration.txt"), int64_t{1} << 30).substr(0, 200'000);
  for (const std::filesystem::path& directory : testing::trained_checkpoints()) {
    const auto tokenizer = load_tokenizer(directory);
    const CalibrationText from{
        .text = text, .tokens = 1000, .length = 128, .poll = [] { throw Stop(); }};
    EXPECT_THROW(calibration_sequences(*tokenizer, from), Stop);
  }
}

TEST(CalibrationSequences, OfARealText) {
  const std::string text =
      read_text_file(testing::data("text/calibration.txt"), int64_t{1} << 30).substr(0, 60'000);
  for (const std::filesystem::path& directory : testing::trained_checkpoints()) {
    const auto tokenizer = load_tokenizer(directory);
    const std::vector<int32_t> ids = tokenizer->encode(text, {.add_special_tokens = false});
    const Sequences sequences =
        calibration_sequences(*tokenizer, {.text = text, .tokens = 1000, .length = 128});
    ASSERT_EQ(sequences.size(), 8u);
    auto from = ids.begin();
    size_t tokens = 0;
    for (const std::vector<int32_t>& sequence : sequences) {
      EXPECT_EQ(sequence.front(), tokenizer->bos_id());
      tokens += sequence.size();
      const auto found = std::search(from, ids.end(), sequence.begin() + 1, sequence.end());
      ASSERT_NE(found, ids.end());
      from = found + std::ssize(sequence) - 1;
    }
    EXPECT_EQ(tokens, 1000u);
    EXPECT_EQ(sequences.back().back(), ids.back());
  }
}

}  // namespace
}  // namespace sparsellm
