#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace sparsellm::testing {

// Texts become a token a byte. Models may say longer ones, too, which a test chooses.
//   0 "<s>" and 1 "</s>", control tokens; 2 to 257 the bytes; from 258 on what is given
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kBos = 0;
  static constexpr int32_t kEos = 1;
  static constexpr int32_t kFirstByte = 2;
  static constexpr int32_t kFirstText = kFirstByte + 256;

  struct Options {
    std::vector<std::string> texts = {};
    bool strips_leading_space = false;
    bool replaces_each_byte = false;
  };
  ByteTokenizer() = default;
  explicit ByteTokenizer(Options options) : options_(std::move(options)) {}

  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const override {
    check_text(text);
    const int64_t count = std::ssize(text) + (options.add_special_tokens ? 1 : 0);
    if (count > options.max_tokens) {
      throw TooManyTokens("too many tokens");
    }
    if (options.poll) {
      options.poll();
    }
    std::vector<int32_t> ids;
    if (options.add_special_tokens) {
      ids.push_back(kBos);
    }
    for (const char c : text) {
      ids.push_back(kFirstByte + static_cast<unsigned char>(c));
    }
    return ids;
  }
  std::string token_bytes(int32_t id, bool show_special) const override {
    if (id == kBos || id == kEos) {
      return !show_special ? "" : id == kBos ? "<s>" : "</s>";
    }
    if (id >= kFirstByte && id < kFirstText) {
      return {static_cast<char>(id - kFirstByte)};
    }
    const int64_t index = int64_t{id} - kFirstText;
    return index >= 0 && index < std::ssize(options_.texts)
               ? options_.texts[static_cast<size_t>(index)]
               : "";
  }
  std::optional<int64_t> max_token_bytes() const override { return 1; }
  bool strips_leading_space() const override { return options_.strips_leading_space; }
  bool replaces_each_byte() const override { return options_.replaces_each_byte; }
  int64_t vocab_size() const override { return kFirstText + std::ssize(options_.texts); }
  std::optional<int32_t> bos_id() const override { return kBos; }
  std::optional<int32_t> eos_id() const override { return kEos; }

 private:
  Options options_;
};

}  // namespace sparsellm::testing
