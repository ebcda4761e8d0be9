#include "tokenizer/pretokenize.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "tokenizer/find_text.h"

namespace sparsellm {
namespace {

// "Language Models are Unsupervised Multitask Learners", Radford et al. 2019, the released code.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

Pretokenizer::Pretokenizer(const PretokenizerOptions& options)
    : add_prefix_space_(options.add_prefix_space) {
  require(options.steps.size() <= kMaxSteps,
          "the tokenizer splits text in {} steps; at most {} are supported", options.steps.size(),
          kMaxSteps);
  for (const PretokenizerStep& step : options.steps) {
    if (const auto* metaspace = std::get_if<MetaspaceStep>(&step)) {
      steps_.emplace_back(*metaspace);
      continue;
    }
    Split split{.step = std::get<SplitStep>(step), .regex = {}};
    if (split.step.kind == SplitStep::Pattern::regex) {
      split.regex.emplace(split.step.pattern);
    }
    steps_.emplace_back(std::move(split));
  }
  if (options.use_gpt2_pattern) {
    gpt2_.emplace(kGpt2Pattern);
  }
}

bool Pretokenizer::removes_text() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    const auto* split = std::get_if<Split>(&step);
    return split != nullptr && split->step.behavior == SplitBehavior::removed;
  });
}

void Pretokenizer::for_each_word(std::string_view text, bool begins_text, MatchLimit& limit,
                                 const Visit& visit) const {
  if (!text.empty()) {
    cut({text, begins_text}, 0, limit, visit);
  }
}

void Pretokenizer::for_each_word(std::string_view text, const Visit& visit) const {
  MatchLimit limit(text.size());
  for_each_word(text, true, limit, visit);
}

// A word that steps_[level] and those after it have yet to cut.
void Pretokenizer::cut(Word word, size_t level, MatchLimit& limit, const Visit& visit) const {
  if (level == steps_.size()) {
    return finish(word.text, limit, visit);
  }
  if (const auto* metaspace = std::get_if<MetaspaceStep>(&steps_[level])) {
    for_each_metaspace_word(*metaspace, word.text, word.begins_text,
                            [&](std::string_view part, bool begins_text) {
                              limit.pass(part.size());
                              cut({part, begins_text}, level + 1, limit, visit);
                            });
    return;
  }
  split(std::get<Split>(steps_[level]), word.text, limit, [&](std::string_view part) {
    const bool begins_text = word.begins_text && part.data() == word.text.data();
    cut({part, begins_text}, level + 1, limit, visit);
  });
}

void Pretokenizer::split(const Split& split, std::string_view word, MatchLimit& limit,
                         const SplitPieces::Visit& visit) {
  SplitPieces pieces(split.step.behavior, visit);
  const bool invert = split.step.invert;
  if (split.regex) {
    split.regex->split(word, limit, [&](std::string_view part, bool is_match) {
      pieces.add(part, is_match != invert);
    });
  } else {
    const std::string& pattern = split.step.pattern;
    for (size_t done = 0; done < word.size();) {
      const size_t found = std::min(find_text(word, pattern, done), word.size());
      pieces.add(word.substr(done, found - done), invert);
      pieces.add(word.substr(found, pattern.size()), !invert);
      limit.pass(found + pattern.size() - done);
      done = found + pattern.size();
    }
  }
  pieces.finish();
}

void Pretokenizer::finish(std::string_view word, MatchLimit& limit, const Visit& visit) const {
  std::string spaced;
  if (add_prefix_space_ && word.front() != ' ') {
    spaced.assign(" ").append(word);
    word = spaced;
  }
  if (gpt2_) {
    gpt2_->split(word, limit, [&](std::string_view part, bool /*is_match*/) { visit(part); });
  } else {
    visit(word);
  }
}

}  // namespace sparsellm
