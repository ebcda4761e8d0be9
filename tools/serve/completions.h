#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tools/serve/completion_request.h"
#include "tools/serve/engine_loop.h"
#include "tools/serve/http.h"
#include "tools/serve/refusal.h"
#include "tools/serve/serve_metrics.h"
#include "tools/serve/worker_pool.h"

namespace sparsellm {

// Of all requests together. One that is beyond them by itself is refused with 400, one that has to
// wait for others with 503.
struct CompletionLimits {
  int64_t samples = 64 + 1024;                       // in the engine and before it
  int64_t prompt_tokens = int64_t{64} << 20;         // of all of them
  int64_t bytes = int64_t{4} << 30;                  // CompletionRequest::bytes
  std::optional<std::chrono::seconds> timeout = {};  // of a request, from its arrival
};

// The requests to /v1/completions, from their bodies to their answers. All calls are on the
// server's thread. The workers parse and tokenize the bodies and return the results through `post`;
// take() receives the engine's tokens.
class Completions {
 public:
  struct Parts {
    EngineLoop& loop;
    WorkerPool& workers;
    Post post;
    ServeMetrics& metrics;
    std::vector<HttpHeader> headers = {};  // of every answer
  };
  Completions(std::shared_ptr<const CompletionContext> context, CompletionLimits limits,
              Parts parts);
  ~Completions();

  void answer(const std::shared_ptr<HttpExchange>& exchange);
  void take(const LoopEvents& events);
  // Sends comments on streams that wait, so that nobody between takes them for dead, and ends
  // requests whose time is over.
  void tick() { tick(Clock::now()); }
  void tick(std::chrono::steady_clock::time_point now);
  // Ends all that have not ended with this error, and all that come after; the engine is not told.
  void end_all(int status, std::string_view why);
  bool empty() const { return jobs_.empty() && parsing_ == 0; }

 private:
  struct Job;
  using Clock = std::chrono::steady_clock;
  struct Reading;
  using EventRun = std::span<const LoopEvents::Event>;  // of one ticket

  void end_reading(Reading& reading);
  void begin(const std::shared_ptr<HttpExchange>& exchange, CompletionRequest request,
             Clock::time_point arrival);
  void take_run(Job& job, const LoopEvents& events, EventRun run, Clock::time_point now);
  std::optional<Refusal> take_event(Job& job, const LoopEvents& events,
                                    const LoopEvents::Event& event, Clock::time_point now,
                                    std::string& chunks);
  void begin_stream(Job& job);
  void count_token(Job& job, const LoopEvents::Event& event, Clock::time_point now);
  void end_with(Ticket ticket, const Refusal& refusal);
  void complete(Job& job);
  void fail(Job& job, int status, std::string_view why);
  // Refused for want of room.
  void refuse(HttpExchange& exchange);
  void respond(HttpExchange& exchange, HttpResponse response) const;
  void cancel(Ticket ticket);
  void drop(Ticket ticket);

  std::shared_ptr<const CompletionContext> context_;
  CompletionLimits limits_;
  Parts parts_;
  std::unordered_map<Ticket, std::unique_ptr<Job>> jobs_;
  Ticket next_ticket_ = 1;
  std::mt19937_64 random_{std::random_device{}()};  // for names of answers
  int64_t parsing_ = 0;                             // bodies that workers have
  int64_t samples_ = 0;                             // of all jobs
  int64_t prompt_tokens_ = 0;                       // of all jobs
  int64_t bytes_ = 0;                               // of all jobs
  std::optional<Refusal> ended_;
  // The same for workers, so that they do nothing in vain.
  std::shared_ptr<std::atomic<bool>> ends_ = std::make_shared<std::atomic<bool>>(false);
};

// An error in OpenAI's form.
HttpResponse error_response(int status, std::string_view why);

}  // namespace sparsellm
