#include "tokenizer/bpe_symbols.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

bool continues_character(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) == 0x80; }

// Whether there is byte fallback. Without any token of a byte it has no effect.
bool has_byte_tokens(const BpeModel& model, std::string_view source) {
  if (model.symbols != BpeModel::Symbols::characters || !model.byte_fallback) {
    return false;
  }
  std::string missing;
  int count = 0;
  for (int byte = 255; byte >= 0; --byte) {
    std::string token = byte_token(static_cast<uint8_t>(byte));
    if (model.find(token)) {
      ++count;
    } else {
      missing = std::move(token);
    }
  }
  require(count == 0 || count == 256,
          "{}: byte_fallback is true, but the vocabulary has tokens of {} bytes only, and no {}",
          source, count, quote(missing));
  return count > 0;
}

}  // namespace

std::optional<int32_t> BpeModel::find(const std::string& token) const {
  const auto found = vocabulary.find(token);
  return found == vocabulary.end() ? std::nullopt : std::optional(found->second);
}

std::string byte_token(uint8_t byte) { return fmt::format("<0x{:02X}>", byte); }

std::optional<uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) {
    return {};
  }
  uint8_t byte = 0;
  const char* const end = token.data() + 5;
  const auto result = std::from_chars(token.data() + 3, end, byte, 16);
  return result.ptr == end ? std::optional(byte) : std::nullopt;
}

BpeSymbols::BpeSymbols(const BpeModel& model, std::string_view source)
    : kind_(model.symbols), byte_fallback_(has_byte_tokens(model, source)) {
  const bool are_bytes = kind_ == BpeModel::Symbols::bytes;
  byte_ids_.fill(kNone);
  ascii_ids_.fill(kNone);
  for (int value = 0; value < 256 && (are_bytes || byte_fallback_); ++value) {
    const auto byte = static_cast<uint8_t>(value);
    byte_ids_[byte] = model.find(are_bytes ? byte_symbol(byte) : byte_token(byte)).value_or(kNone);
  }
  for (const auto& [token, id] : model.vocabulary) {
    if (are_bytes || token.empty()) {
      continue;
    }
    std::string_view rest = token;
    const char32_t character = take_character(rest);
    if (!rest.empty()) {
      continue;
    }
    if (character < ascii_ids_.size()) {
      ascii_ids_[character] = id;
    } else {
      character_ids_.emplace(character, id);
    }
  }
  if (model.unknown_token) {
    unknown_id_ = model.find(*model.unknown_token);
    unknown_token_ = *model.unknown_token;
  }
}

int32_t BpeSymbols::find_character(char32_t character) const {
  if (character < ascii_ids_.size()) {
    return ascii_ids_[character];
  }
  const auto found = character_ids_.find(character);
  return found == character_ids_.end() ? kNone : found->second;
}

BpeSymbols::Symbol BpeSymbols::read(std::string_view word, size_t at) const {
  const auto byte = static_cast<uint8_t>(word[at]);
  if (kind_ == BpeModel::Symbols::bytes) {
    const bool is_unknown = byte_ids_[byte] == kNone;
    require(!is_unknown || unknown_id_, "the byte 0x{:02x} of the text has no token", byte);
    return {is_unknown ? *unknown_id_ : byte_ids_[byte], 1, is_unknown};
  }
  if (continues_character(word[at])) {  // of a character that is its bytes
    return {byte_ids_[byte], 1, false};
  }
  std::string_view rest = word.substr(at);
  const size_t before = rest.size();
  const char32_t character = take_character(rest);
  if (const int32_t id = find_character(character); id != kNone) {
    return {id, static_cast<int32_t>(before - rest.size()), false};
  }
  if (byte_fallback_) {
    return {byte_ids_[byte], 1, false};
  }
  require(unknown_id_.has_value(), "the character U+{:04X} of the text has no token",
          static_cast<uint32_t>(character));
  return {*unknown_id_, static_cast<int32_t>(before - rest.size()), true};
}

std::vector<int32_t> BpeSymbols::leads_of(std::string_view token) const {
  std::vector<int32_t> leads;
  const auto add = [&](int32_t id) {
    if (id != kNone) {
      leads.push_back(id);
    }
  };
  if (token.empty()) {
    return leads;
  }
  std::string_view rest = token;
  const char32_t character = take_character(rest);
  if (kind_ == BpeModel::Symbols::characters) {
    add(find_character(character));
    if (const auto byte = byte_of_token(token.substr(0, 6))) {
      add(byte_ids_[*byte]);
    }
  } else if (const auto byte = bytes_of_symbols(token.substr(0, token.size() - rest.size()))) {
    add(byte_ids_[static_cast<uint8_t>(byte->front())]);
  }
  if (unknown_id_ && token.starts_with(unknown_token_)) {
    add(*unknown_id_);
  }
  return leads;
}

bool BpeSymbols::has_unknown() const {
  const bool has_all = kind_ == BpeModel::Symbols::characters
                           ? byte_fallback_
                           : std::count(byte_ids_.begin(), byte_ids_.end(), kNone) == 0;
  return unknown_id_ && !has_all;
}

}  // namespace sparsellm
