#include "tests/engine/request_bits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <span>
#include <utility>

namespace sparsellm::testing {

std::vector<RequestBits> run_bits(Engine& engine, std::vector<Request> requests) {
  std::vector<RequestBits> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_logits = [&bits = results[i].bits](int64_t, std::span<const float> logits) {
      std::transform(logits.begin(), logits.end(), std::back_inserter(bits),
                     [](float logit) { return std::bit_cast<uint32_t>(logit); });
    };
  }
  const std::vector<Completion> done = engine.generate(std::move(requests));
  for (size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].error, "");
    results[i].tokens = done[i].tokens;
  }
  EXPECT_EQ(engine.free_pages(), engine.total_pages());
  return results;
}

std::vector<Request> sampled_crowd() {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    Request& request = requests.emplace_back();
    for (int32_t at = 0; at < 9 + 4 * i; ++at) {
      request.prompt.push_back(1 + (7 * at + 13 * i) % 60);
    }
    request.sampling.temperature = 1.0f;
    request.max_tokens = 30;
    request.ignore_eos = true;
    request.seed = static_cast<uint64_t>(i);
  }
  return requests;
}

}  // namespace sparsellm::testing
