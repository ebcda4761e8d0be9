#include "tests/tools/serve/serve_fixture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "tests/testing/paths.h"
#include "tests/testing/sanitized.h"

namespace sparsellm::testing {
namespace {

constexpr std::chrono::seconds kPatience{kSanitized ? 120 : 20};
constexpr std::string_view kEvent = "data: ";
constexpr std::string_view kDone = "data: [DONE]\n\n";

std::shared_ptr<const CompletionContext> context_of(const Engine& engine,
                                                    const ServedTiny::Options& options) {
  Prompt defaults;
  defaults.request.max_tokens = 16;
  defaults.request.sampling.temperature = 0.0f;
  return std::make_shared<const CompletionContext>(CompletionContext{
      .tokenizer = options.tokenizer != nullptr ? *options.tokenizer : engine.tokenizer(),
      .context_size = engine.context_size(),
      .model = "tiny",
      .defaults = defaults,
      .max_samples = options.limits.samples});
}

}  // namespace

KeptExchange::KeptExchange(std::string body, HttpHead head) {
  body_ = std::move(body);
  head_ = std::move(head);
}

void KeptExchange::respond(HttpResponse answer) {
  if (!gone_) {
    EXPECT_FALSE(answered()) << "a second answer";
    response = std::move(answer);
  }
}

void KeptExchange::begin_stream(HttpResponse head) {
  if (!gone_) {
    EXPECT_FALSE(answered()) << "a second answer";
    stream = std::move(head);
  }
}

void KeptExchange::write(std::string_view text) {
  if (!gone_) {
    EXPECT_TRUE(stream && !ended) << "a part of a stream that has not begun, or has ended";
    writes.emplace_back(text);
    if (on_write) {
      on_write();
    }
  }
}

void KeptExchange::end() {
  EXPECT_TRUE(gone_ || (stream && !ended)) << "the end of no stream";
  ended = true;
}

void KeptExchange::leave() {
  if (!std::exchange(gone_, true) && on_gone) {
    std::exchange(on_gone, {})();
  }
}

nlohmann::json KeptExchange::json() const {
  return response ? nlohmann::json::parse(response->body) : nlohmann::json();
}

std::string KeptExchange::error() const {
  const nlohmann::json all = response ? json() : events().back();
  return all.contains("error") ? all["error"]["message"].get<std::string>() : "";
}

std::vector<nlohmann::json> KeptExchange::events() const {
  std::vector<nlohmann::json> events;
  for (const std::string& text : writes) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find("\n\n", at);
      EXPECT_NE(end, std::string::npos) << "an event without its end: " << text;
      const std::string event = text.substr(at, end - at);
      at = end + 2;
      if (event.starts_with(kEvent) && event + "\n\n" != kDone) {
        events.push_back(nlohmann::json::parse(event.substr(kEvent.size())));
      }
    }
  }
  return events;
}

bool KeptExchange::has_done() const {
  size_t count = 0;
  for (const std::string& text : writes) {
    count += text.find(kDone) != std::string::npos ? 1 : 0;
  }
  return ended && count == 1 && writes.back().ends_with(kDone);
}

std::string value_of(const HttpResponse& response, std::string_view header) {
  std::string value;
  for (const HttpHeader& h : response.headers) {
    if (equal_without_case(h.name, header)) {
      EXPECT_EQ(value, "") << h.name << " twice";
      value = h.value;
    }
  }
  return value;
}

Post TaskQueue::poster() {
  return [this](std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
      ++posted_;
    }
    changed_.notify_one();
  };
}

bool TaskQueue::run_until(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_until(lock, end, [this] { return !tasks_.empty(); })) {
        return false;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
  return true;
}

int64_t TaskQueue::posted() const {
  const std::lock_guard lock(mutex_);
  return posted_;
}

WatchedEngine::WatchedEngine(const EngineOptions& options)
    : engine(Engine::load(data("tiny/llama3"), options)) {}

int64_t WatchedEngine::submit(Request request, OnToken on_token) {
  if (before_submit) {
    before_submit();
  }
  return engine.submit(std::move(request), std::move(on_token));
}

bool WatchedEngine::step() {
  ++steps;
  if (before_step) {
    before_step();
  }
  return engine.step();
}

ServedEngine::Status WatchedEngine::status() const {
  return {.stats = engine.stats(),
          .free_pages = engine.free_pages(),
          .total_pages = engine.total_pages()};
}

StepGate::StepGate(WatchedEngine& engine) {
  engine.before_step = [state = state_] {
    std::unique_lock lock(state->mutex);
    state->changed.wait(lock, [&] { return state->allowed > 0; });
    --state->allowed;
  };
}

void StepGate::allow(int64_t steps) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->allowed += steps;
  }
  state_->changed.notify_one();
}

ServedTiny::ServedTiny(Options options)
    : engine(options.engine),
      context(context_of(engine.engine, options)),
      loop([this, post = tasks.poster()](std::unique_ptr<LoopEvents> events) {
        post([this, shared = std::shared_ptr<const LoopEvents>(std::move(events))] {
          completions.take(*shared);
        });
      }),
      workers(1, options.max_tasks),
      completions(context, options.limits,
                  {.loop = loop,
                   .workers = workers,
                   .post = tasks.poster(),
                   .metrics = metrics,
                   .headers = std::move(options.headers)}) {}

ServedTiny::~ServedTiny() { stop(); }

void ServedTiny::start() {
  thread_ = std::thread(
      [this] { loop.run(engine, [this](std::string_view text) { logged.emplace_back(text); }); });
}

void ServedTiny::stop() {
  if (thread_.joinable()) {
    loop.stop();
    thread_.join();
  }
}

std::shared_ptr<KeptExchange> ServedTiny::send(const std::string& body) {
  auto exchange = std::make_shared<KeptExchange>(body);
  completions.answer(exchange);
  return exchange;
}

std::shared_ptr<KeptExchange> ServedTiny::ask(const std::string& body) {
  if (!thread_.joinable()) {
    start();
  }
  auto exchange = send(body);
  EXPECT_TRUE(wait_for(exchange)) << body;
  return exchange;
}

bool ServedTiny::wait_for(const std::shared_ptr<KeptExchange>& exchange) {
  return tasks.run_until([&] { return exchange->done(); });
}

}  // namespace sparsellm::testing
