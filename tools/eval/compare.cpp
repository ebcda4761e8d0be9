#include "tools/eval/compare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <compare>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "tools/cli/statistics.h"
#include "tools/eval/divergence.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxLogitBytes = int64_t{1} << 30;
constexpr int64_t kMaxStepTokens = 2048;
constexpr size_t kMaxContextBytes = 80;

// Which token: tokens[index] of a window.
struct Place {
  size_t window = 0;
  size_t index = 0;

  friend auto operator<=>(const Place&, const Place&) = default;
};

// Drives one of the two engines, and keeps its logits until the other's are there too.
class Scorer {
 public:
  Scorer(const ComparedModel& model, ScoredRows rows) : model_(model), rows_(rows) {}
  // The callbacks of requests that have not ended, because of an exception, refer to this object.
  ~Scorer() {
    for (int64_t id : std::vector<int64_t>(requests_)) {  // each takes itself out
      model_.engine.cancel(id);
    }
  }
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  // `window` has to live until it is scored.
  void submit(size_t number, const TextWindow& window) {
    const auto on_scored = [this, number](size_t index, std::span<const float> values) {
      logits[{number, index}].assign(values.begin(), values.end());
    };
    const auto on_token = [this](const TokenEvent& event) {
      if (event.finish) {
        std::erase(requests_, event.request);
      }
      if (!event.error.empty() && error_.empty()) {
        error_ = event.error;
      }
    };
    requests_.push_back(model_.engine.submit(scored_request(window, rows_, on_scored), on_token));
  }

  // False when all windows are scored.
  bool step() {
    const bool worked = model_.engine.step();
    require(error_.empty(), "{}: {}", model_.name, error_);
    return worked;
  }

  std::map<Place, std::vector<float>> logits;  // that lead to a token

 private:
  const ComparedModel& model_;
  const ScoredRows rows_;
  std::vector<int64_t> requests_;
  std::string error_;
};

// The windows, cut with A's tokenizer, if B's makes the same of the text.
std::vector<TextWindow> cut_alike(const ComparedModel& a, const ComparedModel& b,
                                  const std::string& text, const ComparisonOptions& options) {
  const int64_t vocab_a = a.engine.config().vocab_size;
  const int64_t vocab_b = b.engine.config().vocab_size;
  require(vocab_a == vocab_b, "the vocabularies do not fit: {} has {} tokens, {} has {}", a.name,
          vocab_a, b.name, vocab_b);
  const auto cut = [&](const ComparedModel& model) {
    return naming(model.name, [&] {
      return cut_windows(model.engine.tokenizer(), text, options.context, options.protocol);
    });
  };
  std::vector<TextWindow> windows = cut(a);
  const std::vector<TextWindow> windows_b = cut(b);
  for (size_t i = 0; i < std::min(windows.size(), windows_b.size()); ++i) {
    const std::vector<int32_t>& ids_a = windows[i].tokens;
    const std::vector<int32_t>& ids_b = windows_b[i].tokens;
    const auto [in_a, in_b] = std::mismatch(ids_a.begin(), ids_a.end(), ids_b.begin());
    if (in_a == ids_a.end()) {
      continue;
    }
    require(in_a != ids_a.begin(), "the tokenizers do not fit: BOS is {} in {}, but {} in {}",
            *in_a, a.name, *in_b, b.name);
    fail("the tokenizers do not fit: token {} of the text is {} in {}, but {} in {}",
         windows[i].text_index(static_cast<size_t>(in_a - ids_a.begin())), *in_a, a.name, *in_b,
         b.name);
  }
  require(windows.size() == windows_b.size(),
          "the tokenizers do not fit: the text has {} windows in {}, but {} in {}", windows.size(),
          a.name, windows_b.size(), b.name);
  return windows;
}

// Collects what is known of the tokens so far, and adds it up in the order of the text: it comes in
// that of the steps.
class Totals {
 public:
  explicit Totals(const std::vector<TextWindow>& windows)
      : windows_(windows), scores_(windows.size() * windows.front().scored()) {}

  void add(const Place& place, const Divergence& d) {
    const TextWindow& window = windows_[place.window];
    scores_[place.window * window.scored() + place.index - window.first_scored] = {
        .kl = d.kl, .log_prob_a = d.p.log_prob, .log_prob_b = d.q.log_prob};
    agreements_ += d.p.top == d.q.top ? 1 : 0;
    top1_gap_max_ = std::max(top1_gap_max_, d.top1_gap);
    if (tokens_ == 0 || d.kl > worst_.kl || (d.kl == worst_.kl && place < worst_place_)) {
      worst_ = d;
      worst_place_ = place;
    }
    ++tokens_;
  }

  int64_t tokens() const { return tokens_; }
  int64_t to_score() const { return std::ssize(scores_); }
  const Divergence& worst() const { return worst_; }
  const Place& worst_place() const { return worst_place_; }

  // Of all tokens: all but the worst one, the windows and the time.
  Comparison summary(const ComparedModel& a, const ComparedModel& b) const {
    require(tokens_ == to_score(), "{} of {} tokens were scored by both models", tokens_,
            to_score());
    SampleMean kl;
    SampleMean nll_a;  // negative log-likelihood
    SampleMean nll_b;
    SampleMean log_ratio;
    std::vector<double> all_kl;
    all_kl.reserve(scores_.size());
    for (const Scores& token : scores_) {
      kl.add(token.kl);
      nll_a.add(-token.log_prob_a);
      nll_b.add(-token.log_prob_b);
      log_ratio.add(token.log_prob_a - token.log_prob_b);
      all_kl.push_back(token.kl);
    }
    Comparison result;
    result.tokens = tokens();
    result.kl = kl.mean();
    result.kl_median = quantile(all_kl, 0.5);
    result.kl_99 = quantile(all_kl, 0.99);
    result.kl_999 = quantile(all_kl, 0.999);
    result.kl_max = worst_.kl;
    result.top1_agreement =
        100.0 * static_cast<double>(agreements_) / static_cast<double>(tokens());
    result.top1_gap_max = top1_gap_max_;
    result.perplexity_a = finite_exp(nll_a, "the perplexity of " + a.name);
    result.perplexity_b = finite_exp(nll_b, "the perplexity of " + b.name);
    result.perplexity_ratio = finite_exp(log_ratio, "the ratio of the perplexities");
    return result;
  }

 private:
  struct Scores {
    double kl = 0.0;
    double log_prob_a = 0.0;  // of the text's token
    double log_prob_b = 0.0;
  };

  static Estimate finite_exp(const SampleMean& exponent, const std::string& what) {
    const Estimate estimate = exponent.exp_of_mean();
    require(std::isfinite(estimate.value) && std::isfinite(estimate.standard_error),
            "{} is not finite: it is e^{}", what, exponent.mean().value);
    return estimate;
  }

  const std::vector<TextWindow>& windows_;
  std::vector<Scores> scores_;
  int64_t tokens_ = 0;
  int64_t agreements_ = 0;
  double top1_gap_max_ = 0.0;
  Divergence worst_;
  Place worst_place_;
};

// Compares the rows that both have, and drops them.
void compare_rows(Scorer& a, Scorer& b, const std::vector<TextWindow>& windows, ThreadPool& threads,
                  Totals& totals) {
  struct Row {
    Place place;
    std::vector<float> logits_a;
    std::vector<float> logits_b;
    Divergence divergence;
  };
  std::vector<Row> rows;
  for (auto in_a = a.logits.begin(); in_a != a.logits.end();) {
    if (const auto in_b = b.logits.find(in_a->first); in_b != b.logits.end()) {
      rows.push_back({.place = in_a->first,
                      .logits_a = std::move(in_a->second),
                      .logits_b = std::move(in_b->second),
                      .divergence = {}});
      b.logits.erase(in_b);
      in_a = a.logits.erase(in_a);
    } else {
      ++in_a;
    }
  }
  threads.parallel_for(std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const Place& place = rows[i].place;
      rows[i].divergence =
          divergence(rows[i].logits_a, rows[i].logits_b, windows[place.window].tokens[place.index]);
    }
  });
  for (const Row& row : rows) {
    totals.add(row.place, row.divergence);
  }
}

// The end of a text, from the beginning of a character.
std::string tail(const std::string& text, size_t max_bytes) {
  size_t begin = text.size() - std::min(text.size(), max_bytes);
  while (begin > 0 && begin < text.size() && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) {
    ++begin;
  }
  return text.substr(begin);
}

ComparedToken compared_token(const Divergence& d, const TextWindow& window, size_t index,
                             const Tokenizer& tokenizer) {
  const auto bytes = [&](int32_t id) { return tokenizer.token_bytes(id, /*show_special=*/true); };
  const auto top = [&](const Prediction& prediction) {
    return TokenProbability{.id = prediction.top,
                            .bytes = bytes(prediction.top),
                            .probability = prediction.top_probability};
  };
  const std::vector<int32_t> before(window.tokens.begin() + 1,
                                    window.tokens.begin() + static_cast<std::ptrdiff_t>(index));
  const int32_t id = window.tokens[index];
  return {.kl = d.kl,
          .position = window.text_index(index),
          .context = tail(decode(tokenizer, before), kMaxContextBytes),
          .id = id,
          .bytes = bytes(id),
          .probability_a = std::exp(d.p.log_prob),
          .probability_b = std::exp(d.q.log_prob),
          .top_a = top(d.p),
          .top_b = top(d.q)};
}

}  // namespace

ComparisonBatch comparison_batch(int64_t vocab_size, int64_t context, ScoredRows rows) {
  const int64_t bytes =
      checked_mul(2 * static_cast<int64_t>(sizeof(float)), vocab_size, "the logits of a token");
  const int64_t step_tokens = std::clamp(kMaxLogitBytes / bytes, int64_t{1}, kMaxStepTokens);
  const int64_t windows = rows == ScoredRows::decode ? std::min(step_tokens, kDecodedWindows)
                                                     : std::max(int64_t{1}, step_tokens / context);
  return {.step_tokens = step_tokens, .windows = windows};
}

Comparison compare_models(const ComparedModel& a, const ComparedModel& b, const std::string& text,
                          const ComparisonOptions& options) {
  const std::vector<TextWindow> windows = cut_alike(a, b, text, options);
  const auto start = std::chrono::steady_clock::now();
  ThreadPool threads(options.threads);
  Totals totals(windows);
  // With the same windows and limits both engines compute the same tokens in a step, so that the
  // logits of a step find their partners at once.
  Scorer scorer_a(a, options.rows);
  Scorer scorer_b(b, options.rows);
  const auto batch = static_cast<size_t>(
      comparison_batch(a.engine.config().vocab_size, options.context, options.rows).windows);
  for (size_t first = 0; first < windows.size(); first += batch) {
    for (size_t i = first; i < std::min(first + batch, windows.size()); ++i) {
      scorer_a.submit(i, windows[i]);
      scorer_b.submit(i, windows[i]);
    }
    for (bool working = true; working;) {
      const bool a_works = scorer_a.step();
      const bool b_works = scorer_b.step();
      working = a_works || b_works;
      compare_rows(scorer_a, scorer_b, windows, threads, totals);
      options.progress(totals.tokens(), totals.to_score());
    }
  }

  Comparison result = totals.summary(a, b);
  result.windows = std::ssize(windows);
  const Place& place = totals.worst_place();
  result.worst =
      compared_token(totals.worst(), windows[place.window], place.index, a.engine.tokenizer());
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace sparsellm
