// What `progress` hears of a load, and loads that are broken off by what it throws, as after
// Ctrl-C.

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "engine/engine.h"
#include "tests/testing/paths.h"

namespace sparsellm {
namespace {

struct Cancelled {};

TEST(CancelledLoad, ThrowsOnWhatProgressThrewWhereverItDid) {
  for (const char* format : {"", "tiled_csl"}) {
    EngineOptions options;
    options.threads = 2;
    options.weight_format = format;
    options.with_tokenizer = false;
    int64_t calls = 0;
    int64_t last = 0;  // the call that throws; 0: none
    options.progress = [&](int64_t, int64_t) {
      if (++calls == last) {
        throw Cancelled();
      }
    };
    const auto load = [&] {
      calls = 0;
      return Engine::load(testing::data("tiny/llama3"), options);
    };
    const Request request{.prompt = {1, 2, 3}, .max_tokens = 5, .ignore_eos = true};
    const Completion expected = load().generate({request}).front();
    EXPECT_EQ(expected.error, "");
    const int64_t all = calls;
    ASSERT_GT(all, 1);
    for (last = 1; last <= all; ++last) {
      EXPECT_THROW(load(), Cancelled) << "call " << last << " of " << all;
      EXPECT_EQ(calls, last);
    }
    EXPECT_EQ(load().generate({request}).front().tokens, expected.tokens);
  }
}

TEST(LoadProgress, RisesToAllBytes) {
  for (const char* format : {"", "dense", "tiled_csl", "tca_bme"}) {
    EngineOptions options;
    options.weight_format = format;
    options.with_tokenizer = false;
    int64_t before = -1;
    int64_t done = 0;
    int64_t total = 0;
    options.progress = [&](int64_t now, int64_t all) {
      EXPECT_GE(now, before);
      before = done = now;
      total = all;
    };
    Engine::load(testing::data("models/fable-llama-relu-8m"), options);
    EXPECT_EQ(done, total) << format;
    EXPECT_GT(total, 0);
  }
}

}  // namespace
}  // namespace sparsellm
