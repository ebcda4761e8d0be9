#include "tokenizer/bpe.h"

#include <algorithm>
#include <limits>
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
constexpr int32_t kGrowth = 16;
constexpr int64_t kStepsPerCheckpoint = 1 << 18;
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

}  // namespace

// Symbols of a word are a linked list inside an array; a merged right symbol stays in the array.
struct BytePairEncoder::Symbol {
  int32_t id;  // kNone once it is merged into its left neighbour
  int32_t previous;
  int32_t next;
  int32_t begin;  // its first byte in the word
};

BytePairEncoder::BytePairEncoder(const BpeModel& model, std::string_view source, int32_t window)
    : symbols_(model, source), fuse_unknown_(model.fuse_unknown), window_(window) {
  require(!model.vocabulary.empty(), "{}: the vocabulary is empty", source);
  std::unordered_map<int32_t, std::string_view> tokens;
  for (const auto& [token, id] : model.vocabulary) {
    const auto [other, is_new] = tokens.emplace(id, token);
    if (!is_new) {
      fail("{}: the tokens {} and {} have the same id {}", source, quote(token),
           quote(other->second), id);
    }
  }

  merges_.reserve(model.merges.size());
  first_rank_.reserve(model.merges.size());
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
    // Of a pair that is there twice the lower rank, which is safe: see merge_all.
    for (const int32_t lead : symbols_.leads_of(merge.second)) {
      first_rank_.emplace(pair_key(left, lead), rank);
    }
    ++rank;
  }

  if (model.ignore_merges) {
    for (const auto& [token, id] : model.vocabulary) {
      if (model.symbols == BpeModel::Symbols::characters) {
        whole_words_.emplace(token, id);
      } else if (auto bytes = bytes_of_symbols(token)) {
        whole_words_.emplace(*std::move(bytes), id);
      }
    }
  }
}

const BytePairEncoder::Merge* BytePairEncoder::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// The lowest rank of a merge of the token `left` with one that begins with the symbol `next`.
int32_t BytePairEncoder::first_rank(int32_t left, int32_t next) const {
  const auto found = first_rank_.find(pair_key(left, next));
  return found == first_rank_.end() ? kNoRank : found->second;
}

void BytePairEncoder::encode(std::string_view word, std::vector<int32_t>& ids,
                             const std::function<void()>& checkpoint) const {
  if (const auto found = whole_words_.find(word); found != whole_words_.end()) {
    ids.push_back(found->second);
    return;
  }
  std::vector<Symbol> symbols;
  int32_t count = window_;
  for (size_t done = 0; done < word.size();) {
    const size_t read = read_symbols(word, done, count, symbols);
    const int32_t settled = merge_all(symbols, word, read, checkpoint);
    done = settled == std::ssize(symbols) ? read : static_cast<size_t>(symbols[settled].begin);
    for (int32_t i = 0; i < settled; ++i) {
      if (symbols[i].id != kNone) {
        ids.push_back(symbols[i].id);
      }
    }
    // A window that settles little would be read again and again. So much larger, the time for what
    // is read again does not count.
    count = settled > count / 2 ? window_ : kGrowth * std::min(count, kNoRank / kGrowth);
    if (done < word.size()) {
      checkpoint();
    }
  }
}

// At most `count` symbols, from the byte `begin` on; returns the byte after them. A run of unknown
// symbols that are one counts as one.
size_t BytePairEncoder::read_symbols(std::string_view word, size_t begin, int32_t count,
                                     std::vector<Symbol>& symbols) const {
  symbols.clear();
  symbols.reserve(std::min(word.size() - begin, static_cast<size_t>(count)));
  bool after_unknown = false;
  size_t end = begin;
  while (end < word.size()) {
    const BpeSymbols::Symbol symbol = symbols_.read(word, end);
    if (!(symbol.is_unknown && after_unknown && fuse_unknown_)) {
      const auto position = static_cast<int32_t>(symbols.size());
      if (position == count) {
        break;
      }
      symbols.push_back({.id = symbol.id,
                         .previous = position - 1,
                         .next = position + 1,
                         .begin = static_cast<int32_t>(end)});
    }
    after_unknown = symbol.is_unknown;
    end += static_cast<size_t>(symbol.bytes);
  }
  if (!symbols.empty()) {
    symbols.back().next = kNone;
  }
  return end;
}

// `symbols` are those of the word up to its byte `end`. Returns the number of symbols, from the
// first on, that are as they are when the whole word is merged: all of them if the word ends there.
// Else what follows may take the last symbols away, one after the other from the right: a symbol as
// soon as it has a merge with something on its right that comes before all that are left to do
// here. From then on it is left alone, and its left neighbour is the last. No merge between settled
// symbols depends on it.
int32_t BytePairEncoder::merge_all(std::vector<Symbol>& symbols, std::string_view word, size_t end,
                                   const std::function<void()>& checkpoint) const {
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

  auto last = static_cast<int32_t>(symbols.size()) - 1;  // that what follows has not taken away
  const auto rank_of_last = [&] {
    if (end == word.size() || last == kNone) {
      return kNoRank;
    }
    // What is after it may be merged already; it begins with the same symbol as before.
    const int32_t next = symbols[last].next;
    const size_t at = next == kNone ? end : static_cast<size_t>(symbols[next].begin);
    return first_rank(symbols[last].id, symbols_.read(word, at).id);
  };
  int32_t last_rank = rank_of_last();
  const auto give_up_before = [&](int32_t rank) {
    while (last_rank < rank) {
      last = symbols[last].previous;
      last_rank = rank_of_last();
    }
  };

  for (int64_t step = 1; !queue.empty(); ++step) {
    if (step % kStepsPerCheckpoint == 0) {
      checkpoint();
    }
    const Candidate candidate = queue.top();
    queue.pop();
    give_up_before(candidate.rank);
    Symbol& left = symbols[candidate.position];
    if (candidate.position >= last || left.id == kNone || left.next == kNone) {
      continue;
    }
    Symbol& right = symbols[left.next];
    // An earlier merge may have changed the pair, but never into one that becomes the same token.
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->id != candidate.id) {
      continue;
    }
    const bool takes_last = left.next == last;
    left.id = candidate.id;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) {
      symbols[left.next].previous = candidate.position;
    }
    if (takes_last) {
      last = candidate.position;
      last_rank = rank_of_last();
    }
    offer(left.previous, candidate.position);
    offer(candidate.position, left.next);
  }
  give_up_before(kNoRank);
  if (last == kNone) {
    return 0;
  }
  const auto all = static_cast<int32_t>(std::ssize(symbols));
  return symbols[last].next == kNone ? all : symbols[last].next;
}

}  // namespace sparsellm
