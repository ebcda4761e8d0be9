#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "models/format_sum.h"
#include "tools/serve/engine_loop.h"

namespace sparsellm {

// Counts in buckets, as Prometheus has them. Values are seconds.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds);

  void add(double value);
  void append(std::string_view name, std::string_view labels, std::string& out) const;

 private:
  std::vector<double> bounds_;   // ascending
  std::vector<int64_t> counts_;  // one more than bounds
  double sum_ = 0.0;
};

// What /metrics reports, in the text format of Prometheus; names that begin with "vllm:" mean what
// vLLM's do. Of the server's thread.
class ServeMetrics {
 public:
  explicit ServeMetrics(std::string model);

  Histogram time_to_first_token;
  Histogram inter_token;
  Histogram end_to_end;
  Histogram queue_time;
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  int64_t cancelled = 0;  // requests whose client left or whose time was over
  int64_t failed = 0;
  int64_t refused = 0;  // for want of room

  void count_finish(FinishReason reason) { ++finished_[reason]; }

  struct Now {
    int64_t connections = 0;
    int64_t slow_clients = 0;  // cut off, in all
    ServedEngine::Status engine;
    std::span<const FormatSum> weights;
  };
  std::string text(const Now& now) const;

 private:
  std::string model_label_;
  std::map<FinishReason, int64_t> finished_;
};

}  // namespace sparsellm
