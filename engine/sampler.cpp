#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/error.h"

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

// Stafford's variant 13 of the 64-bit finalizer, as in SplitMix64 (Steele et al. 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Uniform in [0, 1): the index-th number of the stream `seed`.
double uniform(uint64_t seed, int64_t index) {
  const uint64_t bits = mix(mix(seed) + (static_cast<uint64_t>(index) + 1) * 0x9e3779b97f4a7c15u);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

int32_t greedy(std::span<const float> logits, std::span<const int32_t> banned) {
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if ((best < 0 || logits[i] > logits[best]) &&
        std::find(banned.begin(), banned.end(), id) == banned.end()) {
      best = id;
    }
  }
  return best;
}

std::vector<Candidate> allowed_candidates(std::span<const float> logits,
                                          std::span<const int32_t> banned) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates.push_back({.logit = logits[i], .id = static_cast<int32_t>(i), .weight = 0.0});
  }
  for (int32_t id : banned) {
    std::erase_if(candidates, [id](const Candidate& c) { return c.id == id; });
  }
  return candidates;
}

void keep_top_k(std::vector<Candidate>& candidates, int32_t top_k) {
  if (top_k > 0 && static_cast<size_t>(top_k) < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + (top_k - 1), candidates.end(),
                     ranks_before);
    candidates.resize(static_cast<size_t>(top_k));
  }
}

void set_weights(std::vector<Candidate>& candidates, float temperature) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const Candidate& c : candidates) {
    largest = std::max(largest, c.logit);
  }
  for (Candidate& c : candidates) {
    // Equal logits have equal weights, infinite ones too.
    c.weight =
        c.logit == largest ? 1.0 : std::exp((static_cast<double>(c.logit) - largest) / temperature);
  }
}

void keep_top_p(std::vector<Candidate>& candidates, float top_p) {
  if (top_p >= 1.0f) {
    return;
  }
  std::sort(candidates.begin(), candidates.end(), ranks_before);
  double total = 0.0;
  for (const Candidate& c : candidates) {
    total += c.weight;
  }
  double sum = 0.0;
  size_t kept = 0;
  while (kept < candidates.size() && (kept == 0 || sum < top_p * total)) {
    sum += candidates[kept++].weight;
  }
  candidates.resize(kept);
}

int32_t draw(std::vector<Candidate>& candidates, double u) {
  // In the order of the ids: the same draw whichever filter left the candidates in which order.
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0.0;
  for (const Candidate& c : candidates) {
    total += c.weight;
  }
  double rest = u * total;
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

}  // namespace

void validate(const SamplingParams& params) {
  require(params.temperature >= 0.0f && std::isfinite(params.temperature),
          "temperature {} is not a number >= 0", params.temperature);
  require(params.top_k >= 0, "top_k {} is negative", params.top_k);
  require(params.top_p > 0.0f && params.top_p <= 1.0f, "top_p {} is not in (0, 1]", params.top_p);
  require(params.min_p >= 0.0f && params.min_p <= 1.0f, "min_p {} is not in [0, 1]", params.min_p);
}

int32_t sample_token(std::span<const float> logits, const SamplingParams& params,
                     std::span<const int32_t> banned, uint64_t seed, int64_t index) {
  require(std::none_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); }),
          "the model's logits contain NaN");
  if (params.temperature == 0.0f) {
    const int32_t best = greedy(logits, banned);
    require(best >= 0, "every token is banned");
    return best;
  }
  std::vector<Candidate> candidates = allowed_candidates(logits, banned);
  require(!candidates.empty(), "every token is banned");
  keep_top_k(candidates, params.top_k);
  set_weights(candidates, params.temperature);
  keep_top_p(candidates, params.top_p);
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < params.min_p; });
  return draw(candidates, uniform(seed, index));
}

}  // namespace sparsellm
