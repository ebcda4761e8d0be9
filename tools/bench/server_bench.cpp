#include "tools/bench/server_bench.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tools/bench/completion_chunk.h"
#include "tools/bench/completion_stream.h"
#include "tools/bench/latency_table.h"

namespace sparsellm {
namespace {

using ServerClock = CompletionStream::Clock;

constexpr double kLookInterval = 0.1;  // seconds
constexpr int64_t kTrialTokens = 3;

// A short answer as a whole.
class WholeAnswer final : public HttpAnswer {
 public:
  void on_status(int status) override { status_ = status; }
  void on_body(std::string_view part) override { body_ += part; }
  void on_end(std::string_view error) override {
    error_ = error;
    ended_ = true;
    if (error.empty() && status_ != 200) {
      error_ = fmt::format("HTTP {}: {}", status_, refusal_text(body_));
    }
  }

  bool ended() const { return ended_; }
  const std::string& error() const { return error_; }
  const std::string& body() const { return body_; }

 private:
  int status_ = 0;
  bool ended_ = false;
  std::string body_;
  std::string error_;
};

// Of the calling thread, in seconds.
double thread_cpu_time() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// What one run of a benchmark shares: requests are sent as they arrive, or one after the other.
class ServerRun {
 public:
  ServerRun(HttpClient& client, const ServerBenchOptions& options)
      : client_(client),
        options_(options),
        requests_(options.prompt, options.output, options.seed) {
    if (options.rate) {
      arrivals_ = poisson_arrivals(*options.rate, options.requests, options.seed);
    }
  }

  void run() {
    start_ = ServerClock::now();
    const double busy = thread_cpu_time();
    if (options_.rate) {
      send_arrived();
    } else {
      for (int64_t i = 0; i < std::min(options_.concurrency, options_.requests); ++i) {
        send(0.0);
      }
    }
    look();
    client_.run();
    busy_ = thread_cpu_time() - busy;
  }

  void add_tables(ReportWriter& report) const;

 private:
  double now() const { return std::chrono::duration<double>(ServerClock::now() - start_).count(); }

  void send(double arrival) {
    streams_.emplace_back(arrival, start_, [this] { finished(); });
    client_.send(streamed_completion(requests_.next(options_.vocabulary), options_.model),
                 streams_.back());
  }

  void send_arrived() {
    while (streams_.size() < arrivals_.size() && arrivals_[streams_.size()] <= now()) {
      send(arrivals_[streams_.size()]);
    }
    if (streams_.size() < arrivals_.size()) {
      const double wait = std::max(arrivals_[streams_.size()] - now(), 0.0);
      client_.after(wait, [this] { send_arrived(); });
    }
  }

  void finished() {
    ++finished_;
    if (!options_.rate && std::ssize(streams_) < options_.requests) {
      send(now());
    }
  }

  void look() {
    if (options_.progress) {
      options_.progress(finished_, options_.requests);
    }
    if (finished_ < options_.requests) {
      client_.after(kLookInterval, [this] { look(); });
    }
  }

  HttpClient& client_;
  const ServerBenchOptions& options_;
  ArrivingRequests requests_;
  std::vector<double> arrivals_;
  std::deque<CompletionStream> streams_;  // whose places do not change
  ServerClock::time_point start_;
  int64_t finished_ = 0;
  double busy_ = 0.0;  // seconds
};

std::vector<Column> server_columns() {
  return {{.key = "rate", .title = "arrivals", .unit = "requests/s", .decimals = 3},
          {.key = "concurrency", .title = "concurrency"},
          {.key = "requests", .title = "requests"},
          {.key = "failed", .title = "failed"},
          {.key = "tokens", .title = "tokens"},
          {.key = "chunks", .title = "chunks"},
          {.key = "seconds", .title = "time", .unit = "s", .decimals = 2},
          {.key = "tokens_per_second", .title = "throughput", .unit = "tokens/s", .decimals = 1},
          {.key = "requests_per_second", .title = "served", .unit = "requests/s", .decimals = 3},
          {.key = "client_percent", .title = "client", .unit = "% busy", .decimals = 1}};
}

void ServerRun::add_tables(ReportWriter& report) const {
  Latencies latencies;
  std::vector<double>& gaps = latencies.gaps.emplace();
  int64_t tokens = 0;
  int64_t chunks = 0;
  std::string_view error;
  for (const CompletionStream& stream : streams_) {
    if (!stream.error().empty()) {
      error = error.empty() ? stream.error() : error;
      continue;
    }
    latencies.requests.push_back(stream.times());
    gaps.insert(gaps.end(), stream.gaps().begin(), stream.gaps().end());
    tokens += stream.times().tokens;
    chunks += stream.chunks();
  }
  const int64_t served = std::ssize(latencies.requests);
  const int64_t failed = options_.requests - served;
  require(served > 0, "all of {} requests failed; the first: {}", failed, error);
  const double seconds = serving_seconds(latencies.requests);
  report.begin_table("serving", server_columns());
  const Cell rate = options_.rate ? Cell(*options_.rate) : Cell();
  const Cell concurrency = options_.rate ? Cell() : Cell(options_.concurrency);
  report.add_row({rate, concurrency, options_.requests, failed, tokens, chunks, seconds,
                  static_cast<double>(tokens) / seconds, static_cast<double>(served) / seconds,
                  100.0 * busy_ / seconds});
  add_latency_table(latencies, report);
  if (failed > 0) {
    report.begin_table("failures",
                       {{.key = "failed", .title = "failed"},
                        {.key = "first_error", .title = "first", .kind = Column::Kind::text}});
    report.add_row({failed, std::string(error)});
  }
}

// Runs the client until `ended`, and notices an interrupt meanwhile.
template <class Ended>
void run_until(HttpClient& client, const ServerBenchOptions& options, const Ended& ended) {
  std::function<void()> look = [&] {
    if (options.progress) {
      options.progress(0, options.requests);
    }
    if (!ended()) {
      client.after(kLookInterval, look);
    }
  };
  look();
  client.run();
}

// As many at once; returns the first error.
std::string try_requests(HttpClient& client, const ServerBenchOptions& options, int64_t count) {
  BenchRandom random(options.seed);
  int64_t ended = 0;
  std::deque<CompletionStream> streams;
  for (int64_t i = 0; i < count; ++i) {
    const Request request = random_request(random, options.vocabulary, options.prompt.max,
                                           std::min(options.output.min, kTrialTokens));
    streams.emplace_back(0.0, ServerClock::now(), [&ended] { ++ended; });
    client.send(streamed_completion(request, options.model), streams.back());
  }
  run_until(client, options, [&] { return ended == count; });
  for (const CompletionStream& stream : streams) {
    if (!stream.error().empty()) {
      return std::string(stream.error());
    }
  }
  return {};
}

// What a server does once for a number of requests it does before anything is measured. Only the
// first request has to be answered.
void warm_up(HttpClient& client, const ServerBenchOptions& options) {
  const std::string error = try_requests(client, options, 1);
  require(error.empty(), "POST /v1/completions: {}", error);
  if (!options.rate) {
    for (int64_t count = 2; count <= std::min(options.concurrency, options.requests); count *= 2) {
      try_requests(client, options, count);
    }
  }
}

}  // namespace

std::string listed_model(HttpClient& client, const ServerBenchOptions& options) {
  constexpr int kModelsDepth = 16;
  constexpr char kSource[] = "GET /v1/models";
  WholeAnswer answer;
  client.send({.method = "GET", .path = "/v1/models"}, answer);
  run_until(client, options, [&] { return answer.ended(); });
  require(answer.error().empty(), "{}: {}", kSource, answer.error());
  const JsonDocument models = parse_json(answer.body(), kSource, kModelsDepth);
  return JsonValue(models, kSource)["data"].element(0)["id"].string();
}

void bench_server(HttpClient& client, const ServerBenchOptions& options, ReportWriter& report) {
  require(options.requests >= 1, "{} requests; use 1 or more", options.requests);
  require(options.concurrency >= 1, "{} requests at a time; use 1 or more", options.concurrency);
  warm_up(client, options);
  ServerRun run(client, options);
  run.run();
  run.add_tables(report);
}

}  // namespace sparsellm
