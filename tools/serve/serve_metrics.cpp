#include "tools/serve/serve_metrics.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace sparsellm {
namespace {

constexpr std::array kLatencies{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25, 0.5,
                                0.75,  1.0,   2.5,  5.0,  7.5,  10.0, 20.0, 40.0, 80.0};
constexpr std::array kTokenTimes{0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03,
                                 0.04,  0.05,   0.075, 0.1,    0.15, 0.2,   0.3,  0.5,   1.0};
constexpr std::array kRequestTimes{0.01, 0.05, 0.1,  0.3,  0.5,  0.8,  1.0,   1.5,   2.0,  2.5,
                                   5.0,  10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0};

// A label's value: backslash, quote and newline are the only characters that are written another
// way.
std::string label_value(std::string_view text) {
  std::string value;
  for (const char c : text) {
    if (c == '\\' || c == '"') {
      value += '\\';
    }
    value += c == '\n' ? ' ' : c;
  }
  return value;
}

struct Writer {
  std::string_view labels;
  std::string out = {};

  template <class Number>
  void one(std::string_view name, std::string_view type, std::string_view help, Number value) {
    head(name, type, help);
    line(name, {}, value);
  }
  void head(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <class Number>
  void line(std::string_view name, std::string_view more, Number value) {
    fmt::format_to(std::back_inserter(out), "{}{{{}{}}} {}\n", name, labels, more, value);
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& values) {
    head(name, "histogram", help);
    values.append(name, labels, out);
  }
};

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}

void Histogram::add(double value) {
  const auto place = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<size_t>(place)];
  sum_ += value;
}

void Histogram::append(std::string_view name, std::string_view labels, std::string& out) const {
  int64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    fmt::format_to(std::back_inserter(out), "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound,
                   total);
  }
  fmt::format_to(std::back_inserter(out), "{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels,
                 sum_, name, labels, total);
}

ServeMetrics::ServeMetrics(std::string model)
    : time_to_first_token(kLatencies),
      inter_token(kTokenTimes),
      end_to_end(kRequestTimes),
      queue_time(kRequestTimes),
      model_label_(fmt::format("model_name=\"{}\"", label_value(model))) {}

std::string ServeMetrics::text(const Now& now) const {
  const EngineStats& stats = now.engine.stats;
  const auto pages = static_cast<double>(std::max<int64_t>(now.engine.total_pages, 1));
  const double used = static_cast<double>(now.engine.total_pages - now.engine.free_pages) / pages;
  Writer to{.labels = model_label_};
  to.one("vllm:num_requests_running", "gauge", "Samples of requests that are being computed.",
         stats.running);
  to.one("vllm:num_requests_waiting", "gauge", "Samples of requests that wait.", stats.waiting);
  to.one("vllm:kv_cache_usage_perc", "gauge",
         "Share of the pages of the KV cache in use; 1 is all.", used);
  to.one("vllm:num_preemptions_total", "counter", "Requests that lost their pages to an older one.",
         stats.preemptions);
  to.one("vllm:prompt_tokens_total", "counter", "Tokens of prompts.", prompt_tokens);
  to.one("vllm:generation_tokens_total", "counter", "Tokens generated.", generation_tokens);
  to.head("vllm:request_success_total", "counter",
          "Samples that came to their end, by its reason.");
  for (const FinishReason reason : {FinishReason::stop, FinishReason::length}) {
    const auto found = finished_.find(reason);
    to.line("vllm:request_success_total", fmt::format(",finished_reason=\"{}\"", name_of(reason)),
            found == finished_.end() ? 0 : found->second);
  }
  to.histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
               time_to_first_token);
  to.histogram("vllm:inter_token_latency_seconds", "Between tokens of a request.", inter_token);
  to.histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its last token.",
               end_to_end);
  to.histogram("vllm:request_queue_time_seconds",
               "From a request's arrival until it begins to be computed.", queue_time);
  to.one("sparsellm:steps_total", "counter", "Steps of the engine.", stats.steps);
  to.one("sparsellm:step_seconds_total", "counter", "Time of these steps.",
         stats.prefill_seconds + stats.decode_seconds);
  to.one("sparsellm:requests_cancelled_total", "counter",
         "Requests that ended because their client left or their time was over.", cancelled);
  to.one("sparsellm:requests_failed_total", "counter", "Requests that ended with an error.",
         failed);
  to.one("sparsellm:requests_refused_total", "counter", "Requests refused for want of room.",
         refused);
  to.one("sparsellm:slow_clients_total", "counter", "Clients cut off because they did not read.",
         now.slow_clients);
  to.one("sparsellm:connections", "gauge", "Open connections.", now.connections);
  to.head("sparsellm:weight_bytes", "gauge", "Bytes of the linear layers' weights, by format.");
  for (const FormatSum& sum : now.weights) {
    to.line("sparsellm:weight_bytes", fmt::format(",format=\"{}\"", label_value(sum.format)),
            sum.bytes);
  }
  return std::move(to.out);
}

}  // namespace sparsellm
