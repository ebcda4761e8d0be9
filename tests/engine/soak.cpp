// Many requests of every kind come, wait, are cut off and go, with too little memory for all.

#include "tests/engine/soak.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/paged_kv.h"
#include "tests/testing/paths.h"
#include "tests/testing/sanitized.h"

namespace sparsellm::testing {
namespace {

struct Traffic {
  Request request;
  int64_t arrival = 0;   // the step before which it is submitted
  int64_t patience = 0;  // tokens after which it is cancelled; 0: never
};

std::vector<Traffic> random_traffic(const Engine& engine, int count) {
  std::mt19937 random(2024);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const auto real = [&](float low, float high) {
    return low + (high - low) * static_cast<float>(random() % 1024) / 1024.0f;
  };
  const std::vector<std::string> stops{" the ", "and", ".", "said", "\n", " king", "er and", "\""};
  std::vector<Traffic> traffic(static_cast<size_t>(count));
  int64_t arrival = 0;
  for (Traffic& one : traffic) {
    Request& request = one.request;
    const int64_t length = 1 + below(30);
    for (int64_t i = 0; i < length; ++i) {
      request.prompt.push_back(static_cast<int32_t>(below(engine.config().vocab_size)));
    }
    request.max_tokens = below(2) == 0 ? 60 + below(80) : below(40);
    request.seed = random();
    request.ignore_eos = below(2) == 0;
    if (below(3) != 0) {
      request.sampling = {.temperature = real(0.2f, 1.5f),
                          .top_k = static_cast<int32_t>(below(2) * below(100)),
                          .top_p = below(2) == 0 ? 1.0f : real(0.3f, 1.0f),
                          .min_p = below(2) == 0 ? 0.0f : real(0.0f, 0.2f)};
    }
    if (below(4) == 0) {
      request.sampling.repetition_penalty = real(1.0f, 1.5f);
      request.sampling.frequency_penalty = real(-0.5f, 1.0f);
      request.sampling.presence_penalty = real(-0.5f, 1.0f);
    }
    if (below(4) == 0) {
      request.sampling.logit_bias = {{.token = static_cast<int32_t>(below(400)), .bias = 4.0f}};
    }
    for (int64_t i = below(3); i > 0; --i) {
      request.stop.push_back(stops[static_cast<size_t>(below(std::ssize(stops)))]);
    }
    if (below(5) == 0) {
      request.stop_token_ids = {static_cast<int32_t>(below(500))};
    }
    if (below(3) == 0) {
      request.log_probs = static_cast<int32_t>(below(4));
      request.prompt_log_probs = below(2) == 0;
    }
    if (below(6) == 0) {
      request.samples = static_cast<int32_t>(2 + below(3));
    }
    one.patience = below(6) == 0 ? 1 + below(30) : 0;
    one.arrival = arrival += below(4) == 0 ? below(8) : 0;  // in bursts
  }
  return traffic;
}

// What the listener of a sample heard.
struct Heard {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<float> log_probs;  // of the tokens, of the likeliest, of the prompt's
  std::vector<FinishReason> finish;
  std::string error;

  void add(const TokenEvent& event) {
    EXPECT_TRUE(finish.empty()) << "an event after the last";
    for (const TokenLogProbs& of_prompt : event.prompt_log_probs) {
      EXPECT_TRUE(tokens.empty());
      add(of_prompt);
    }
    if (event.token) {
      tokens.push_back(*event.token);
    }
    if (event.log_probs != nullptr) {
      add(*event.log_probs);
    }
    text += event.text;
    if (event.finish) {
      finish.push_back(*event.finish);
      error = event.error;
    }
  }
  void add(const TokenLogProbs& values) {
    log_probs.push_back(values.token.log_prob);
    for (const TokenLogProb& top : values.top) {
      log_probs.push_back(top.log_prob);
    }
  }
};
using HeardBySample = std::map<std::pair<size_t, int32_t>, Heard>;

template <class T>
bool is_prefix(const std::vector<T>& part, const std::vector<T>& whole) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

// `alone`: one request after the other instead of as they arrive.
HeardBySample serve(Engine& engine, const std::vector<Traffic>& traffic, bool alone) {
  HeardBySample heard;
  int64_t now = 0;
  size_t next = 0;
  while (true) {
    if (alone) {
      if (next == traffic.size()) {
        return heard;
      }
      now = traffic[next].arrival;
    }
    do {
      if (next == traffic.size() || traffic[next].arrival > now) {
        break;
      }
      for (int32_t sample = 0; sample < traffic[next].request.samples; ++sample) {
        heard[{next, sample}];
      }
      engine.submit(traffic[next].request, [&, index = next](const TokenEvent& event) {
        Heard& own = heard[{index, event.sample}];
        own.add(event);
        if (!alone && std::ssize(own.tokens) == traffic[index].patience && !event.finish) {
          engine.cancel(event.request);
        }
      });
      ++next;
    } while (!alone);
    if (alone) {
      while (engine.step()) {
      }
    } else {
      if (!engine.step() && next == traffic.size()) {
        return heard;
      }
      ++now;
    }
  }
}

}  // namespace

void soak(const SoakOptions& how) {
  EngineOptions options;
  options.device = how.device;
  options.tensor_parallel.degree = how.ranks;
  options.max_requests = 48;
  options.step_tokens = 96;
  options.context_size = 256;
  options.deterministic = true;
  options.wrap_runner = how.wrap_runner;
  Engine large = Engine::load(data("models/fable-llama-relu-8m"), options);
  const std::vector<Traffic> traffic = random_traffic(large, how.requests);
  const HeardBySample alone = serve(large, traffic, /*alone=*/true);
  EXPECT_EQ(large.stats().preemptions, 0);

  // What as many as are computed at once need on average, at their longest; and a quarter of it.
  int64_t pages = 0;
  int64_t samples = 0;
  for (const Traffic& one : traffic) {
    samples += one.request.samples;
    pages +=
        one.request.samples * pages_for(std::ssize(one.request.prompt) + one.request.max_tokens);
  }
  const int64_t needed = pages * std::min(options.max_requests, samples) / samples;
  struct Setting {
    int steps_ahead;
    int64_t share;  // of the pages that are needed, one in this many is there
  };
  std::vector<Setting> settings{{0, 4}, {1, 10}};
  if (!kSanitized && how.ranks == 1) {
    settings.push_back({1, 4});
  }
  for (const Setting& setting : settings) {
    options.kv_tokens = needed / setting.share * kPageSize;
    options.steps_ahead = setting.steps_ahead;
    Engine engine = Engine::load(data("models/fable-llama-relu-8m"), options);
    const HeardBySample together = serve(engine, traffic, /*alone=*/false);
    ASSERT_EQ(together.size(), alone.size());
    int64_t cancelled = 0;
    int64_t stopped = 0;
    for (const auto& [key, heard] : together) {
      const Heard& expected = alone.at(key);
      ASSERT_EQ(heard.finish.size(), 1u) << "request " << key.first;
      EXPECT_EQ(heard.error, "") << "request " << key.first;
      if (heard.finish.front() == FinishReason::cancelled) {
        ++cancelled;
        EXPECT_NE(traffic[key.first].patience, 0);
        EXPECT_TRUE(is_prefix(heard.tokens, expected.tokens)) << "request " << key.first;
        EXPECT_TRUE(is_prefix(heard.log_probs, expected.log_probs)) << "request " << key.first;
        continue;
      }
      stopped += heard.finish.front() == FinishReason::stop ? 1 : 0;
      EXPECT_EQ(heard.finish, expected.finish) << "request " << key.first;
      EXPECT_EQ(heard.tokens, expected.tokens) << "request " << key.first;
      EXPECT_EQ(heard.text, expected.text) << "request " << key.first;
      EXPECT_EQ(heard.log_probs, expected.log_probs) << "request " << key.first;
      for (const std::string& stop : traffic[key.first].request.stop) {
        EXPECT_EQ(heard.text.find(stop), std::string::npos) << "request " << key.first;
      }
    }
    EXPECT_GT(engine.stats().preemptions, 0);
    EXPECT_GT(engine.stats().recomputed_tokens, 0);
    EXPECT_GT(cancelled, 0);
    EXPECT_GT(stopped, how.requests / 10);
    EXPECT_EQ(engine.free_pages(), engine.total_pages());
    std::printf(
        "pool of %lld pages, one in %lld needed: %lld preemptions, %lld tokens recomputed\n",
        static_cast<long long>(engine.total_pages()), static_cast<long long>(setting.share),
        static_cast<long long>(engine.stats().preemptions),
        static_cast<long long>(engine.stats().recomputed_tokens));
  }
}

}  // namespace sparsellm::testing
