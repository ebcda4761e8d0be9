// The benchmark against servers: the project's own in this process, and one that says anything.

#include "tools/bench/server_bench.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tests/tools/bench/canned_server.h"
#include "tests/tools/bench/report_tables.h"
#include "tests/tools/run_program.h"
#include "tools/serve/server.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::CannedServer;
using testing::Report;
using testing::throws_error;

Engine load_small_engine() {
  EngineOptions options;
  options.max_requests = 8;
  options.context_size = 64;
  options.threads = 2;
  return Engine::load(testing::data("models/fable-llama-relu-8m"), options);
}

class HealthAnswer final : public HttpAnswer {
 public:
  void on_status(int status) override { status_ = status; }
  void on_body(std::string_view) override {}
  void on_end(std::string_view) override {}
  int status() const { return status_; }

 private:
  int status_ = 0;
};

// A server of a small model, ready from the beginning to the end of the scope.
class RunningServer {
 public:
  explicit RunningServer(ServerOptions options)
      : engine_(load_small_engine()),
        served_(served(engine_)),
        server_(
            with_name(std::move(options)), [this] { return stops_.load(); },
            [](std::string_view) {}) {
    thread_ = std::thread([this] {
      const ServedModel model{.engine = *served_,
                              .tokenizer = engine_.tokenizer(),
                              .context_size = engine_.context_size(),
                              .defaults = engine_.generation_defaults(),
                              .weights = engine_.linear_weights()};
      server_.serve(model);
    });
    for (int status = 0; status != 200;) {
      HttpClient client(url(), "");
      HealthAnswer answer;
      client.send({.method = "GET", .path = "/health"}, answer);
      client.run();
      status = answer.status();
    }
  }
  ~RunningServer() {
    stops_ = true;
    thread_.join();
  }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  ServerUrl url() const { return parse_server_url("--url", server_.address()); }
  int64_t vocabulary() const { return engine_.config().vocab_size; }

 private:
  static ServerOptions with_name(ServerOptions options) {
    options.model = "small";
    options.version = "1";
    options.http.port = 0;
    return options;
  }

  Engine engine_;
  std::unique_ptr<ServedEngine> served_;
  std::atomic<bool> stops_ = false;
  Server server_;
  std::thread thread_;
};

ServerBenchOptions few_requests() {
  ServerBenchOptions options;
  options.model = "small";
  options.requests = 12;
  options.prompt = {.min = 2, .max = 9};
  options.output = {.min = 1, .max = 7};
  return options;
}

json serving_of(const ServerUrl& url, const ServerBenchOptions& options) {
  HttpClient client(url, "");
  Report report;
  bench_server(client, options, report.writer());
  return report.table("serving").at(0);
}

// What the requests of these options ask for.
int64_t tokens_of(const ServerBenchOptions& options) {
  ArrivingRequests requests(options.prompt, options.output, options.seed);
  int64_t tokens = 0;
  for (int64_t i = 0; i < options.requests; ++i) {
    tokens += requests.next(options.vocabulary).max_tokens;
  }
  return tokens;
}

TEST(ServerBench, AnswersAllThatArrive) {
  const RunningServer server({});
  ServerBenchOptions options = few_requests();
  options.rate = 200.0;
  options.vocabulary = server.vocabulary();
  int64_t done = 0;
  options.progress = [&](int64_t finished, int64_t) { done = finished; };
  HttpClient client(server.url(), "");
  EXPECT_EQ(listed_model(client, options), "small");
  Report report;
  bench_server(client, options, report.writer());
  EXPECT_EQ(done, 12);
  const json serving = report.table("serving").at(0);
  EXPECT_EQ(serving.at("rate"), 200.0);
  EXPECT_TRUE(serving.at("concurrency").is_null());
  EXPECT_EQ(serving.at("requests"), 12);
  EXPECT_EQ(serving.at("failed"), 0);
  EXPECT_EQ(serving.at("tokens"), tokens_of(options));
  EXPECT_EQ(serving.at("chunks"), serving.at("tokens"));
  const double seconds = serving.at("seconds");
  EXPECT_DOUBLE_EQ(serving.at("tokens_per_second"), serving.at("tokens").get<double>() / seconds);
  EXPECT_DOUBLE_EQ(serving.at("requests_per_second"), 12 / seconds);
  EXPECT_GT(serving.at("client_percent"), 0.0);
  const json latency = report.table("latency");
  const std::vector<std::string> metrics{"time to first token", "time per output token",
                                         "inter-token latency", "latency"};
  ASSERT_EQ(latency.size(), metrics.size());
  for (size_t i = 0; i < metrics.size(); ++i) {
    EXPECT_EQ(latency[i].at("metric"), metrics[i]);
    EXPECT_GT(latency[i].at("mean_ms"), 0.0);
    EXPECT_LE(latency[i].at("p50_ms"), latency[i].at("p90_ms"));
    EXPECT_LE(latency[i].at("p90_ms"), latency[i].at("p99_ms"));
    EXPECT_LE(latency[i].at("p99_ms"), latency[i].at("max_ms"));
  }
  EXPECT_LE(latency[0].at("max_ms"), latency[3].at("max_ms"));
  EXPECT_TRUE(report.table("failures").empty());
}

// At most `concurrency` requests run at once: the sum of all latencies is at most that many times
// the whole time.
TEST(ServerBench, AsManyAsAreWantedAreUnderWay) {
  const RunningServer server({});
  ServerBenchOptions options = few_requests();
  for (const int64_t concurrency : {1, 5, 100}) {
    options.concurrency = concurrency;
    HttpClient client(server.url(), "");
    Report report;
    bench_server(client, options, report.writer());
    const json serving = report.table("serving").at(0);
    EXPECT_TRUE(serving.at("rate").is_null());
    EXPECT_EQ(serving.at("concurrency"), concurrency);
    EXPECT_EQ(serving.at("failed"), 0);
    EXPECT_EQ(serving.at("tokens"), tokens_of(options));
    const double sum = report.table("latency").at(3).at("mean_ms").get<double>() * 12;
    const double time = serving.at("seconds").get<double>() * 1e3;
    EXPECT_LE(sum, time * static_cast<double>(std::min<int64_t>(concurrency, 12)) * (1 + 1e-9));
  }
}

TEST(ServerBench, BySocketFile) {
  const testing::TempDir folder;
  ServerOptions server_options;
  server_options.http.unix_path = (folder.path() / "s").string();
  const RunningServer server(server_options);
  EXPECT_EQ(server.url().unix_path, (folder.path() / "s").string());
  const ServerBenchOptions options = few_requests();
  EXPECT_EQ(serving_of(server.url(), options).at("tokens"), tokens_of(options));
}

TEST(ServerBench, KeysAreSentAndMissed) {
  ServerOptions server_options;
  server_options.access.keys = {"right"};
  const RunningServer server(server_options);
  const ServerBenchOptions options = few_requests();
  for (const char* key : {"", "wrong"}) {
    HttpClient client(server.url(), key);
    Report report;
    EXPECT_TRUE(throws_error([&] { listed_model(client, options); },
                             "GET /v1/models: HTTP 401: the API key is missing or wrong"));
    EXPECT_TRUE(throws_error([&] { bench_server(client, options, report.writer()); },
                             "POST /v1/completions: HTTP 401: the API key is missing or wrong"));
  }
  HttpClient client(server.url(), "right");
  Report report;
  bench_server(client, options, report.writer());
  EXPECT_EQ(report.table("serving").at(0).at("failed"), 0);
}

// The server takes two at a time.
TEST(ServerBench, RefusedRequestsAreCounted) {
  ServerOptions server_options;
  server_options.limits.samples = 2;
  const RunningServer server(server_options);
  ServerBenchOptions options = few_requests();
  options.requests = 40;
  options.concurrency = 20;
  HttpClient client(server.url(), "");
  Report report;
  bench_server(client, options, report.writer());
  const json serving = report.table("serving").at(0);
  const int64_t failed = serving.at("failed");
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 40);
  const json failures = report.table("failures");
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].at("failed"), failed);
  EXPECT_EQ(failures[0].at("first_error"), "HTTP 503: too many requests wait");
}

TEST(ServerBench, ARequestThatTheModelRefuses) {
  const RunningServer server({});
  ServerBenchOptions options = few_requests();
  options.vocabulary = 1 << 24;
  EXPECT_TRUE(throws_error([&] { serving_of(server.url(), options); }, "HTTP 400: "));
  options = few_requests();
  options.model = "large";
  EXPECT_TRUE(throws_error([&] { serving_of(server.url(), options); },
                           "HTTP 404: the model \"large\" does not exist"));
}

TEST(ServerBench, NobodyListens) {
  std::string address;
  {
    const CannedServer server([](int) { return std::vector<std::string>(); });
    address = server.url();
  }
  const ServerUrl url = parse_server_url("--url", address);
  EXPECT_TRUE(
      throws_error([&] { serving_of(url, few_requests()); }, "cannot connect to " + address));
  const ServerUrl socket = parse_server_url("--url", "unix:/nonexistent/socket");
  EXPECT_TRUE(throws_error([&] { serving_of(socket, few_requests()); }, "No such file"));
  const std::string too_long = "unix:" + std::string(200, 'x');
  EXPECT_TRUE(throws_error([&] { HttpClient(parse_server_url("--url", too_long), ""); },
                           "more than a socket's can"));
}

const std::string kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
const std::string kToken = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
const std::string kUsage = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":4}}\n\n";
const std::string kEnd = "data: [DONE]\n\n";

// Of answers that are not as they should be: the trial is answered well, and then each of these.
json failures_of(const std::vector<std::vector<std::string>>& answers) {
  const std::vector<std::string> good{kStreamHead, kToken, kEnd};
  const CannedServer server(
      [&](int number) { return number == 0 ? good : answers.at(static_cast<size_t>(number - 1)); });
  ServerBenchOptions options = few_requests();
  options.requests = std::ssize(answers);
  HttpClient client(parse_server_url("--url", server.url()), "");
  Report report;
  bench_server(client, options, report.writer());
  return report.table("failures").at(0);
}

TEST(ServerBench, AnswersThatBreakOff) {
  const std::vector<std::string> good{kStreamHead, kToken, kEnd};
  const auto first_error = [&](const std::vector<std::string>& answer) {
    const json row = failures_of({good, answer, good});
    EXPECT_EQ(row.at("failed"), 1);
    return row.at("first_error").get<std::string>();
  };
  EXPECT_EQ(first_error({kStreamHead, kToken}), "the stream ended before [DONE]");
  EXPECT_EQ(first_error({kStreamHead, kEnd}), "the stream had no token");
  EXPECT_EQ(
      first_error({kStreamHead, kToken, "data: {\"error\":{\"message\":\"lost\"}}\n\n", kEnd}),
      "lost");
  EXPECT_NE(first_error({kStreamHead, "data: {\n\n"}).find("invalid JSON"), std::string::npos);
  EXPECT_EQ(first_error({"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 5\r\n\r\n", "later"}),
            "HTTP 429: \"later\"");
  EXPECT_TRUE(first_error({"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "5\r\ndata:"})
                  .starts_with("the answer breaks off: "));
  EXPECT_TRUE(first_error({"not HTTP\r\n\r\n"}).starts_with("no answer: "));
  EXPECT_TRUE(first_error({}).starts_with("no answer: "));
}

TEST(ServerBench, AllFail) {
  EXPECT_TRUE(throws_error(
      [] {
        failures_of({{kStreamHead}, {kStreamHead}});
      },
      "all of 2 requests failed; the first: the stream ended before [DONE]"));
}

// Tokens are those of the usage, whatever is in a chunk; without, the chunks are counted.
TEST(ServerBench, TokensAreThoseThatTheServerCounted) {
  const auto serving = [](const std::vector<std::string>& answer) {
    const CannedServer server([&](int) { return answer; });
    ServerBenchOptions options = few_requests();
    options.requests = 2;
    const json row = serving_of(parse_server_url("--url", server.url()), options);
    const std::string request = server.requests().at(1);
    EXPECT_TRUE(request.starts_with("POST /v1/completions HTTP/1.1\r\n")) << request;
    const json body = json::parse(request.substr(request.find("\r\n\r\n") + 4));
    EXPECT_EQ(body.at("stream_options"), json({{"include_usage", true}}));
    EXPECT_EQ(body.at("stream"), true);
    EXPECT_EQ(body.at("ignore_eos"), true);
    EXPECT_EQ(body.at("temperature"), 0);
    EXPECT_EQ(body.at("model"), "small");
    ArrivingRequests requests(options.prompt, options.output, options.seed);
    const Request first = requests.next(options.vocabulary);
    EXPECT_EQ(body.at("prompt").get<std::vector<int32_t>>(), first.prompt);
    EXPECT_EQ(body.at("max_tokens"), first.max_tokens);
    return row;
  };
  const json counted = serving({kStreamHead, kToken, kToken, kUsage, kEnd});
  EXPECT_EQ(counted.at("tokens"), 8);
  EXPECT_EQ(counted.at("chunks"), 4);
  const json seen = serving({kStreamHead, kToken, kToken, kEnd});
  EXPECT_EQ(seen.at("tokens"), 4);
  EXPECT_EQ(seen.at("chunks"), 4);
}

TEST(ServerBench, WhatProgressThrowsEndsIt) {
  const RunningServer server({});
  ServerBenchOptions options = few_requests();
  options.rate = 1e-3;  // the first request would come after minutes
  int calls = 0;
  options.progress = [&](int64_t, int64_t) { require(++calls < 4, "enough"); };
  EXPECT_TRUE(throws_error([&] { serving_of(server.url(), options); }, "enough"));
  options = few_requests();
  options.requests = 0;
  EXPECT_TRUE(throws_error([&] { serving_of(server.url(), options); }, "0 requests"));
  options = few_requests();
  options.concurrency = 0;
  EXPECT_TRUE(throws_error([&] { serving_of(server.url(), options); }, "0 requests at a time"));
}

TEST(ServerBench, AsAUserMeetsIt) {
  const testing::TempDir folder;
  const std::string keys = folder.write("keys", "# of this test\nright\nother\n").string();
  ServerOptions server_options;
  server_options.access.keys = {"right"};
  const RunningServer server(server_options);
  const auto bench = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args{"throughput",
                                  "--url",
                                  server.url().shown + "/v1/",
                                  "--concurrency",
                                  "2",
                                  "--requests",
                                  "5",
                                  "--output",
                                  "3",
                                  "--prompt",
                                  "4:8",
                                  "--format",
                                  "json"};
    args.insert(args.end(), more.begin(), more.end());
    return testing::run_program("sparsellm-bench", args);
  };
  const std::string config = (testing::data("models/fable-llama-relu-8m") / "config.json").string();
  const testing::Outcome outcome = bench({"--api-key-file", keys, "--config", config});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const json report = json::parse(outcome.out);
  const json environment = report.at("environment");
  EXPECT_EQ(environment.at("url"), server.url().shown + "/v1/");
  EXPECT_EQ(environment.at("model"), "small");
  EXPECT_FALSE(environment.contains("device"));
  EXPECT_EQ(report.at("tables").at(0).at("rows").at(0).at("tokens"), 15);
  EXPECT_EQ(outcome.out.find("right"), std::string::npos);
  const testing::Outcome without = bench({});
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_NE(without.err.find("HTTP 401"), std::string::npos) << without.err;
  EXPECT_EQ(without.out, "");
}

}  // namespace
}  // namespace sparsellm
