#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tools/serve/completion_request.h"
#include "tools/serve/engine_loop.h"
#include "tools/serve/http.h"
#include "tools/serve/serve_metrics.h"
#include "tools/serve/worker_pool.h"

namespace sparsellm {

struct CompletionLimits {
  int64_t samples = 64 + 1024;                       // in the engine and before it
  int64_t prompt_tokens = int64_t{64} << 20;         // of all of them
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
    std::function<void(std::function<void()>)> post;
    ServeMetrics& metrics;
  };
  Completions(std::shared_ptr<const CompletionContext> context, CompletionLimits limits,
              Parts parts);
  ~Completions();

  void answer(std::shared_ptr<HttpExchange> exchange);
  void take(const LoopEvents& events);
  // Sends comments on streams that wait, so that nobody between takes them for dead, and ends
  // requests whose time is over.
  void tick();
  // Ends all that have not ended, with this error; the engine is not told.
  void end_all(int status, std::string_view why);
  bool empty() const { return jobs_.empty() && parsing_ == 0; }

 private:
  struct Job;
  using Clock = std::chrono::steady_clock;

  void begin(std::shared_ptr<HttpExchange> exchange, CompletionRequest request,
             Clock::time_point arrival);
  void take_token(Job& job, const LoopEvents& events, const LoopEvents::Event& event,
                  Clock::time_point now);
  void complete(Job& job);
  void fail(Job& job, int status, std::string_view why);
  void cancel(Ticket ticket);
  void drop(Ticket ticket);

  std::shared_ptr<const CompletionContext> context_;
  CompletionLimits limits_;
  Parts parts_;
  std::unordered_map<Ticket, std::unique_ptr<Job>> jobs_;
  Ticket next_ticket_ = 1;
  int64_t parsing_ = 0;        // bodies that workers have
  int64_t samples_ = 0;        // of all jobs
  int64_t prompt_tokens_ = 0;  // of all jobs
};

// A JSON answer, and an error in OpenAI's form.
void respond_json(HttpExchange& exchange, std::string body);
HttpResponse error_response(int status, std::string_view why);

}  // namespace sparsellm
