#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "tools/serve/completions.h"

namespace sparsellm::testing {

// An exchange without a connection, which keeps what is answered.
class KeptExchange final : public HttpExchange {
 public:
  explicit KeptExchange(std::string body, HttpHead head = {});

  void respond(HttpResponse response) override;
  void begin_stream(HttpResponse head) override;
  void write(std::string_view text) override;
  void end() override;
  bool answered() const override { return response || stream || gone_; }

  void leave();  // as a client does
  bool done() const { return response || ended; }

  nlohmann::json json() const;  // of the response
  std::string error() const;    // its message, or that of the last event
  // Of the stream: what stands after "data: ", without "[DONE]".
  std::vector<nlohmann::json> events() const;
  bool has_done() const;  // "[DONE]" is the last event

  std::optional<HttpResponse> response;
  std::optional<HttpResponse> stream;  // its head
  std::vector<std::string> writes;
  bool ended = false;
  std::function<void()> on_write = {};  // after each
};

std::string value_of(const HttpResponse& response, std::string_view header);  // "": it has none

// The server's thread, which is that of the test.
class TaskQueue {
 public:
  Post poster();
  // Runs tasks until `done`; false if that takes longer than anything should.
  bool run_until(const std::function<bool()>& done);
  int64_t posted() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  int64_t posted_ = 0;
};

// An engine of a tiny model, or what a test makes of it. Hooks are called on the loop's thread.
class WatchedEngine final : public ServedEngine {
 public:
  explicit WatchedEngine(const EngineOptions& options = {});

  int64_t submit(Request request, OnToken on_token) override;
  void cancel(int64_t id) override { engine.cancel(id); }
  bool step() override;
  const std::optional<std::string>& failed() const override { return lost; }
  Status status() const override;

  Engine engine;
  std::optional<std::string> lost = {};
  std::function<void()> before_submit = {};
  std::function<void()> before_step = {};
  int64_t steps = 0;  // calls of step()
};

// Holds an engine before its steps, as long as this is there.
class StepGate {
 public:
  explicit StepGate(WatchedEngine& engine);
  ~StepGate() { open(); }
  StepGate(const StepGate&) = delete;
  StepGate& operator=(const StepGate&) = delete;

  void allow(int64_t steps);  // more
  void open() { allow(int64_t{1} << 40); }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int64_t allowed = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Completions of WatchedEngine.
class ServedTiny {
 public:
  struct Options {
    CompletionLimits limits = {};
    EngineOptions engine = {};
    std::vector<HttpHeader> headers = {};
    size_t max_tasks = 1024;
    const Tokenizer* tokenizer = nullptr;  // instead of the model's
  };
  ServedTiny() : ServedTiny(Options{}) {}
  explicit ServedTiny(Options options);
  ~ServedTiny();
  ServedTiny(const ServedTiny&) = delete;
  ServedTiny& operator=(const ServedTiny&) = delete;

  void start();  // the engine's thread
  void stop();   // and waits for it

  std::shared_ptr<KeptExchange> send(const std::string& body);  // to completions
  // Sends, and waits for the end of the answer.
  std::shared_ptr<KeptExchange> ask(const std::string& body);
  bool wait_for(const std::shared_ptr<KeptExchange>& exchange);

  WatchedEngine engine;
  std::shared_ptr<const CompletionContext> context;
  TaskQueue tasks;
  ServeMetrics metrics{"tiny"};
  EngineLoop loop;
  WorkerPool workers;
  Completions completions;
  std::vector<std::string> logged = {};  // after stop()

 private:
  std::thread thread_;
};

}  // namespace sparsellm::testing
