#include "tokenizer/pretokenize.h"

#include <utility>

namespace sparsellm {
namespace {

// "Language Models are Unsupervised Multitask Learners", Radford et al. 2019, the released code.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

Pretokenizer::Pretokenizer(const PretokenizerOptions& options)
    : splits_(options.split_patterns.begin(), options.split_patterns.end()),
      add_prefix_space_(options.add_prefix_space) {
  if (options.use_gpt2_pattern) {
    gpt2_.emplace(kGpt2Pattern);
  }
}

void Pretokenizer::for_each_word(std::string_view text,
                                 const std::function<void(std::string_view word)>& visit) const {
  std::vector<std::string_view> words;
  if (!text.empty()) {
    words.push_back(text);
  }
  for (const Regex& split : splits_) {
    std::vector<std::string_view> parts;
    for (std::string_view word : words) {
      split.split(word, parts);
    }
    words = std::move(parts);
  }

  std::string spaced;
  std::vector<std::string_view> parts;
  for (std::string_view word : words) {
    if (add_prefix_space_ && word.front() != ' ') {
      spaced.assign(" ").append(word);
      word = spaced;
    }
    parts.clear();
    if (gpt2_) {
      gpt2_->split(word, parts);
    } else {
      parts.push_back(word);
    }
    for (std::string_view part : parts) {
      visit(part);
    }
  }
}

}  // namespace sparsellm
