#include "tools/bench/arrivals.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <utility>

#include "kernels/base/error.h"
#include "tools/bench/throughput.h"

namespace sparsellm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMilli = 1e3;
// Of a wait for the next arrival, so that an interrupt is noticed soon.
constexpr double kLongestSleep = 0.05;

// A request and what became of it; times in seconds from the start.
struct Arrival {
  double time = 0.0;
  Request request;
  double first_token = 0.0;
  double last_token = 0.0;
  int64_t tokens = 0;
};

struct Served {
  std::vector<Arrival> arrivals;
  double seconds = 0.0;  // from the first arrival to the last token
  int64_t preemptions = 0;
};

std::vector<Arrival> make_arrivals(const ArrivalOptions& options, int64_t vocab_size) {
  const std::vector<double> times = poisson_arrivals(options.rate, options.requests, options.seed);
  BenchRandom random(options.seed + 1);  // independent of the times
  std::vector<Arrival> arrivals;
  for (double time : times) {
    const int64_t prompt = random.uniform(options.prompt.min, options.prompt.max);
    const int64_t output = random.uniform(options.output.min, options.output.max);
    arrivals.push_back({.time = time,
                        .request = random_request(random, vocab_size, prompt, output),
                        .first_token = 0.0,
                        .last_token = 0.0,
                        .tokens = 0});
  }
  return arrivals;
}

// What is done once for a number of requests is done before anything is measured.
void warm_up(Engine& engine, const ArrivalOptions& options) {
  constexpr int64_t kMaxRequests = 256;
  BenchRandom random(options.seed);
  for (int64_t count = 1; count <= std::min(2 * options.requests, kMaxRequests); count *= 2) {
    std::vector<Request> requests;
    for (int64_t i = 0; i < count; ++i) {
      requests.push_back(random_request(random, engine.config().vocab_size, options.prompt.min,
                                        std::min<int64_t>(options.output.min, 3)));
    }
    engine.generate(std::move(requests));
  }
}

Served serve(Engine& engine, const ArrivalOptions& options) {
  warm_up(engine, options);
  Served served;
  std::vector<Arrival>& arrivals = served.arrivals;
  arrivals = make_arrivals(options, engine.config().vocab_size);
  const int64_t preemptions_before = engine.stats().preemptions;
  int64_t finished = 0;
  std::string error;
  OpenRequests requests(engine);  // cancelled before what the callbacks refer to goes
  const Clock::time_point start = Clock::now();
  const auto now = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto listener = [&](Arrival& arrival) {
    return [&](const TokenEvent& event) {
      if (event.token) {
        arrival.last_token = now();
        arrival.first_token = arrival.tokens == 0 ? arrival.last_token : arrival.first_token;
        arrival.tokens += 1;
      }
      finished += event.finish ? 1 : 0;
      if (!event.error.empty()) {
        error = event.error;
      }
    };
  };
  for (size_t next = 0; finished < options.requests;) {
    for (; next < arrivals.size() && arrivals[next].time <= now(); ++next) {
      requests.submit(std::move(arrivals[next].request), listener(arrivals[next]));
    }
    if (!engine.step()) {
      require(next < arrivals.size(), "the engine left {} of {} requests unfinished",
              options.requests - finished, options.requests);
      const double wait = std::clamp(arrivals[next].time - now(), 0.0, kLongestSleep);
      std::this_thread::sleep_for(std::chrono::duration<double>(wait));
    }
    require(error.empty(), "{}", error);
    if (options.progress) {
      options.progress(finished, options.requests);
    }
  }
  for (const Arrival& arrival : arrivals) {
    served.seconds = std::max(served.seconds, arrival.last_token - arrivals.front().time);
  }
  served.preemptions = engine.stats().preemptions - preemptions_before;
  return served;
}

std::vector<Column> serving_columns(Device device) {
  const auto number = [](const char* key, const char* title, const char* unit, int decimals) {
    return Column{.key = key,
                  .title = title,
                  .unit = unit,
                  .kind = Column::Kind::number,
                  .decimals = decimals};
  };
  return {Column{.key = "pattern",
                 .title = "pattern",
                 .unit = {},
                 .kind = Column::Kind::text,
                 .decimals = 0},
          number("ranks", "ranks", "", 0),
          number("rate", "arrivals", "requests/s", 3),
          number("requests", "requests", "", 0),
          number("tokens", "tokens", "", 0),
          number("seconds", "time", "s", 2),
          number("tokens_per_gpu_second", "throughput", throughput_unit(device), 1),
          number("requests_per_second", "served", "requests/s", 3),
          number("preemptions", "preemptions", "", 0)};
}

Row serving_row(const ArrivalOptions& options, const Served& served) {
  int64_t tokens = 0;
  for (const Arrival& arrival : served.arrivals) {
    tokens += arrival.tokens;
  }
  return {options.pattern,
          int64_t{options.ranks},
          options.rate,
          options.requests,
          tokens,
          served.seconds,
          static_cast<double>(tokens) / (served.seconds * gpus_of(options.device, options.ranks)),
          static_cast<double>(options.requests) / served.seconds,
          served.preemptions};
}

std::vector<Column> latency_columns() {
  std::vector<Column> columns{
      {.key = "pattern", .title = "pattern", .unit = {}, .kind = Column::Kind::text, .decimals = 0},
      {.key = "metric", .title = "metric", .unit = {}, .kind = Column::Kind::text, .decimals = 0}};
  for (const char* title : {"mean", "p50", "p90", "p99", "max"}) {
    columns.push_back({.key = fmt::format("{}_ms", title),
                       .title = title,
                       .unit = "ms",
                       .kind = Column::Kind::number,
                       .decimals = 2});
  }
  return columns;
}

Row latency_row(const ArrivalOptions& options, std::string metric,
                const std::vector<double>& seconds) {
  Row row(latency_columns().size());
  row[0] = options.pattern;
  row[1] = std::move(metric);
  if (!seconds.empty()) {
    row[2] = kMilli * mean(seconds);
    row[3] = kMilli * quantile(seconds, 0.5);
    row[4] = kMilli * quantile(seconds, 0.9);
    row[5] = kMilli * quantile(seconds, 0.99);
    row[6] = kMilli * quantile(seconds, 1.0);
  }
  return row;
}

}  // namespace

std::vector<double> poisson_arrivals(double rate, int64_t count, uint64_t seed) {
  require(rate > 0.0 && std::isfinite(rate), "{} requests per second; use a number above 0", rate);
  BenchRandom random(seed);
  std::vector<double> times;
  double time = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    time += random.exponential(rate);
    times.push_back(time);
  }
  return times;
}

void bench_arrivals(Engine& engine, const ArrivalOptions& options, ReportWriter& report) {
  require(options.requests >= 1, "{} requests; use 1 or more", options.requests);
  const Served served = serve(engine, options);
  std::vector<double> first;
  std::vector<double> per_token;  // of requests that have more than one
  std::vector<double> last;
  for (const Arrival& arrival : served.arrivals) {
    first.push_back(arrival.first_token - arrival.time);
    last.push_back(arrival.last_token - arrival.time);
    if (arrival.tokens > 1) {
      per_token.push_back((arrival.last_token - arrival.first_token) /
                          static_cast<double>(arrival.tokens - 1));
    }
  }
  report.begin_table("serving", serving_columns(options.device));
  report.add_row(serving_row(options, served));
  report.begin_table("latency", latency_columns());
  report.add_row(latency_row(options, "time to first token", first));
  report.add_row(latency_row(options, "time per output token", per_token));
  report.add_row(latency_row(options, "latency", last));
}

}  // namespace sparsellm
