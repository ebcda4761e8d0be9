// A device that is really lost, each time in a process of its own: nothing brings it back.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/base/upload.h"
#include "tests/engine/checked_server.h"
#include "tests/testing/break_device.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/synthetic_model.h"
#include "tools/bench/kernel.h"
#include "tools/run/batch.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class DeviceLostDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // The child runs this test from its begin, instead of going on with what the parent has of
    // CUDA, which does not survive a fork.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "there is no CUDA device";
    }
  }
};

// Ends the process with 0 if `body` returns nothing, else with 1 and what is wrong.
[[noreturn]] void exit_with(const std::function<std::string()>& body) {
  std::string problem;
  try {
    problem = body();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  std::fprintf(stderr, "%s\n", problem.c_str());
  std::exit(problem.empty() ? 0 : 1);
}

// The line of what `call` throws, if that is DeviceLost.
std::string lost_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const DeviceLost& error) {
    return error.what();
  } catch (const std::exception& error) {
    return fmt::format("another error: {}", error.what());
  }
  return "no exception";
}

std::string lose_an_engine(bool warm_up, int steps) {
  const TempDir folder;
  write_synthetic_model(folder.path() / "model", {.hidden = 256, .intermediate = 512});
  EngineOptions options = serving_options("tca_bme");
  options.warm_up = warm_up;
  std::optional<Engine> other(Engine::load(folder.path() / "model", options));
  std::string line;
  {
    Engine engine = Engine::load(folder.path() / "model", options);
    for (Request& request : served_requests(engine, 8)) {
      engine.submit(std::move(request), {});
    }
    for (int i = 0; i < steps; ++i) {
      engine.step();
    }
    break_device();
    line = lost_by([&] {
      while (engine.step()) {
      }
    });
    if (line.find("illegal memory access") == std::string::npos ||
        line.find('\n') != std::string::npos) {
      return "the step: " + line;
    }
    if (engine.failed() != line) {
      return "failed() says " + engine.failed().value_or("nothing");
    }
    for (const std::string& later : {lost_by([&] { engine.step(); }), lost_by([&] {
                                       engine.submit({.prompt = {1}, .max_tokens = 1}, {});
                                     }),
                                     lost_by([&] { engine.generate({}); })}) {
      if (later != line) {
        return "a later call: " + later;
      }
    }
  }  // neither throws nor waits for ever
  if (const std::string text =
          lost_by([&] { other->generate({{.prompt = {1}, .max_tokens = 1}}); });
      text.find("illegal memory access") == std::string::npos) {
    return "another engine: " + text;
  }
  other.reset();
  if (const std::string text = lost_by([&] { Engine::load(folder.path() / "model", options); });
      text.find("illegal memory access") == std::string::npos) {
    return "a load: " + text;
  }
  return {};
}

TEST_F(DeviceLostDeathTest, TheEngineSaysSoAndGoes) {
  for (const bool warm_up : {false, true}) {
    for (int steps : {0, 1, 7}) {
      EXPECT_EXIT(exit_with([&] { return lose_an_engine(warm_up, steps); }),
                  ::testing::ExitedWithCode(0), "");
    }
  }
}

std::string lose_an_upload() {
  const std::vector<std::byte> source(size_t{256} << 20);
  const Buffer target(kGpu, std::ssize(source), "a test");
  Uploader uploader(kGpu);
  const std::string line = lost_by([&] {
    constexpr int kCopies = 64;  // far longer than the device lasts
    for (int i = 0; i < kCopies; ++i) {
      uploader.submit({.what = "a test",
                       .source = source,
                       .from = DType::i32,
                       .destination = target.data(),
                       .to = DType::i32});
    }
    bool broken = false;
    uploader.finish([&] {
      if (!std::exchange(broken, true)) {
        break_device();
      }
    });
  });
  return line.find("illegal memory access") == std::string::npos ? line : std::string();
}

TEST_F(DeviceLostDeathTest, CopiesEnd) {
  EXPECT_EXIT(exit_with(lose_an_upload), ::testing::ExitedWithCode(0), "");
}

std::string lose_a_batch() {
  const TempDir folder;
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    lines += fmt::format("{{\"prompt\": \"The king\", \"max_tokens\": {}}}\n", 3 + i % 5);
  }
  EngineOptions options;
  options.device = kGpu;
  options.max_requests = 2;
  options.context_size = 64;
  Engine engine = Engine::load(testing::data("models/fable-llama-relu-8m"), options);
  Batch batch({.prompts = folder.write("in.jsonl", lines), .output = folder.path() / "out.jsonl"});
  bool broken = false;
  const std::string line = lost_by([&] {
    batch.run(engine, {}, 2, [&](const BatchProgress& progress) {
      if (progress.done >= 4 && !broken) {
        break_device();
        broken = true;
      }
    });
  });
  if (line != engine.failed()) {
    return "the batch: " + line;
  }
  std::ifstream partial(batch.partial());
  int count = 0;
  for (std::string result; std::getline(partial, result); ++count) {
    if (nlohmann::json::parse(result).contains("error")) {
      return "a result: " + result;
    }
  }
  return count >= 4 && count < 20 ? std::string() : fmt::format("{} results", count);
}

TEST_F(DeviceLostDeathTest, ABatchKeepsItsResults) {
  EXPECT_EXIT(exit_with(lose_a_batch), ::testing::ExitedWithCode(0), "");
}

std::string lose_a_benchmark() {
  KernelBenchOptions options;
  options.shapes = {{256, 256}, {512, 256}};
  options.tokens = {1, 8};
  options.sparsities = {0.5, 0.8};
  options.formats = {"tca_bme"};
  options.repeat = 1;
  options.rotation_bytes = 1 << 16;
  options.device = kGpu;
  int results = 0;
  int notes = 0;
  const std::string line = lost_by([&] {
    bench_kernels(options, [&](const KernelResult& result) {
      notes += result.note.find("illegal memory access") == std::string::npos ? 0 : 1;
      if (++results == 1) {
        break_device();
      }
    });
  });
  if (notes > 0) {
    return fmt::format("{} of {} results are of a lost device", notes, results);
  }
  return line.find("illegal memory access") == std::string::npos ? line : std::string();
}

TEST_F(DeviceLostDeathTest, ABenchmarkEnds) {
  EXPECT_EXIT(exit_with(lose_a_benchmark), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sparsellm
