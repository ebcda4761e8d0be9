// Two engines on one device, each in its own thread: what one does while it loads, captures graphs
// and goes must not change a token of the other, nor break its captures for good.

#include <gtest/gtest.h>

#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/checked_server.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/synthetic_model.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class TwoEngines : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "there is no CUDA device";
    }
    write_synthetic_model(folder_.path() / "model",
                          {.hidden = 256, .intermediate = 512, .blocks = 4, .density = 0.4});
  }

  Engine load(const EngineOptions& options) {
    return Engine::load(folder_.path() / "model", options);
  }

  // Every other one is encoded while it loads, some are tuned, some capture all graphs then.
  Engine load_any(int index) {
    EngineOptions options = serving_options(index % 2 == 0 ? "tca_bme" : "dense");
    options.warm_up = index % 3 == 0;
    if (index % 10 == 7) {
      options.deterministic = false;
      options.tuning = Tuning::measured;
    }
    return load(options);
  }

  TempDir folder_;
};

TEST_F(TwoEngines, OneLoadsAndGoesWhileTheOtherServes) {
  for (const char* format : {"tca_bme", "dense"}) {
    Engine serving = load(serving_options(format));
    CheckedServer server(serving);
    for (int i = 0; i < 25; ++i) {
      SCOPED_TRACE(i);
      Engine other = load_any(i);
      const std::vector<Request> requests = served_requests(other, 8);
      for (const Completion& completion : other.generate(requests)) {
        EXPECT_EQ(completion.error, "");
      }
      ASSERT_GT(other.stats().steps, 0);
    }
    EXPECT_EQ(server.stop(), "");
    EXPECT_GT(server.rounds(), 0);
  }
}

// Graphs are captured lazily in both, again and again.
TEST_F(TwoEngines, BothLoadServeAndGo) {
  std::optional<Engine> engine(load(serving_options("tca_bme")));
  const std::vector<Request> requests = served_requests(*engine, 8);
  const std::vector<std::vector<int32_t>> expected = tokens_alone(*engine, requests);
  engine.reset();
  std::vector<std::string> problems(2);
  std::vector<std::thread> threads;
  for (std::string& problem : problems) {
    threads.emplace_back([&] {
      try {
        for (int round = 0; round < 25 && problem.empty(); ++round) {
          Engine one = load(serving_options("tca_bme"));
          for (size_t count = 1; count <= requests.size() && problem.empty(); ++count) {
            problem = check_tokens(one, requests, expected, count);
          }
        }
      } catch (const std::exception& error) {
        problem = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(problems[0], "");
  EXPECT_EQ(problems[1], "");
}

TEST_F(TwoEngines, WarmUpChangesNoToken) {
  for (const bool traces : {false, true}) {
    EngineOptions options = serving_options("tca_bme");
    options.traces = traces;
    Engine lazy = load(options);
    options.warm_up = true;
    Engine warm = load(options);
    EXPECT_TRUE(warm.decode_seconds().empty());
    EXPECT_EQ(warm.stats().steps, 0);
    const std::vector<Request> requests = served_requests(lazy, 8);
    const std::vector<std::vector<int32_t>> expected = tokens_alone(lazy, requests);
    // What CUDA loads at the first use of a kernel is there.
    for (size_t count = 1; count <= requests.size(); ++count) {
      EXPECT_EQ(check_tokens(lazy, requests, expected, count), "");
    }
    const int64_t free = device_memory(kGpu).free;
    for (size_t count = 1; count <= requests.size(); ++count) {
      EXPECT_EQ(check_tokens(warm, requests, expected, count), "");
    }
    EXPECT_EQ(device_memory(kGpu).free, free);  // no graph was captured later
    EXPECT_EQ(warm.decode_seconds().empty(), !traces);
  }
}

}  // namespace
}  // namespace sparsellm
