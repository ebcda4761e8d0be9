#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <vector>

#include "engine/logit_scan.h"
#include "engine/penalties.h"
#include "kernels/base/error.h"
#include "kernels/counter_random.h"

namespace sparsellm {
namespace {

struct Candidate {
  float logit;
  int32_t id;
  double weight;  // proportional to the probability; 1 for the largest logit
};

// Larger logits first; the smaller id of equal ones.
bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Ids from begin to before end.
struct IdRange {
  int64_t begin;
  int64_t end;
};

// What the banned ids leave of the vocabulary, ascending; no range is empty.
std::vector<IdRange> allowed_ranges(int64_t vocabulary, std::span<const int32_t> banned) {
  std::vector<int32_t> sorted(banned.begin(), banned.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<IdRange> ranges;
  int64_t begin = 0;
  for (int32_t id : sorted) {
    if (id < begin || id >= vocabulary) {
      continue;
    }
    if (id > begin) {
      ranges.push_back({begin, id});
    }
    begin = int64_t{id} + 1;
  }
  if (begin < vocabulary) {
    ranges.push_back({begin, vocabulary});
  }
  return ranges;
}

constexpr std::string_view kNothingLeft = "every token is banned";
constexpr float kForbidden = -std::numeric_limits<float>::infinity();  // a logit_bias makes it so

int32_t greedy(std::span<const float> logits, std::span<const IdRange> allowed) {
  size_t best = static_cast<size_t>(allowed.front().begin);
  for (const IdRange& range : allowed) {
    const auto begin = static_cast<size_t>(range.begin);
    const size_t index =
        begin + index_of_largest(logits.subspan(begin, static_cast<size_t>(range.end) - begin));
    if (logits[index] > logits[best]) {
      best = index;
    }
  }
  require(logits[best] > kForbidden, kNothingLeft);
  return static_cast<int32_t>(best);
}

// The allowed ids whose logits are not below `lower_bound`, in the order of the ids. All filters
// keep that order: the same draw whichever of them was at work.
std::vector<Candidate> candidates_from(std::span<const float> logits,
                                       std::span<const IdRange> allowed, float lower_bound) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (const IdRange& range : allowed) {
    for (int64_t id = range.begin; id < range.end; ++id) {
      const float logit = logits[static_cast<size_t>(id)];
      if (logit >= lower_bound && logit > kForbidden) {
        candidates.push_back({.logit = logit, .id = static_cast<int32_t>(id), .weight = 0.0});
      }
    }
  }
  return candidates;
}

// What no logit among the top_k largest allowed ones is below.
float top_k_bound(std::span<const float> logits, int32_t top_k, size_t banned) {
  return top_k == 0 ? -std::numeric_limits<float>::infinity()
                    : reached_by(logits, static_cast<size_t>(top_k) + banned);
}

void drop_behind(std::vector<Candidate>& candidates, const Candidate& last) {
  std::erase_if(candidates, [last](const Candidate& c) { return ranks_before(last, c); });
}

void keep_top_k(std::vector<Candidate>& candidates, int32_t top_k) {
  if (top_k == 0 || static_cast<size_t>(top_k) >= candidates.size()) {
    return;
  }
  std::vector<Candidate> ranked = candidates;
  const auto last = ranked.begin() + (top_k - 1);
  std::nth_element(ranked.begin(), last, ranked.end(), ranks_before);
  drop_behind(candidates, *last);
}

void set_weights(std::vector<Candidate>& candidates, float temperature) {
  const float largest = std::min_element(candidates.begin(), candidates.end(), ranks_before)->logit;
  for (Candidate& c : candidates) {
    c.weight = std::exp((static_cast<double>(c.logit) - largest) / temperature);
  }
}

double total_weight(std::span<const Candidate> candidates) {
  double total = 0.0;
  for (const Candidate& c : candidates) {
    total += c.weight;
  }
  return total;
}

// The last of the shortest run of the largest candidates whose weights reach `target`: bisection
// of the length, where each step orders and adds up half as many candidates as the one before.
Candidate last_to_reach(double target, std::vector<Candidate> candidates) {
  auto first = candidates.begin();  // what is before it does not reach the target
  auto last = candidates.end();     // what is before it does
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, ranks_before);
    const double weight = total_weight({first, middle});
    if (weight < target) {
      target -= weight;
      first = middle;
    } else {
      last = middle;
    }
  }
  return *first;
}

void keep_top_p(std::vector<Candidate>& candidates, float top_p) {
  if (top_p >= 1.0f) {
    return;
  }
  const double total = total_weight(candidates);
  // All candidates below this weight together have less than half of 1 - top_p. They are the bulk
  // of a vocabulary, and need not be ordered.
  const double negligible = 0.5 * (1.0 - top_p) * total / static_cast<double>(candidates.size());
  std::erase_if(candidates, [negligible](const Candidate& c) { return c.weight < negligible; });
  drop_behind(candidates, last_to_reach(top_p * total, candidates));
}

void keep_min_p(std::vector<Candidate>& candidates, float min_p) {
  if (min_p > 0.0f) {
    std::erase_if(candidates, [min_p](const Candidate& c) { return c.weight < min_p; });
  }
}

int32_t draw(std::span<const Candidate> candidates, double u) {
  double rest = u * total_weight(candidates);
  for (const Candidate& c : candidates) {
    if (rest < c.weight) {
      return c.id;
    }
    rest -= c.weight;
  }
  // Rounding used up the last weight.
  const auto last = std::find_if(candidates.rbegin(), candidates.rend(),
                                 [](const Candidate& c) { return c.weight > 0.0; });
  return last->id;
}

int32_t choose(std::span<const float> logits, const SamplingParams& params,
               std::span<const int32_t> banned, double u) {
  const std::vector<IdRange> allowed = allowed_ranges(std::ssize(logits), banned);
  require(!allowed.empty(), kNothingLeft);
  if (params.temperature == 0.0f) {
    return greedy(logits, allowed);
  }
  std::vector<Candidate> candidates =
      candidates_from(logits, allowed, top_k_bound(logits, params.top_k, banned.size()));
  require(!candidates.empty(), kNothingLeft);
  keep_top_k(candidates, params.top_k);
  set_weights(candidates, params.temperature);
  keep_top_p(candidates, params.top_p);
  keep_min_p(candidates, params.min_p);
  return draw(candidates, u);
}

void validate(std::span<const LogitBias> biases) {
  std::set<int32_t> tokens;
  for (const LogitBias& entry : biases) {
    require(std::isfinite(entry.bias) || entry.bias == kForbidden,
            "logit_bias {} of token {} is neither a finite number nor -infinity", entry.bias,
            entry.token);
    require(tokens.insert(entry.token).second, "logit_bias has token {} twice", entry.token);
  }
}

}  // namespace

void validate(const SamplingParams& params) {
  require(params.temperature >= 0.0f && std::isfinite(params.temperature),
          "temperature {} is not a number >= 0", params.temperature);
  require(params.top_k >= 0, "top_k {} is negative", params.top_k);
  require(params.top_p > 0.0f && params.top_p <= 1.0f, "top_p {} is not in (0, 1]", params.top_p);
  require(params.min_p >= 0.0f && params.min_p <= 1.0f, "min_p {} is not in [0, 1]", params.min_p);
  require(params.repetition_penalty > 0.0f && std::isfinite(params.repetition_penalty),
          "repetition_penalty {} is not a number > 0", params.repetition_penalty);
  require(std::isfinite(params.frequency_penalty), "frequency_penalty {} is not finite",
          params.frequency_penalty);
  require(std::isfinite(params.presence_penalty), "presence_penalty {} is not finite",
          params.presence_penalty);
  validate(params.logit_bias);
}

int32_t sample_token(std::span<const float> logits, const SamplingParams& params,
                     const TokenHistory& history, std::span<const int32_t> banned, uint64_t seed,
                     int64_t index) {
  const int64_t length = std::ssize(history.tokens);
  require(history.prompt_length >= 0 && history.prompt_length <= length,
          "the prompt's length {} is not in [0, {}]", history.prompt_length, length);
  require(all_finite(logits), kLogitsNotFinite);
  const double u = uniform(seed, index);
  if (!adjusts_logits(params, history)) {
    return choose(logits, params, banned, u);
  }
  const std::vector<float> adjusted = adjusted_logits(logits, params, history);
  // Parameters that nobody has validated can make it so.
  require(std::all_of(adjusted.begin(), adjusted.end(),
                      [](float x) { return x < std::numeric_limits<float>::infinity(); }),
          "logit_bias or a penalty makes a logit NaN or infinity");
  return choose(adjusted, params, banned, u);
}

uint64_t sample_seed(uint64_t seed, int32_t sample) {
  return sample == 0 ? seed : mix_bits(seed + static_cast<uint64_t>(sample) * kRandomStep);
}

}  // namespace sparsellm
