#include "tokenizer/bpe.h"

#include <queue>
#include <tuple>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tokenizer/byte_alphabet.h"

namespace sparsellm {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// A merge that was possible when it was queued.
struct Candidate {
  int32_t rank;
  int32_t position;  // of the left symbol
  int32_t id;

  // std::priority_queue hands out the largest first.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return std::tie(a.rank, a.position) > std::tie(b.rank, b.position);
  }
};

constexpr int32_t kNone = -1;

}  // namespace

// Symbols of a word are a linked list inside an array; a merged right symbol stays in the array.
struct BytePairEncoder::Symbol {
  int32_t id;  // kNone once it is merged into its left neighbour
  int32_t previous;
  int32_t next;
};

std::optional<int32_t> BpeModel::find(const std::string& token) const {
  const auto found = vocabulary.find(token);
  return found == vocabulary.end() ? std::nullopt : std::optional(found->second);
}

BytePairEncoder::BytePairEncoder(const BpeModel& model, std::string_view source)
    : fuse_unknown_(model.fuse_unknown) {
  require(!model.vocabulary.empty(), "{}: the vocabulary is empty", source);
  std::unordered_map<int32_t, std::string_view> tokens;
  for (const auto& [token, id] : model.vocabulary) {
    const auto [other, is_new] = tokens.emplace(id, token);
    if (!is_new) {
      fail("{}: the tokens {} and {} have the same id {}", source, quote(token),
           quote(other->second), id);
    }
  }

  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = model.find(byte_symbol(static_cast<uint8_t>(byte)));
  }
  if (model.unknown_token) {
    unknown_id_ = model.find(*model.unknown_token);
  }

  merges_.reserve(model.merges.size());
  int32_t rank = 0;
  for (const auto& merge : model.merges) {
    const auto id_of = [&](const std::string& token) {
      const std::optional<int32_t> id = model.find(token);
      if (!id) {
        fail("{}: merge {} ({} and {}) needs the token {}, which is not there", source, rank + 1,
             quote(merge.first), quote(merge.second), quote(token));
      }
      return *id;
    };
    const int32_t left = id_of(merge.first);
    const int32_t right = id_of(merge.second);
    merges_.insert_or_assign(pair_key(left, right), Merge{rank, id_of(merge.first + merge.second)});
    ++rank;
  }

  if (model.ignore_merges) {
    for (const auto& [token, id] : model.vocabulary) {
      if (auto bytes = bytes_of_symbols(token)) {
        whole_words_.emplace(*std::move(bytes), id);
      }
    }
  }
}

const BytePairEncoder::Merge* BytePairEncoder::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairEncoder::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (const auto found = whole_words_.find(word); found != whole_words_.end()) {
    ids.push_back(found->second);
    return;
  }
  std::vector<Symbol> symbols = symbols_of(word);
  merge_all(symbols);
  for (const Symbol& symbol : symbols) {
    if (symbol.id != kNone) {
      ids.push_back(symbol.id);
    }
  }
}

std::vector<BytePairEncoder::Symbol> BytePairEncoder::symbols_of(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  bool after_unknown = false;
  for (char c : word) {
    const auto byte = static_cast<uint8_t>(c);
    const bool is_unknown = !byte_ids_[byte];
    require(!is_unknown || unknown_id_, "the byte 0x{:02x} of the text has no token", byte);
    if (!(is_unknown && after_unknown && fuse_unknown_)) {
      const auto position = static_cast<int32_t>(symbols.size());
      symbols.push_back({is_unknown ? *unknown_id_ : *byte_ids_[byte], position - 1, position + 1});
    }
    after_unknown = is_unknown;
  }
  if (!symbols.empty()) {
    symbols.back().next = kNone;
  }
  return symbols;
}

void BytePairEncoder::merge_all(std::vector<Symbol>& symbols) const {
  std::priority_queue<Candidate> queue;
  const auto offer = [&](int32_t left, int32_t right) {
    if (left == kNone || right == kNone) {
      return;
    }
    if (const Merge* merge = find_merge(symbols[left].id, symbols[right].id)) {
      queue.push({merge->rank, left, merge->id});
    }
  };
  for (int32_t i = 1; i < static_cast<int32_t>(symbols.size()); ++i) {
    offer(i - 1, i);
  }

  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    Symbol& left = symbols[candidate.position];
    if (left.id == kNone || left.next == kNone) {
      continue;
    }
    Symbol& right = symbols[left.next];
    // An earlier merge may have changed the pair, but never into one that becomes the same token.
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->id != candidate.id) {
      continue;
    }
    left.id = candidate.id;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) {
      symbols[left.next].previous = candidate.position;
    }
    offer(left.previous, candidate.position);
    offer(candidate.position, left.next);
  }
}

}  // namespace sparsellm
