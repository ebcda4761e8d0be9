#include "tools/bench/arrivals.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <utility>

#include "kernels/base/error.h"
#include "tools/bench/latency_table.h"
#include "tools/bench/throughput.h"

namespace sparsellm {
namespace {

using Clock = std::chrono::steady_clock;

// Of a wait for the next arrival, so that an interrupt is noticed soon.
constexpr double kLongestSleep = 0.05;

// A request and what became of it.
struct Arrival {
  Request request;
  RequestTimes times;
};

struct Served {
  std::vector<RequestTimes> requests;
  int64_t preemptions = 0;
};

std::vector<Arrival> make_arrivals(const ArrivalOptions& options, int64_t vocab_size) {
  const std::vector<double> times = poisson_arrivals(options.rate, options.requests, options.seed);
  ArrivingRequests requests(options.prompt, options.output, options.seed);
  std::vector<Arrival> arrivals;
  for (const double time : times) {
    arrivals.push_back({.request = requests.next(vocab_size), .times = {.arrival = time}});
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
  std::vector<Arrival> arrivals = make_arrivals(options, engine.config().vocab_size);
  const int64_t preemptions_before = engine.stats().preemptions;
  int64_t finished = 0;
  std::string error;
  OpenRequests requests(engine);  // cancelled before what the callbacks refer to goes
  const Clock::time_point start = Clock::now();
  const auto now = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto listener = [&](RequestTimes& times) {
    return [&](const TokenEvent& event) {
      if (event.token) {
        times.last_token = now();
        times.first_token = times.tokens == 0 ? times.last_token : times.first_token;
        times.tokens += 1;
      }
      finished += event.finish ? 1 : 0;
      if (!event.error.empty()) {
        error = event.error;
      }
    };
  };
  for (size_t next = 0; finished < options.requests;) {
    for (; next < arrivals.size() && arrivals[next].times.arrival <= now(); ++next) {
      requests.submit(std::move(arrivals[next].request), listener(arrivals[next].times));
    }
    if (!engine.step()) {
      require(next < arrivals.size(), "the engine left {} of {} requests unfinished",
              options.requests - finished, options.requests);
      const double wait = std::clamp(arrivals[next].times.arrival - now(), 0.0, kLongestSleep);
      std::this_thread::sleep_for(std::chrono::duration<double>(wait));
    }
    require(error.empty(), "{}", error);
    if (options.progress) {
      options.progress(finished, options.requests);
    }
  }
  Served served;
  for (const Arrival& arrival : arrivals) {
    served.requests.push_back(arrival.times);
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
  for (const RequestTimes& request : served.requests) {
    tokens += request.tokens;
  }
  const double seconds = serving_seconds(served.requests);
  return {options.pattern,
          int64_t{options.ranks},
          options.rate,
          options.requests,
          tokens,
          seconds,
          static_cast<double>(tokens) / (seconds * gpus_of(options.device, options.ranks)),
          static_cast<double>(options.requests) / seconds,
          served.preemptions};
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

ArrivingRequests::ArrivingRequests(LengthRange prompt, LengthRange output, uint64_t seed)
    : prompt_(prompt), output_(output), random_(seed + 1) {}  // independent of the times

Request ArrivingRequests::next(int64_t vocab_size) {
  const int64_t prompt = random_.uniform(prompt_.min, prompt_.max);
  const int64_t output = random_.uniform(output_.min, output_.max);
  return random_request(random_, vocab_size, prompt, output);
}

void bench_arrivals(Engine& engine, const ArrivalOptions& options, ReportWriter& report) {
  require(options.requests >= 1, "{} requests; use 1 or more", options.requests);
  Served served = serve(engine, options);
  report.begin_table("serving", serving_columns(options.device));
  report.add_row(serving_row(options, served));
  add_latency_table({.pattern = options.pattern, .requests = std::move(served.requests)}, report);
}

}  // namespace sparsellm
