#include "tests/fuzz/use_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/fuzz/expect.h"
#include "tokenizer/utf8.h"

namespace sparsellm::fuzz {
namespace {

constexpr int32_t kMinId = std::numeric_limits<int32_t>::min();
constexpr int32_t kMaxId = std::numeric_limits<int32_t>::max();

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Front front = utf8_front(text);
    if (front.kind != Utf8Front::Kind::character) {
      return false;
    }
    text.remove_prefix(static_cast<size_t>(front.length));
  }
  return true;
}

void check_decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (int32_t id : ids) {
    const std::string shown = tokenizer.token_bytes(id);
    const bool is_token = id >= 0 && id < tokenizer.vocab_size();
    expect(is_token || tokenizer.token_bytes(id, true).empty(), "no bytes for an id of no token");
    expect(shown.empty() || shown == tokenizer.token_bytes(id, true),
           "the same bytes with and without special tokens");
  }
  expect(is_utf8(decode(tokenizer, ids)), "decoded text in UTF-8");

  IncrementalDecoder decoder(tokenizer, true);
  for (int32_t id : ids) {
    expect(is_utf8(decoder.add(id)), "whole characters");
  }
  expect(is_utf8(decoder.finish()), "whole characters at the end");
}

void check_encode(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool add_special_tokens : {false, true}) {
    for (const bool parse_special : {false, true}) {
      const std::vector<int32_t> ids = tokenizer.encode(
          text, {.add_special_tokens = add_special_tokens, .parse_special = parse_special});
      expect(std::all_of(ids.begin(), ids.end(),
                         [&](int32_t id) { return id >= 0 && id < tokenizer.vocab_size(); }),
             "ids inside the vocabulary");
      check_decode(tokenizer, ids);
    }
  }
}

}  // namespace

void use_tokenizer(const Tokenizer& tokenizer, std::string_view text) {
  const int64_t vocab_size = tokenizer.vocab_size();
  expect(vocab_size >= 1 && vocab_size <= int64_t{kMaxId} + 1, "a vocabulary");
  for (const std::optional<int32_t> id : {tokenizer.bos_id(), tokenizer.eos_id()}) {
    expect(!id || (*id >= 0 && *id < vocab_size), "BOS and EOS inside the vocabulary");
  }

  constexpr int64_t kMaxDecoded = 1000;  // of the ids, which a file may spread as it likes
  std::vector<int32_t> ids{kMinId, -1, kMaxId, static_cast<int32_t>(vocab_size - 1)};
  for (int64_t id = 0; id < std::min(vocab_size, kMaxDecoded); ++id) {
    ids.push_back(static_cast<int32_t>(id));
  }
  check_decode(tokenizer, ids);

  check_encode(tokenizer, text);
  check_encode(tokenizer, "Once upon a time,  there were 3 kings.\n");
}

}  // namespace sparsellm::fuzz
