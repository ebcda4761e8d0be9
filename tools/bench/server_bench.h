#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tools/bench/arrivals.h"
#include "tools/bench/http_client.h"
#include "tools/bench/requests.h"
#include "tools/cli/report.h"

namespace sparsellm {

// The requests of ArrivalOptions, for a server.
struct ServerBenchOptions {
  std::string model = {};           // its name
  int64_t vocabulary = 1000;        // prompts have tokens below
  std::optional<double> rate = {};  // of a Poisson process, in requests per second
  // Without a rate: the number of requests that run at once. One that ends is followed by the next.
  int64_t concurrency = 1;
  int64_t requests = ArrivalOptions().requests;
  LengthRange prompt{64, 64};
  LengthRange output{512, 512};
  uint64_t seed = 0;
  // Called ten times a second; what it throws ends the benchmark.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

// The name of the first model that a server lists. Throws Error for a server that cannot be reached
// or refuses.
std::string listed_model(HttpClient& client, const ServerBenchOptions& options);

// Sends the requests to a server of OpenAI's API, after one that is not measured, by which a server
// that cannot be reached or refuses is noticed, and without a rate after 2, 4, ... at once, up to
// the concurrency. Adds the tables
//   serving    one row: requests, failures, tokens that the server counted and chunks that came,
//              seconds from the first arrival to the last token, tokens and requests in a second,
//              and the share of these seconds in which this program's thread was busy
//   latency    add_latency_table(), with inter-token latencies; without rate a request arrives when
//              it is sent
//   failures   how many, and the first of their errors; only if there are any
// Requests that failed are in no other figure. Throws Error if the first one or all fail.
void bench_server(HttpClient& client, const ServerBenchOptions& options, ReportWriter& report);

}  // namespace sparsellm
