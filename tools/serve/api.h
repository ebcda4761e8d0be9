#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "models/format_sum.h"
#include "tools/serve/access.h"
#include "tools/serve/completions.h"
#include "tools/serve/http.h"

namespace sparsellm {

// What the server is doing; whatever is not `ready` answers 503 to all that needs the model.
enum class ServeState : uint8_t { loading, ready, draining, lost };

// The endpoints. Of the server's thread; until there is a model, start() has not been called.
class Api {
 public:
  struct Options {
    AccessOptions access;
    std::string model;    // its name
    std::string version;  // of the program
    std::function<ServeMetrics::Now()> now;
  };
  explicit Api(Options options);

  // From here on the server is ready, unless its end has begun meanwhile.
  void start(std::shared_ptr<const CompletionContext> context, Completions& completions,
             ServeMetrics& metrics, WorkerPool& workers, Post post);
  // Tasks that wait for a worker when the device is lost are not begun any more. Nothing follows
  // this state.
  void set_state(ServeState state);
  // The body that GET /layers has.
  void set_layers(std::string body) { layers_ = std::move(body); }

  bool empty() const { return tasks_ == 0; }  // no answer is being made by a worker
  // Those of every answer.
  std::vector<HttpHeader> headers() const { return access_.cors_headers(); }

  // HttpHandlers::check, handle and error.
  std::optional<HttpResponse> check(const HttpHead& head) const;
  void handle(const std::shared_ptr<HttpExchange>& exchange);
  HttpResponse error(int status, std::string_view why) const;

 private:
  struct Endpoint;
  static std::span<const Endpoint> endpoints();
  static const Endpoint* find(std::string_view path, std::string_view method);

  void respond(HttpExchange& exchange, HttpResponse response) const;
  HttpResponse preflight(const HttpHead& head) const;
  void health(HttpExchange& exchange) const;
  void models(HttpExchange& exchange) const;
  void metrics(HttpExchange& exchange) const;
  void page(HttpExchange& exchange) const;
  // Answers with what `make` returns for the body, which a worker calls.
  using Make = std::string (*)(const CompletionContext& context, std::string_view body);
  void answer_by_worker(const std::shared_ptr<HttpExchange>& exchange, Make make);
  std::string_view unavailable() const;  // why; empty: the model is there

  Access access_;
  Options options_;
  ServeState state_ = ServeState::loading;
  int64_t started_;  // seconds since 1970

  std::shared_ptr<const CompletionContext> context_;
  Completions* completions_ = nullptr;
  ServeMetrics* metrics_ = nullptr;
  WorkerPool* workers_ = nullptr;
  std::string layers_;
  Post post_;
  int64_t tasks_ = 0;  // of workers
  std::shared_ptr<std::atomic<bool>> lost_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace sparsellm
