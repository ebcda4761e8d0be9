#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/cli/report.h"

namespace sparsellm {

// When the tokens of a request came: seconds from one start.
struct RequestTimes {
  double arrival = 0.0;
  double first_token = 0.0;
  double last_token = 0.0;
  int64_t tokens = 0;
};

// What the table "latency" is made of.
struct Latencies {
  std::string pattern = {};  // of the zeros in random weights
  std::vector<RequestTimes> requests;
  // Seconds between tokens that follow each other, of all requests; absent: there is no row of it.
  std::optional<std::vector<double>> gaps = {};
};

// Adds the table: a row for each of time to first token, time per output token (of a request, after
// the first), inter-token latency and latency to the last token; mean and quantiles.
void add_latency_table(const Latencies& latencies, ReportWriter& report);

// From the first arrival to the last token.
double serving_seconds(const std::vector<RequestTimes>& requests);

}  // namespace sparsellm
