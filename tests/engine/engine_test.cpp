#include "engine/engine.h"

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/resolve_options.h"
#include "kernels/base/error.h"
#include "models/weights/random_weights.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

Engine load_llama(EngineOptions options = {}) {
  options.with_tokenizer = false;
  return Engine::load(testing::data("models/fable-llama-relu-8m"), options);
}

// Everything that a request produced, bit for bit.
struct Trace {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;

  friend bool operator==(const Trace& a, const Trace& b) {
    if (a.tokens != b.tokens || a.logits.size() != b.logits.size()) {
      return false;
    }
    for (size_t i = 0; i < a.logits.size(); ++i) {
      if (a.logits[i].size() != b.logits[i].size() ||
          std::memcmp(a.logits[i].data(), b.logits[i].data(), a.logits[i].size() * sizeof(float)) !=
              0) {
        return false;
      }
    }
    return true;
  }
};

std::vector<Trace> run(Engine& engine, std::vector<Request> requests) {
  std::vector<Trace> traces(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_logits = [&trace = traces[i]](int64_t, std::span<const float> values) {
      trace.logits.emplace_back(values.begin(), values.end());
    };
  }
  const std::vector<Completion> done = engine.generate(std::move(requests));
  for (size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].error, "");
    traces[i].tokens = done[i].tokens;
  }
  return traces;
}

std::vector<Request> mixed_requests(size_t count, int64_t vocabulary, int64_t longest_prompt) {
  std::mt19937 random(17);
  std::vector<Request> requests(count);
  for (size_t i = 0; i < count; ++i) {
    Request& request = requests[i];
    const int64_t length = i == 0 ? 1 : 1 + static_cast<int64_t>(random()) % longest_prompt;
    for (int64_t j = 0; j < length; ++j) {
      request.prompt.push_back(static_cast<int32_t>(random() % vocabulary));
    }
    request.max_tokens = 1 + static_cast<int64_t>(random() % 24);
    request.seed = random();
    request.ignore_eos = i % 5 == 0;
    if (i % 3 != 0) {
      request.sampling = {.temperature = 0.9f,
                          .top_k = static_cast<int32_t>(random() % 60),
                          .top_p = 0.9f,
                          .min_p = 0.02f};
    }
  }
  return requests;
}

class BatchIdentity : public ::testing::TestWithParam<std::filesystem::path> {};
INSTANTIATE_TEST_SUITE_P(Checkpoints, BatchIdentity,
                         ::testing::ValuesIn(testing::all_checkpoints()),
                         [](const auto& checkpoint) {
                           return "n" + std::to_string(checkpoint.index);
                         });

TEST_P(BatchIdentity, AloneOrAmong17) {
  EngineOptions options;
  options.with_tokenizer = false;
  options.max_requests = 17;
  Engine engine = Engine::load(GetParam(), options);
  const std::vector<Request> requests = mixed_requests(
      testing::kSanitized ? 8 : 17, engine.config().vocab_size, testing::kSanitized ? 50 : 90);
  const std::vector<Trace> together = run(engine, requests);

  // Few rows a step, so that prefill is cut into chunks beside decode rows; another thread count.
  options.step_tokens = 23;
  options.max_requests = 5;
  options.threads = 3;
  Engine chunked_engine = Engine::load(GetParam(), options);
  const std::vector<Trace> chunked = run(chunked_engine, requests);

  // One step ahead, with too few pages: preempted and computed again.
  options.steps_ahead = 1;
  options.max_requests = 17;
  options.kv_tokens = testing::kSanitized ? 80 : 160;  // the longest fits
  Engine crowded_engine = Engine::load(GetParam(), options);
  const std::vector<Trace> crowded = run(crowded_engine, requests);
  // With a window of half a page a sequence gives one back for each that it takes.
  EXPECT_EQ(crowded_engine.stats().preemptions > 0, engine.config().window == 0);

  for (size_t i = 0; i < requests.size(); ++i) {
    const Trace alone = run(engine, {requests[i]}).front();
    EXPECT_FALSE(alone.tokens.empty());
    EXPECT_TRUE(alone == together[i]) << "request " << i;
    EXPECT_TRUE(alone == chunked[i]) << "request " << i << ", chunked";
    EXPECT_TRUE(alone == crowded[i]) << "request " << i << ", crowded";
  }
  EXPECT_EQ(engine.free_pages(), engine.total_pages());
}

// With a window of several pages requests still give way, and are computed again.
TEST(Engine, PreemptedRequestsWithAWindow) {
  const testing::TempDir folder;
  const std::filesystem::path model = folder.path() / "model";
  std::filesystem::copy(testing::data("tiny/mistral_window"), model);
  auto config = nlohmann::json::parse(std::ifstream(model / "config.json"));
  config["sliding_window"] = 40;
  std::ofstream(model / "config.json") << config.dump();
  EngineOptions options;
  options.with_tokenizer = false;
  options.max_requests = 8;
  Engine engine = Engine::load(model, options);
  std::vector<Request> requests = mixed_requests(8, engine.config().vocab_size, 5);
  for (Request& request : requests) {
    request.max_tokens = 60;
    request.ignore_eos = true;
  }
  options.kv_tokens = 128;  // for short prompts that all grow to 4 of the 8 pages
  Engine crowded_engine = Engine::load(model, options);
  const std::vector<Trace> crowded = run(crowded_engine, requests);
  EXPECT_GT(crowded_engine.stats().preemptions, 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(run(engine, {requests[i]}).front() == crowded[i]) << "request " << i;
  }
  EXPECT_EQ(crowded_engine.free_pages(), crowded_engine.total_pages());
}

TEST(Engine, SameSeedSameText) {
  Engine engine = load_llama();
  Request request;
  request.prompt = {1, 2277, 656};
  request.sampling = {.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f};
  request.seed = 42;
  request.max_tokens = 32;
  Request other = request;
  other.seed = 43;
  Request unseeded = request;
  unseeded.seed.reset();
  const std::vector<Completion> done =
      engine.generate({request, request, other, unseeded, unseeded});
  EXPECT_EQ(done[0].tokens, done[1].tokens);
  EXPECT_NE(done[0].tokens, done[2].tokens);
  EXPECT_NE(done[3].tokens, done[4].tokens);
}

TEST(Engine, EndsByLengthAndContext) {
  EngineOptions options;
  options.context_size = 40;
  Engine engine = load_llama(options);
  Request request;
  request.prompt.assign(30, 300);
  request.ignore_eos = true;
  request.max_tokens = 3;
  Request unlimited = request;
  unlimited.max_tokens = -1;
  Request scoring = request;
  scoring.prompt.assign(40, 300);  // as long as the context: nothing is generated
  scoring.max_tokens = 0;
  const std::vector<Completion> done = engine.generate({request, unlimited, scoring});
  EXPECT_EQ(done[0].tokens.size(), 3u);
  EXPECT_EQ(done[1].tokens.size(), 10u);
  EXPECT_EQ(done[2].tokens.size(), 0u);
  for (const Completion& completion : done) {
    EXPECT_EQ(completion.finish, FinishReason::length);
  }
}

TEST(Engine, StopsAtEos) {
  Request request;
  request.prompt = {1, 2277, 656};
  request.max_tokens = 20;
  Engine plain = load_llama();
  const std::vector<int32_t> free_running = plain.generate({request}).front().tokens;

  // The same model, with its fifth token declared the end of the text.
  const testing::TempDir directory;
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::data("models/fable-llama-relu-8m"))) {
    std::filesystem::create_symlink(entry.path(), directory.path() / entry.path().filename());
  }
  directory.write("generation_config.json",
                  fmt::format(R"({{"eos_token_id": [3, {}]}})", free_running[4]));
  EngineOptions options;
  options.with_tokenizer = false;
  Engine engine = Engine::load(directory.path(), options);
  const auto first =
      std::find(free_running.begin(), free_running.end(), free_running[4]);  // it may come earlier
  const Completion stopped = engine.generate({request}).front();
  EXPECT_EQ(stopped.finish, FinishReason::stop);
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(free_running.begin(), first + 1));

  request.ignore_eos = true;
  const Completion longer = engine.generate({request}).front();
  EXPECT_EQ(longer.finish, FinishReason::length);
  EXPECT_EQ(longer.tokens.size(), 20u);
  EXPECT_EQ(std::count(longer.tokens.begin(), longer.tokens.end(), free_running[4]), 0);
}

TEST(Engine, MoreRequestsThanFitAtOnce) {
  EngineOptions options;
  options.max_requests = 3;
  options.kv_tokens = 128;  // two of the requests below
  Engine engine = load_llama(options);
  Request request;
  request.prompt.assign(40, 500);
  request.max_tokens = 20;
  request.ignore_eos = true;
  const std::vector<Completion> done = engine.generate(std::vector<Request>(9, request));
  for (const Completion& completion : done) {
    EXPECT_EQ(completion.tokens, done.front().tokens);
    EXPECT_EQ(completion.tokens.size(), 20u);
  }
  EXPECT_EQ(engine.free_pages(), engine.total_pages());
}

TEST(Engine, CancelFromOutsideAndFromACallback) {
  Engine engine = load_llama();
  Request request;
  request.prompt = {1, 2277};
  request.max_tokens = 100;
  request.ignore_eos = true;
  std::map<int64_t, FinishReason> finished;
  int64_t first = 0;
  int64_t second = 0;
  int64_t tokens_of_second = 0;
  const auto note = [&](const TokenEvent& event) {
    if (event.finish) {
      EXPECT_FALSE(finished.contains(event.request));
      finished[event.request] = *event.finish;
    }
  };
  first = engine.submit(request, note);
  second = engine.submit(request, [&](const TokenEvent& event) {
    note(event);
    if (event.token && ++tokens_of_second == 5) {
      engine.cancel(second);
    }
  });
  const int64_t third = engine.submit(request, note);
  engine.cancel(third);  // before its first step
  EXPECT_EQ(finished.at(third), FinishReason::cancelled);
  engine.cancel(third);
  engine.cancel(12345);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(engine.step());
  }
  engine.cancel(first);
  EXPECT_FALSE(engine.step());
  EXPECT_EQ(finished.at(first), FinishReason::cancelled);
  EXPECT_EQ(finished.at(second), FinishReason::cancelled);
  EXPECT_EQ(tokens_of_second, 5);
  EXPECT_EQ(engine.free_pages(), engine.total_pages());
}

TEST(Engine, AThrowingCallbackEndsOnlyItsOwnRequest) {
  Engine engine = load_llama();
  Request request;
  request.prompt = {1, 2277, 656};
  request.max_tokens = 12;
  request.ignore_eos = true;
  const std::vector<int32_t> expected = engine.generate({request}).front().tokens;

  std::vector<int32_t> tokens;
  std::string error;
  engine.submit(request, [&](const TokenEvent& event) {
    if (event.token) {
      tokens.push_back(*event.token);
    }
  });
  engine.submit(request, [&](const TokenEvent& event) {
    error = event.error;
    if (!event.finish) {
      throw std::runtime_error("the listener went away");
    }
  });
  Request bad_hook = request;
  bad_hook.on_logits = [](int64_t, std::span<const float>) {
    throw std::runtime_error("the hook broke");
  };
  const Completion hooked = engine.generate({bad_hook}).front();
  while (engine.step()) {
  }
  EXPECT_EQ(tokens, expected);
  EXPECT_EQ(error, "the listener went away");
  EXPECT_EQ(hooked.finish, FinishReason::error);
  EXPECT_EQ(hooked.error, "the hook broke");
  EXPECT_EQ(engine.free_pages(), engine.total_pages());
}

TEST(Engine, AnyExceptionOfACallbackEndsOnlyItsOwnRequest) {
  Engine engine = load_llama();
  Request request;
  request.prompt = {1, 2277, 656};
  request.max_tokens = 6;
  request.ignore_eos = true;
  std::string error;
  engine.submit(request, [&](const TokenEvent& event) {
    error = event.error;
    if (!event.finish) {
      throw 42;
    }
  });
  EXPECT_EQ(engine.generate({request}).front().tokens.size(), 6u);
  EXPECT_EQ(error, "an exception of an unknown type");
  EXPECT_FALSE(engine.step());
  EXPECT_EQ(engine.free_pages(), engine.total_pages());
}

// A model's vocabulary may be larger than its tokenizer's.
TEST(Engine, TokensWithoutTextAreNoError) {
  Engine engine = Engine::load(testing::data("tiny/opt_gelu"), {});
  ASSERT_LT(engine.tokenizer().vocab_size(), engine.config().vocab_size);
  std::vector<Request> requests(20);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = {1, 2, 3};
    requests[i].max_tokens = 100;
    requests[i].ignore_eos = true;
    requests[i].sampling = {.temperature = 100.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f};
    requests[i].seed = i;
  }
  int64_t without_text = 0;
  for (const Completion& done : engine.generate(requests)) {
    EXPECT_EQ(done.error, "");
    EXPECT_EQ(done.tokens.size(), 100u);
    without_text += std::count_if(done.tokens.begin(), done.tokens.end(), [&](int32_t id) {
      return id >= engine.tokenizer().vocab_size();
    });
  }
  EXPECT_GT(without_text, 0);
}

TEST(Engine, CallbacksMayCancelAndSubmitButNotStep) {
  Engine engine = load_llama();
  Request request;
  request.prompt = {1, 2277};
  request.max_tokens = 4;
  request.ignore_eos = true;
  int finished = 0;
  int refused = 0;
  const auto count = [&](const TokenEvent& event) { finished += event.finish ? 1 : 0; };
  const int64_t second = engine.submit(request, count);
  const int64_t first = engine.submit(request, [&](const TokenEvent& event) {
    count(event);
    engine.cancel(second);
    engine.submit(request, count);
    const std::vector<std::function<void()>> not_allowed{[&] { engine.step(); },
                                                         [&] { engine.generate({request}); }};
    for (const auto& call : not_allowed) {
      try {
        call();
      } catch (const Error&) {
        ++refused;
      }
    }
  });
  engine.cancel(first);  // its callback cancels the second and submits a third
  EXPECT_EQ(finished, 2);
  EXPECT_EQ(refused, 2);
  while (engine.step()) {
  }
  EXPECT_EQ(finished, 3);
  EXPECT_EQ(engine.free_pages(), engine.total_pages());
}

TEST(Engine, StatsCountPromptAndGeneratedTokens) {
  EngineOptions options;
  options.step_tokens = 4;
  options.max_requests = 2;
  Engine engine = load_llama(options);
  Request request;
  request.prompt.assign(9, 300);
  request.max_tokens = 5;
  request.ignore_eos = true;
  engine.generate({request});
  EXPECT_EQ(engine.stats().prefill_tokens, 9);
  EXPECT_EQ(engine.stats().decode_tokens, 4);  // the first comes from the prefill
  EXPECT_EQ(engine.stats().steps, 3 + 4);
  EXPECT_GT(engine.stats().decode_seconds, 0.0);
  EXPECT_GT(engine.stats().prefill_seconds, 0.0);
}

TEST(Engine, RefusesBadRequests) {
  EngineOptions options;
  options.context_size = 32;
  options.kv_tokens = 32;
  Engine engine = load_llama(options);
  Request good;
  good.prompt = {1, 2};
  good.max_tokens = 1;
  struct Case {
    std::string expected;
    std::function<void(Request&)> change;
  };
  const std::vector<Case> cases{
      {"the prompt is empty", [](Request& r) { r.prompt.clear(); }},
      {"token id 4096 is outside", [](Request& r) { r.prompt = {4096}; }},
      {"token id -1 is outside", [](Request& r) { r.prompt = {-1}; }},
      {"the prompt has 32 tokens", [](Request& r) { r.prompt.assign(32, 5); }},
      {"the prompt has 33 tokens",
       [](Request& r) {
         r.prompt.assign(33, 5);
         r.max_tokens = 0;
       }},
      {"max_tokens -2", [](Request& r) { r.max_tokens = -2; }},
      {"temperature -1", [](Request& r) { r.sampling.temperature = -1.0f; }},
      {"temperature nan", [](Request& r) { r.sampling.temperature = std::nanf(""); }},
      {"top_k -1", [](Request& r) { r.sampling.top_k = -1; }},
      {"top_p 1.5", [](Request& r) { r.sampling.top_p = 1.5f; }},
      {"top_p 0", [](Request& r) { r.sampling.top_p = 0.0f; }},
      {"min_p 2", [](Request& r) { r.sampling.min_p = 2.0f; }},
  };
  for (const Case& c : cases) {
    Request request = good;
    c.change(request);
    const Completion done = engine.generate({request}).front();
    EXPECT_EQ(done.finish, FinishReason::error);
    EXPECT_NE(done.error.find(c.expected), std::string::npos) << done.error;
  }
  EXPECT_EQ(engine.generate({good}).front().error, "");
}

TEST(Engine, WarnsOnceOfKeysThatAreIgnored) {
  namespace fs = std::filesystem;
  const testing::TempDir dir;
  const fs::path model = dir.path() / "model";
  fs::copy(testing::data("tiny/llama_bias"), model);
  nlohmann::json config = nlohmann::json::parse(std::ifstream(model / "config.json"));
  const auto warnings = [&] {
    fs::remove(model / "config.json");
    std::ofstream(model / "config.json") << config;
    std::ostringstream text;
    spdlog::logger log("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
    log.set_pattern("%l: %v");
    log.set_level(spdlog::level::warn);
    EngineOptions options;
    options.with_tokenizer = false;
    options.log = &log;
    Engine::load(model, options);
    std::string loaded = text.str();
    text.str("");
    Engine::load_random(model / "config.json", {}, options);
    EXPECT_EQ(text.str(), loaded);
    return loaded;
  };
  EXPECT_EQ(warnings(), "");
  config["logit_scale"] = 0.0625;
  config["clip_qkv"] = 8;
  const std::string warning = warnings();
  EXPECT_TRUE(warning.starts_with("warning: ")) << warning;
  EXPECT_NE(warning.find("ignores logit_scale, clip_qkv, and"), std::string::npos) << warning;
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
}

TEST(Engine, RefusesBadOptions) {
  struct Case {
    std::string expected;
    std::function<void(EngineOptions&)> change;
  };
  const std::vector<Case> cases{
      {"a context of 2000 tokens is more than the 1024",
       [](EngineOptions& o) { o.context_size = 2000; }},
      {"a context of -1", [](EngineOptions& o) { o.context_size = -1; }},
      {"0 requests at once", [](EngineOptions& o) { o.max_requests = 0; }},
      {"4 tokens per step", [](EngineOptions& o) { o.step_tokens = 4; }},
      {"a KV cache of 100 bytes is smaller than a page",
       [](EngineOptions& o) { o.kv_bytes = 100; }},
      {"a KV cache of -5 bytes", [](EngineOptions& o) { o.kv_bytes = -5; }},
      {"in tokens (16) and in bytes (9000)",
       [](EngineOptions& o) {
         o.kv_tokens = 16;
         o.kv_bytes = 9000;
       }},
      {"2 steps ahead", [](EngineOptions& o) { o.steps_ahead = 2; }},
      {"a KV cache of -1 tokens", [](EngineOptions& o) { o.kv_tokens = -1; }},
      {"-1 threads", [](EngineOptions& o) { o.threads = -1; }},
      {"5000 threads", [](EngineOptions& o) { o.threads = 5000; }},
      {"out of memory", [](EngineOptions& o) { o.kv_tokens = int64_t{1} << 40; }},
  };
  for (const Case& c : cases) {
    EngineOptions options;
    c.change(options);
    try {
      load_llama(options);
      ADD_FAILURE() << "accepted: " << c.expected;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(c.expected), std::string::npos) << error.what();
    }
  }
}

using Change = std::function<void(EngineOptions&)>;

// The lowest and the highest that is allowed, and what is one beyond.
TEST(EngineOptions, LimitsOfTheScheduler) {
  const std::vector<Change> good{
      [](EngineOptions& o) { o.max_requests = o.step_tokens = 1; },
      [](EngineOptions& o) { o.max_requests = o.step_tokens = 65536; },
      [](EngineOptions& o) { o.step_tokens = 1048576; },
      [](EngineOptions& o) { o.threads = 0; },
      [](EngineOptions& o) { o.threads = 1024; },
      [](EngineOptions& o) { o.steps_ahead = -1; },
      [](EngineOptions& o) { o.steps_ahead = 1; },
      [](EngineOptions& o) { o.kv_dtype = DType::f16; },
      [](EngineOptions& o) { o.kv_dtype = DType::f32; },
      [](EngineOptions& o) { o.kv_tokens = 1; },
      [](EngineOptions& o) { o.kv_bytes = 1; },
      [](EngineOptions& o) { o.gpu_memory_utilization = 1.0; },
      [](EngineOptions& o) { o.gpu_memory_utilization = 1e-9; },
      [](EngineOptions& o) { o.traces = true; },
  };
  for (const Change& change : good) {
    EngineOptions options;
    change(options);
    EXPECT_NO_THROW(scheduler_limits(options)) << &change - good.data();
    EXPECT_EQ(scheduler_limits(options).step_tokens, options.step_tokens);
    EXPECT_EQ(scheduler_limits(options).max_requests, options.max_requests);
  }
  const std::vector<std::pair<std::string, Change>> bad{
      {"-1 requests at once", [](EngineOptions& o) { o.max_requests = -1; }},
      {"65537 requests at once", [](EngineOptions& o) { o.max_requests = o.step_tokens = 65537; }},
      {"1048577 tokens per step", [](EngineOptions& o) { o.step_tokens = 1048577; }},
      {"7 tokens per step; use 8",
       [](EngineOptions& o) {
         o.max_requests = 8;
         o.step_tokens = 7;
       }},
      {"1025 threads", [](EngineOptions& o) { o.threads = 1025; }},
      {"a KV cache of bf16; use f32 or f16", [](EngineOptions& o) { o.kv_dtype = DType::bf16; }},
      {"a KV cache of f16 on cuda:1: there it has the dtype",
       [](EngineOptions& o) {
         o.device = {.kind = Device::Kind::cuda, .index = 1};
         o.kv_dtype = DType::f16;
       }},
      {"-2 steps ahead", [](EngineOptions& o) { o.steps_ahead = -2; }},
      {"utilization of 0 is", [](EngineOptions& o) { o.gpu_memory_utilization = 0.0; }},
      {"utilization of 1.01 is", [](EngineOptions& o) { o.gpu_memory_utilization = 1.01; }},
      {"measured without steps ahead",
       [](EngineOptions& o) {
         o.traces = true;
         o.steps_ahead = 1;
       }},
  };
  for (const auto& [message, change] : bad) {
    EngineOptions options;
    change(options);
    EXPECT_TRUE(testing::throws_error([&] { scheduler_limits(options); }, message));
  }
}

TEST(EngineOptions, SizesOfContextAndKvCache) {
  const ModelConfig config = read_model_config(testing::data("models/fable-llama-relu-8m"));
  EngineOptions options;
  EXPECT_EQ(choose_context_size(options, config), 1024);
  for (int64_t size : {1, 1024}) {
    options.context_size = size;
    EXPECT_EQ(choose_context_size(options, config), size);
  }
  options.context_size = 1025;
  EXPECT_TRUE(testing::throws_error([&] { choose_context_size(options, config); },
                                    "a context of 1025 tokens is more than the 1024"));

  const KvShape shape{.layers = 2, .kv_heads = 3, .head_dim = 8, .dtype = DType::f32};
  const int64_t page = 16 * 2 * 2 * 3 * 8 * 4;  // tokens, layers, K and V, heads, head_dim, f32
  const DeviceMemory memory{.total = 200 * page, .free = 150 * page};
  const auto pages = [&](const Change& change) {
    EngineOptions o;
    o.max_requests = 4;
    change(o);
    return std::pair(max_kv_pages(o, 33, shape, memory), choose_kv_pages(o, 33, shape, memory));
  };
  using Pages = std::pair<int64_t, int64_t>;
  // 3 pages a context, 4 contexts; half of the memory of the CPU.
  EXPECT_EQ(pages([](EngineOptions&) {}), Pages(100, 12));
  EXPECT_EQ(pages([](EngineOptions& o) { o.max_requests = 40; }), Pages(100, 100));
  EXPECT_EQ(pages([](EngineOptions& o) { o.kv_tokens = 1; }), Pages(1, 1));
  EXPECT_EQ(pages([](EngineOptions& o) { o.kv_tokens = 16; }), Pages(1, 1));
  EXPECT_EQ(pages([](EngineOptions& o) { o.kv_tokens = 17; }), Pages(2, 2));
  EXPECT_EQ(pages([&](EngineOptions& o) { o.kv_bytes = page; }), Pages(1, 1));
  EXPECT_EQ(pages([&](EngineOptions& o) { o.kv_bytes = 20 * page - 1; }), Pages(19, 19));
  EXPECT_TRUE(
      testing::throws_error([&] { pages([&](EngineOptions& o) { o.kv_bytes = page - 1; }); },
                            "is smaller than a page of 16 tokens"));
  // One context, if there is room for less.
  EXPECT_EQ(max_kv_pages(EngineOptions{}, 33, shape, {.total = page, .free = page}), 3);
}

// A device that cannot be used is found before anything is read.
TEST(Engine, RefusesADeviceFirst) {
  EngineOptions options;
  options.device = {.kind = Device::Kind::cuda, .index = 9999};
  const std::string message = "device cuda:9999 is not there: ";
  const testing::TempDir empty;
  EXPECT_TRUE(testing::throws_error([&] { Engine::load(empty.path(), options); }, message));
  EXPECT_TRUE(testing::throws_error([&] { Engine::load_random("nowhere", {}, options); }, message));
}

}  // namespace
}  // namespace sparsellm
