#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "tools/bench/http_client.h"
#include "tools/bench/latency_table.h"
#include "tools/bench/sse_parser.h"

namespace sparsellm {

// POST /v1/completions that streams the request, whose end of sequence is never chosen. `model`:
// its name.
HttpCall streamed_completion(const Request& request, std::string_view model);

// The answer to it.
class CompletionStream final : public HttpAnswer {
 public:
  using Clock = std::chrono::steady_clock;

  // `arrival`: of the request, in seconds since `start`, as are all times. `on_finished` is called
  // once, after everything below is known.
  CompletionStream(double arrival, Clock::time_point start, std::function<void()> on_finished);

  void on_status(int status) override { status_ = status; }
  void on_body(std::string_view part) override;
  void on_end(std::string_view error) override;

  // The tokens are those that the server has counted, or else the chunks.
  const RequestTimes& times() const { return times_; }
  int64_t chunks() const { return chunks_; }                 // with a choice
  const std::vector<double>& gaps() const { return gaps_; }  // seconds between them
  const std::string& error() const { return error_; }        // empty: the stream came to its end

 private:
  void take_event(std::string_view data);
  void fail_with(std::string_view why);

  Clock::time_point start_;
  std::function<void()> on_finished_;
  int status_ = 0;
  SseParser parser_;
  std::string refusal_;  // the body, where the status is not 200
  RequestTimes times_;
  double now_ = 0.0;  // of the part that is read
  int64_t chunks_ = 0;
  std::vector<double> gaps_;
  bool done_ = false;
  std::string error_;
};

}  // namespace sparsellm
