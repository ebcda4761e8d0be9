#include "tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/base/error.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

constexpr size_t kNfcBytesPerPoll = 1 << 20;

// Of one character; the longest canonical decomposition has four.
constexpr size_t kMaxDecomposition = 8;

constexpr auto kDecompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

int combining_class(int32_t character) { return utf8proc_get_property(character)->combining_class; }

// Where the ASCII characters at the front end, up to a few of them.
size_t skip_ascii(std::string_view text, size_t at) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  uint64_t word = 0;
  while (text.size() - at >= sizeof(word)) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    if ((word & kHighBits) != 0) {
      break;
    }
    at += sizeof(word);
  }
  return at;
}

// Normalizes pieces that are cut at characters of begins_nfc_piece().
class PieceNormalizer {
 public:
  // The result is valid until the next call.
  std::string_view run(std::string_view piece) {
    decompose(piece);
    reorder();
    const auto length = utf8proc_normalize_utf32(
        characters_.data(), static_cast<utf8proc_ssize_t>(characters_.size()), kCompose);
    require(length >= 0, "utf8proc cannot normalize a text of {} bytes: {}", piece.size(),
            utf8proc_errmsg(length));
    result_.clear();
    for (utf8proc_ssize_t i = 0; i < length; ++i) {
      append_utf8(static_cast<char32_t>(characters_[static_cast<size_t>(i)]), result_);
    }
    return result_;
  }

 private:
  void decompose(std::string_view piece) {
    characters_.clear();
    while (!piece.empty()) {
      const auto character = static_cast<int32_t>(take_character(piece));
      std::array<int32_t, kMaxDecomposition> parts{};
      int boundary_class = 0;
      const auto count = utf8proc_decompose_char(character, parts.data(), kMaxDecomposition,
                                                 kDecompose, &boundary_class);
      require(count > 0 && count <= static_cast<utf8proc_ssize_t>(kMaxDecomposition),
              "utf8proc cannot decompose U+{:04X}", character);
      characters_.insert(characters_.end(), parts.begin(), parts.begin() + count);
    }
  }

  // The canonical ordering: marks by their class, between characters that are none. The library's
  // own takes time that grows with the square of a run of marks.
  void reorder() {
    for (auto begin = characters_.begin(); begin != characters_.end();) {
      if (combining_class(*begin) == 0) {
        ++begin;
        continue;
      }
      const auto end =
          std::find_if(begin, characters_.end(), [](int32_t c) { return combining_class(c) == 0; });
      std::stable_sort(
          begin, end, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
      begin = end;
    }
  }

  std::vector<int32_t> characters_;
  std::string result_;
};

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& storage,
                        const std::function<void()>& poll) {
  PieceNormalizer normalizer;
  size_t copied = 0;  // what is in front of it is in `storage`, if anything changed
  bool has_changed = false;
  size_t next_poll = kNfcBytesPerPoll;
  size_t begin = 0;  // of the piece: the last character that begins one
  for (size_t at = 0; at < text.size();) {
    if (poll && at >= next_poll) {
      poll();
      next_poll = at + kNfcBytesPerPoll;
    }
    if (const size_t end = skip_ascii(text, at); end > at) {
      at = end;
      begin = end - 1;
      continue;
    }
    std::string_view rest = text.substr(at);
    if (begins_nfc_piece(take_character(rest))) {
      begin = at;
      at = text.size() - rest.size();
      continue;
    }
    size_t end = text.size() - rest.size();
    while (!rest.empty() && !begins_nfc_piece(take_character(rest))) {
      end = text.size() - rest.size();
    }
    const std::string_view piece = text.substr(begin, end - begin);
    const std::string_view normalized = normalizer.run(piece);
    if (normalized != piece) {
      if (!has_changed) {
        storage.clear();
        storage.reserve(text.size());
        has_changed = true;
      }
      storage.append(text.substr(copied, begin - copied)).append(normalized);
      copied = end;
    }
    begin = end;
    at = end;
  }
  if (!has_changed) {
    return text;
  }
  storage.append(text.substr(copied));
  return storage;
}

}  // namespace sparsellm
