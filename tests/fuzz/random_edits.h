#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace sparsellm::fuzz {

// Edits that make sense of the model BASE (tests/fuzz/model_edits.h): a fuzzer of bytes finds the
// names in a header only slowly.
class RandomEdits {
 public:
  explicit RandomEdits(uint32_t seed) : random_(seed) {}

  // A line, without its end.
  std::string line(size_t base);
  // A first line with some of `words`, and a few edits; of every third checksums and manifest
  // become right.
  std::string script(std::string_view words);
  // The script with a line more, less or changed, of at most this many bytes.
  std::string changed(std::string_view script, size_t max_bytes);

 private:
  size_t below(size_t count) { return random_() % count; }
  template <class List>
  auto one_of(const List& list) {
    return list[below(std::size(list))];
  }
  std::string letter(size_t count);
  std::string value();
  std::string member(size_t base, size_t file);

  std::mt19937 random_;
};

// Of a target whose inputs are edits: words that their first lines may have, with spaces between.
extern const std::string_view kFirstLineWords;

}  // namespace sparsellm::fuzz
