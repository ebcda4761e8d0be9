// Loads that are broken off by what `progress` throws, as after Ctrl-C.

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <random>
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

struct Cancelled {};

// Memory that an upload still wrote to would be that of the next load, or of the engine that
// serves meanwhile; page-locked memory and the mapped file that it still read would be gone.
TEST(CancelledLoad, LeavesNothingBehindWhileAnotherEngineServes) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "there is no CUDA device";
  }
  const TempDir folder;
  write_synthetic_model(folder.path() / "small", {.hidden = 256, .intermediate = 512, .blocks = 4});
  // Large enough that its uploads take longer than the first call of progress.
  write_synthetic_model(folder.path() / "large",
                        {.hidden = 1024, .intermediate = 4096, .blocks = 4, .density = 0.4});
  const auto load_large = [&](const char* format, LoadProgress progress) {
    EngineOptions options = serving_options(format);
    options.progress = std::move(progress);
    return Engine::load(folder.path() / "large", options);
  };
  std::optional<Engine> whole(load_large("tca_bme", {}));
  const std::vector<Request> requests = served_requests(*whole, 4);
  const std::vector<std::vector<int32_t>> expected = tokens_alone(*whole, requests);
  whole.reset();

  Engine serving = Engine::load(folder.path() / "small", serving_options("dense"));
  CheckedServer server(serving);
  std::mt19937 random(5);
  int cancelled = 0;
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    // What is converted on the device reports every part, what is only copied at once and now and
    // then.
    const bool converted = i % 2 == 0;
    const int64_t last = 1 + static_cast<int64_t>(random() % (converted ? 30 : 2));
    const std::chrono::microseconds delay(random() % 5000);
    int64_t calls = 0;
    const auto progress = [&](int64_t done, int64_t total) {
      EXPECT_LE(done, total);
      if (++calls == last) {
        std::this_thread::sleep_for(delay);
        throw Cancelled();
      }
    };
    try {
      load_large(converted ? "tca_bme" : "dense", progress);
    } catch (const Cancelled&) {
      ++cancelled;
    }
    if (i % 20 == 19) {
      Engine next = load_large("tca_bme", {});
      EXPECT_EQ(check_tokens(next, requests, expected, requests.size()), "");
    }
  }
  EXPECT_GT(cancelled, 90);
  EXPECT_EQ(server.stop(), "");
  EXPECT_GT(server.rounds(), 0);
}

}  // namespace
}  // namespace sparsellm
