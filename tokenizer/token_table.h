#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

namespace sparsellm {

// The bytes of every token by its id. Ids may be far apart.
class TokenTable {
 public:
  // False, and without effect, if the id is taken.
  bool add(int32_t id, std::string bytes);
  void replace(int32_t id, std::string bytes);  // `id` must be there
  void set_special(int32_t id, bool special);   // control tokens; `id` must be there

  bool contains(int32_t id) const { return tokens_.count(id) > 0; }
  // Empty for a special token unless requested, and for an id that is not there.
  std::string bytes(int32_t id, bool show_special) const;
  int64_t vocab_size() const { return vocab_size_; }  // the largest id + 1

 private:
  struct Token {
    std::string bytes;
    bool special = false;
  };
  std::unordered_map<int32_t, Token> tokens_;
  int64_t vocab_size_ = 0;
};

}  // namespace sparsellm
