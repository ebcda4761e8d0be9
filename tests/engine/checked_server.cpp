#include "tests/engine/checked_server.h"

#include <spdlog/fmt/fmt.h>

#include <exception>
#include <random>
#include <span>

#include "tests/testing/gpu_context.h"

namespace sparsellm::testing {

EngineOptions serving_options(std::string_view weight_format) {
  EngineOptions options;
  options.device = kGpu;
  options.weight_format = weight_format;
  options.max_requests = 8;
  options.step_tokens = 64;
  options.context_size = 100;
  options.kv_tokens = 2048;
  options.deterministic = true;
  options.with_tokenizer = false;
  return options;
}

std::vector<Request> served_requests(const Engine& engine, int64_t count) {
  std::mt19937 random(11);
  std::vector<Request> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    for (unsigned length = 1 + random() % 40; length > 0; --length) {
      request.prompt.push_back(
          static_cast<int32_t>(random() % static_cast<unsigned>(engine.config().vocab_size)));
    }
    request.max_tokens = 10 + static_cast<int64_t>(random() % 20);
    request.ignore_eos = true;
    request.seed = i;
    if (i % 2 == 1) {
      request.sampling = {.temperature = 0.9f, .top_k = 40};
    }
  }
  return requests;
}

std::vector<std::vector<int32_t>> tokens_alone(Engine& engine,
                                               const std::vector<Request>& requests) {
  std::vector<std::vector<int32_t>> tokens;
  for (const Request& request : requests) {
    const Completion completion = engine.generate({request}).front();
    EXPECT_EQ(completion.error, "");
    EXPECT_EQ(std::ssize(completion.tokens), request.max_tokens);
    tokens.push_back(completion.tokens);
  }
  return tokens;
}

std::string check_tokens(Engine& engine, const std::vector<Request>& requests,
                         const std::vector<std::vector<int32_t>>& expected, size_t count) {
  const std::span some = std::span(requests).first(count);
  const std::vector<Completion> completions = engine.generate({some.begin(), some.end()});
  for (size_t i = 0; i < count; ++i) {
    if (!completions[i].error.empty()) {
      return fmt::format("request {} of {}: {}", i, count, completions[i].error);
    }
    if (completions[i].tokens != expected[i]) {
      return fmt::format("request {} of {} has the tokens {}, alone {}", i, count,
                         fmt::join(completions[i].tokens, " "), fmt::join(expected[i], " "));
    }
  }
  return {};
}

CheckedServer::CheckedServer(Engine& engine)
    : engine_(engine),
      requests_(served_requests(engine, 8)),
      expected_(tokens_alone(engine, requests_)),
      thread_([this] { serve(); }) {}

const std::string& CheckedServer::stop() {
  stop_ = true;
  if (thread_.joinable()) {
    thread_.join();
  }
  return problem_;
}

void CheckedServer::serve() {
  try {
    while (!stop_ && problem_.empty()) {
      const size_t count = 1 + static_cast<size_t>(rounds_) % requests_.size();
      problem_ = check_tokens(engine_, requests_, expected_, count);
      ++rounds_;
    }
  } catch (const std::exception& error) {
    problem_ = error.what();
  }
}

}  // namespace sparsellm::testing
