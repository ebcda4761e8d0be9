#include "tokenizer/pretokenize.h"

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// "Language Models are Unsupervised Multitask Learners", Radford et al. 2019, the released code.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

Pretokenizer::Pretokenizer(const PretokenizerOptions& options)
    : add_prefix_space_(options.add_prefix_space) {
  require(options.split_patterns.size() <= kMaxSplitPatterns,
          "the tokenizer splits text by {} regular expressions; at most {} are supported",
          options.split_patterns.size(), kMaxSplitPatterns);
  for (const std::string& pattern : options.split_patterns) {
    splits_.emplace_back(pattern);
  }
  if (options.use_gpt2_pattern) {
    gpt2_.emplace(kGpt2Pattern);
  }
}

void Pretokenizer::for_each_word(std::string_view text, MatchLimit& limit,
                                 const Visit& visit) const {
  if (!text.empty()) {
    split_word(text, 0, limit, visit);
  }
}

void Pretokenizer::for_each_word(std::string_view text, const Visit& visit) const {
  MatchLimit limit(text.size());
  for_each_word(text, limit, visit);
}

// A word that splits_[level] and those after it have yet to cut.
void Pretokenizer::split_word(std::string_view word, size_t level, MatchLimit& limit,
                              const Visit& visit) const {
  if (level < splits_.size()) {
    splits_[level].split(word, limit,
                         [&](std::string_view part) { split_word(part, level + 1, limit, visit); });
    return;
  }
  std::string spaced;
  if (add_prefix_space_ && word.front() != ' ') {
    spaced.assign(" ").append(word);
    word = spaced;
  }
  if (gpt2_) {
    gpt2_->split(word, limit, visit);
  } else {
    visit(word);
  }
}

}  // namespace sparsellm
