#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace sparsellm {

// NFC makes at most 7 bytes into 2, such as U+1FBE U+0308 U+0301 into U+0390, and at most 3 bytes
// of one.
inline constexpr int64_t kNfcMostBytes = 7;
inline constexpr int64_t kNfcLeastBytes = 2;

// The normalization form C of a well-formed text (Unicode Standard Annex 15), in time O(n log n):
// the text itself if it is in that form, else a view of `storage`. Calls poll() now and then. Which
// characters are composed depends on the Unicode version of the utf8proc library. Throws Error in a
// build without it.
std::string_view to_nfc(std::string_view text, std::string& storage,
                        const std::function<void()>& poll = {});

// True for a character, among the common ones, that normalization leaves alone, and that nothing in
// front of it is composed or reordered with: a text may be cut there and normalized in pieces.
bool begins_nfc_piece(char32_t character);

}  // namespace sparsellm
