#include "tools/bench/latency_table.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "tools/cli/statistics.h"

namespace sparsellm {
namespace {

constexpr double kMilliseconds = 1e3;

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

Row latency_row(const std::string& pattern, std::string metric,
                const std::vector<double>& seconds) {
  Row row(latency_columns().size());
  row[0] = pattern;
  row[1] = std::move(metric);
  if (!seconds.empty()) {
    row[2] = kMilliseconds * mean(seconds);
    row[3] = kMilliseconds * quantile(seconds, 0.5);
    row[4] = kMilliseconds * quantile(seconds, 0.9);
    row[5] = kMilliseconds * quantile(seconds, 0.99);
    row[6] = kMilliseconds * quantile(seconds, 1.0);
  }
  return row;
}

}  // namespace

void add_latency_table(const Latencies& latencies, ReportWriter& report) {
  std::vector<double> first;
  std::vector<double> per_token;  // of requests that have more than one
  std::vector<double> last;
  for (const RequestTimes& request : latencies.requests) {
    first.push_back(request.first_token - request.arrival);
    last.push_back(request.last_token - request.arrival);
    if (request.tokens > 1) {
      per_token.push_back((request.last_token - request.first_token) /
                          static_cast<double>(request.tokens - 1));
    }
  }
  const std::string& pattern = latencies.pattern;
  report.begin_table("latency", latency_columns());
  report.add_row(latency_row(pattern, "time to first token", first));
  report.add_row(latency_row(pattern, "time per output token", per_token));
  if (latencies.gaps) {
    report.add_row(latency_row(pattern, "inter-token latency", *latencies.gaps));
  }
  report.add_row(latency_row(pattern, "latency", last));
}

double serving_seconds(const std::vector<RequestTimes>& requests) {
  if (requests.empty()) {
    return 0.0;
  }
  double first = requests.front().arrival;
  double last = requests.front().last_token;
  for (const RequestTimes& request : requests) {
    first = std::min(first, request.arrival);
    last = std::max(last, request.last_token);
  }
  return last - first;
}

}  // namespace sparsellm
