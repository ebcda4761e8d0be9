// The text format of Prometheus, version 0.0.4, read strictly.

#include "tools/serve/serve_metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace sparsellm {
namespace {

struct Family {
  std::string type;
  bool has_help = false;
  // By name with labels, in their order.
  std::vector<std::pair<std::string, double>> values;
};

std::map<std::string, Family> parse(const std::string& text) {
  std::map<std::string, Family> families;
  std::string current;
  const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)");
  const std::regex type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram)");
  const std::regex value(
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)\{(([a-zA-Z_]+="([^"\\\n]|\\["\\n])*",?)+)\} ([-+0-9.e]+))re");
  EXPECT_TRUE(text.ends_with("\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      EXPECT_TRUE(families.find(match[1]) == families.end()) << "twice: " << line;
      current = match[1];
      families[current].has_help = true;
    } else if (std::regex_match(line, match, type)) {
      EXPECT_EQ(match[1], current) << line;
      families[current].type = match[2];
    } else if (std::regex_match(line, match, value)) {
      const std::string name = match[1];
      EXPECT_TRUE(name == current ||
                  (families[current].type == "histogram" && name.starts_with(current + "_")))
          << line;
      families[current].values.emplace_back(name + "{" + match[2].str() + "}", std::stod(match[5]));
    } else {
      ADD_FAILURE() << "no line of the format: " << line;
    }
  }
  return families;
}

ServeMetrics::Now now() { return {.engine = {}, .weights = {}}; }

double value_of(const Family& family, const std::string& part) {
  for (const auto& [name, value] : family.values) {
    if (name.find(part) != std::string::npos) {
      return value;
    }
  }
  ADD_FAILURE() << "no value with " << part;
  return -1;
}

TEST(ServeMetrics, IsTheTextFormat) {
  std::vector<FormatSum> weights(2);
  weights[0].format = "tca_bme";
  weights[0].bytes = 7;
  weights[1].format = "x\"\\\n";
  ServeMetrics metrics("a \"model\"\\\nof mine");
  const auto families = parse(metrics.text({.engine = {}, .weights = weights}));
  for (const auto& [name, family] : families) {
    EXPECT_TRUE(family.has_help) << name;
    EXPECT_NE(family.type, "") << name;
    EXPECT_FALSE(family.values.empty()) << name;
    EXPECT_EQ(family.type == "counter", name.ends_with("_total")) << name;
  }
  EXPECT_EQ(value_of(families.at("sparsellm:weight_bytes"), "tca_bme"), 7);
}

TEST(ServeMetrics, HasTheNamesOfVllm) {
  const auto families = parse(ServeMetrics("m").text(now()));
  for (const char* name :
       {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
        "vllm:request_success_total", "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds"}) {
    EXPECT_EQ(families.count(name), 1u) << name;
  }
}

TEST(ServeMetrics, HistogramsAreCumulative) {
  ServeMetrics metrics("m");
  const std::vector<double> values{0.0, 0.0005, 0.001, 0.0011, 0.3, 80.0, 81.0, 1e6};
  double sum = 0.0;
  for (const double value : values) {
    metrics.time_to_first_token.add(value);
    sum += value;
  }
  const auto families = parse(metrics.text(now()));
  const Family& family = families.at("vllm:time_to_first_token_seconds");
  double before = 0;
  double bound_before = -1;
  size_t buckets = 0;
  for (const auto& [name, value] : family.values) {
    const size_t at = name.find("le=\"");
    if (at == std::string::npos) {
      continue;
    }
    ++buckets;
    const std::string text = name.substr(at + 4, name.rfind('"') - at - 4);
    const double bound = text == "+Inf" ? 1e300 : std::stod(text);
    EXPECT_GT(bound, bound_before);
    double expected = 0;
    for (const double v : values) {
      expected += v <= bound ? 1 : 0;
    }
    EXPECT_EQ(value, expected) << name;
    EXPECT_GE(value, before);
    before = value;
    bound_before = bound;
  }
  EXPECT_GT(buckets, 10u);
  EXPECT_EQ(bound_before, 1e300) << "the last bucket is not +Inf";
  EXPECT_EQ(before, 8);
  EXPECT_EQ(value_of(family, "_count{"), 8);
  EXPECT_NEAR(value_of(family, "_sum{"), sum, 1e-3);
}

TEST(ServeMetrics, CountersSum) {
  ServeMetrics metrics("m");
  metrics.prompt_tokens += 5;
  metrics.prompt_tokens += 6;
  metrics.generation_tokens += 7;
  metrics.cancelled = 1;
  metrics.failed = 2;
  metrics.refused = 3;
  metrics.count_finish(FinishReason::stop);
  metrics.count_finish(FinishReason::length);
  metrics.count_finish(FinishReason::length);
  ServeMetrics::Now state = now();
  state.connections = 4;
  state.slow_clients = 5;
  state.engine.total_pages = 10;
  state.engine.free_pages = 4;
  state.engine.stats.running = 6;
  state.engine.stats.waiting = 7;
  state.engine.stats.preemptions = 8;
  state.engine.stats.steps = 9;
  state.engine.stats.prefill_seconds = 0.5;
  state.engine.stats.decode_seconds = 0.25;
  const auto families = parse(metrics.text(state));
  const auto value = [&](const std::string& name, const std::string& part = "") {
    return value_of(families.at(name), part);
  };
  EXPECT_EQ(value("vllm:prompt_tokens_total"), 11);
  EXPECT_EQ(value("vllm:generation_tokens_total"), 7);
  EXPECT_EQ(value("vllm:request_success_total", "\"stop\""), 1);
  EXPECT_EQ(value("vllm:request_success_total", "\"length\""), 2);
  EXPECT_EQ(value("sparsellm:requests_cancelled_total"), 1);
  EXPECT_EQ(value("sparsellm:requests_failed_total"), 2);
  EXPECT_EQ(value("sparsellm:requests_refused_total"), 3);
  EXPECT_EQ(value("sparsellm:connections"), 4);
  EXPECT_EQ(value("sparsellm:slow_clients_total"), 5);
  EXPECT_EQ(value("vllm:kv_cache_usage_perc"), 0.6);
  EXPECT_EQ(value("vllm:num_requests_running"), 6);
  EXPECT_EQ(value("vllm:num_requests_waiting"), 7);
  EXPECT_EQ(value("vllm:num_preemptions_total"), 8);
  EXPECT_EQ(value("sparsellm:steps_total"), 9);
  EXPECT_EQ(value("sparsellm:step_seconds_total"), 0.75);
}

TEST(ServeMetrics, WithoutPagesNothingIsUsed) {
  const auto families = parse(ServeMetrics("m").text(now()));
  EXPECT_EQ(value_of(families.at("vllm:kv_cache_usage_perc"), ""), 0);
}

}  // namespace
}  // namespace sparsellm
