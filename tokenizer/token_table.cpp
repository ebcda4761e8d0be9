#include "tokenizer/token_table.h"

#include <algorithm>
#include <utility>

namespace sparsellm {

bool TokenTable::add(int32_t id, std::string bytes) {
  vocab_size_ = std::max(vocab_size_, int64_t{id} + 1);
  return tokens_.try_emplace(id, Token{std::move(bytes)}).second;
}

void TokenTable::replace(int32_t id, std::string bytes) { tokens_.at(id).bytes = std::move(bytes); }

void TokenTable::set_special(int32_t id, bool special) { tokens_.at(id).special = special; }

std::string TokenTable::bytes(int32_t id, bool show_special) const {
  const auto found = tokens_.find(id);
  const bool is_shown = found != tokens_.end() && (show_special || !found->second.special);
  return is_shown ? found->second.bytes : "";
}

}  // namespace sparsellm
