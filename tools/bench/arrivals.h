#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tools/bench/requests.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Requests that come one by one, as those of many independent users do: a Poisson process.
struct ArrivalOptions {
  double rate = 1.0;  // requests per second on average
  int64_t requests = 100;
  LengthRange prompt{64, 64};    // random tokens
  LengthRange output{512, 512};  // tokens generated for each, greedily, EOS excluded
  uint64_t seed = 0;             // of times, lengths and prompts
  int ranks = 1;                 // that share the model
  Device device;                 // of rank 0 of the engine
  std::string pattern = {};      // of the zeros in random weights, for the report
  // Called after every step with requests that are done and in all; what it throws ends the
  // benchmark.
  std::function<void(int64_t done, int64_t total)> progress;
};

// Seconds from the start at which `count` requests arrive, ascending: the gaps are exponential.
std::vector<double> poisson_arrivals(double rate, int64_t count, uint64_t seed);

// What the requests that arrive ask for, one after the other: the same wherever they go.
class ArrivingRequests {
 public:
  ArrivingRequests(LengthRange prompt, LengthRange output, uint64_t seed);

  Request next(int64_t vocab_size);

 private:
  LengthRange prompt_;
  LengthRange output_;
  BenchRandom random_;
};

// Adds two tables. "serving", one row:
//   throughput    generated tokens / (seconds from the first arrival to the last token * GPUs),
//                 in throughput_unit()
//   requests/s    done in these seconds; as many as arrive, if the engine keeps up
//   preemptions   requests that lost their KV cache pages to an older one and were computed again
// "latency": add_latency_table(), without inter-token latencies. Times count from when a request
// arrived, not from when a step in progress allowed it to be submitted. Throws Error if the engine
// refuses a request.
void bench_arrivals(Engine& engine, const ArrivalOptions& options, ReportWriter& report);

}  // namespace sparsellm
