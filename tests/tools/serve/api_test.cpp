// The endpoints: who gets them, when, and with which headers.

#include "tools/serve/api.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/tools/serve/serve_fixture.h"

namespace sparsellm {
namespace {

using testing::KeptExchange;
using testing::ServedTiny;
using testing::value_of;

using Shared = std::shared_ptr<KeptExchange>;

class ApiTest : public ::testing::Test {
 protected:
  void start() {
    api_.start(served_.context, served_.completions, served_.metrics, served_.workers,
               served_.tasks.poster());
  }

  static HttpHead head_of(const std::string& method, const std::string& target,
                          std::vector<HttpHeader> more = {}) {
    more.push_back({.name = "Host", .value = "localhost"});
    if (method == "POST") {
      more.push_back({.name = "Content-Type", .value = "application/json"});
      more.push_back({.name = "Content-Length", .value = "1"});
    }
    return {.method = method, .target = target, .headers = std::move(more)};
  }

  Shared send(const HttpHead& head, const std::string& body = "") {
    auto exchange = std::make_shared<KeptExchange>(body, head);
    if (auto refused = api_.check(head)) {
      exchange->respond(*std::move(refused));
    } else {
      api_.handle(exchange);
    }
    return exchange;
  }
  HttpResponse ask(const HttpHead& head, const std::string& body = "") {
    const Shared exchange = send(head, body);
    EXPECT_TRUE(served_.wait_for(exchange));
    return exchange->response.value_or(HttpResponse{.status = 0});
  }
  HttpResponse get(const std::string& target) { return ask(head_of("GET", target)); }
  HttpResponse post(const std::string& target, const std::string& body) {
    return ask(head_of("POST", target), body);
  }
  int preflight(const std::string& headers, std::string& allowed) {
    const HttpResponse response =
        ask(head_of("OPTIONS", "/v1/completions",
                    {{.name = "Origin", .value = "https://example.org"},
                     {.name = "Access-Control-Request-Method", .value = "POST"},
                     {.name = "Access-Control-Request-Headers", .value = headers}}));
    allowed = value_of(response, "Access-Control-Allow-Headers");
    return response.status;
  }

  ServedTiny served_{{.max_tasks = 2}};
  Api api_{{.access = {.keys = {}, .cors_origin = "https://example.org"},
            .model = "tiny",
            .version = "1.2",
            .now = [] { return ServeMetrics::Now{.engine = {}, .weights = {}}; }}};
};

TEST_F(ApiTest, WithoutAModelThereIsLittle) {
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(value_of(get("/health"), "Retry-After"), "1");
  EXPECT_EQ(get("/version").body, R"({"version":"1.2"})");
  EXPECT_EQ(get("/metrics").status, 503);
  EXPECT_EQ(get("/v1/models").status, 200);
  EXPECT_EQ(get("/").status, 200);
  EXPECT_EQ(post("/v1/completions", "{}").status, 503);
  EXPECT_EQ(post("/tokenize", "{}").status, 503);
  start();
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/health?x=y").status, 200);
  EXPECT_EQ(get("/metrics").status, 200);
  EXPECT_NE(get("/v1/models").body.find("\"max_model_len\":512"), std::string::npos);
}

// A signal while the model is being loaded.
TEST_F(ApiTest, WhatHasBegunToEndIsNotReadyAgain) {
  api_.set_state(ServeState::draining);
  start();
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(post("/v1/completions", "{}").status, 503);
}

TEST_F(ApiTest, NothingFollowsALoss) {
  start();
  api_.set_state(ServeState::lost);
  api_.set_state(ServeState::draining);
  const HttpResponse health = get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_NE(health.body.find("the model's device is lost"), std::string::npos);
}

TEST_F(ApiTest, OtherMethodsPathsAndTypes) {
  start();
  EXPECT_EQ(get("/nothing").status, 404);
  EXPECT_EQ(get("/v1/completions").status, 405);
  EXPECT_EQ(value_of(get("/v1/completions"), "Allow"), "POST");
  EXPECT_EQ(post("/health", "").status, 405);
  EXPECT_EQ(ask(head_of("DELETE", "/v1/models")).status, 405);
  EXPECT_NE(post("/v1/chat/completions", "{}").body.find("not there yet"), std::string::npos);
  HttpHead head = head_of("POST", "/tokenize");
  for (HttpHeader& header : head.headers) {
    header.value = header.name == "Content-Type" ? "text/plain" : header.value;
  }
  EXPECT_EQ(ask(head).status, 415);
  head = {.method = "POST",
          .target = "/tokenize",
          .headers = {{.name = "Host", .value = "localhost"},
                      {.name = "Content-Type", .value = "application/json ; charset=utf-8"}}};
  EXPECT_EQ(ask(head).status, 411);
  head.headers.push_back({.name = "Transfer-Encoding", .value = "chunked"});
  EXPECT_EQ(ask(head, R"({"prompt": "a"})").status, 200);
  head.headers.push_back({.name = "Content-Encoding", .value = "gzip"});
  EXPECT_EQ(ask(head).status, 415);
}

TEST_F(ApiTest, APreflightAllowsWhatItAsksFor) {
  std::string allowed;
  const std::string openai =
      "authorization,content-type,x-stainless-arch,x-stainless-lang,"
      "x-stainless-os,x-stainless-package-version,x-stainless-retry-count";
  EXPECT_EQ(preflight(openai, allowed), 204);
  EXPECT_EQ(allowed, openai);
  for (const std::string& odd : {std::string(), std::string("a\r\nb: c"), std::string("a\"b"),
                                 std::string("a:b"), std::string(1025, 'x'), std::string("\xff")}) {
    EXPECT_EQ(preflight(odd, allowed), 204);
    EXPECT_EQ(allowed, "Authorization, Content-Type") << odd;
  }
  const HttpResponse response =
      ask(head_of("OPTIONS", "/tokenize", {{.name = "Origin", .value = "https://example.org"}}));
  EXPECT_EQ(value_of(response, "Access-Control-Allow-Origin"), "https://example.org");
  EXPECT_EQ(value_of(response, "Access-Control-Allow-Methods"), "GET, POST");
  EXPECT_EQ(value_of(response, "Access-Control-Max-Age"), "600");
}

TEST_F(ApiTest, EveryAnswerOfTheApiHasTheHeadersOfThePagesOrigin) {
  const auto origin = [](const HttpResponse& response) {
    return value_of(response, "Access-Control-Allow-Origin");
  };
  const std::string own = "https://example.org";
  EXPECT_EQ(origin(post("/v1/completions", "{}")), own);
  start();
  for (const HttpResponse& response :
       {get("/health"), get("/v1/models"), get("/metrics"), get("/nothing"),
        post("/tokenize", R"({"prompt": "a"})"), post("/tokenize", "{}")}) {
    EXPECT_EQ(origin(response), own) << response.body;
  }
  // The state may change between check() and handle().
  const auto exchange = std::make_shared<KeptExchange>("{}", head_of("POST", "/tokenize"));
  api_.set_state(ServeState::draining);
  api_.handle(exchange);
  EXPECT_EQ(exchange->response->status, 503);
  EXPECT_EQ(origin(*exchange->response), own);
}

TEST_F(ApiTest, TokenizesOnAWorker) {
  start();
  const HttpResponse tokens = post("/tokenize", R"({"prompt": "Once"})");
  EXPECT_EQ(tokens.status, 200);
  const auto json = nlohmann::json::parse(tokens.body);
  EXPECT_EQ(json["count"], json["tokens"].size());
  const HttpResponse text = post("/detokenize", nlohmann::json{{"tokens", json["tokens"]}}.dump());
  EXPECT_EQ(nlohmann::json::parse(text.body)["prompt"], "<|begin_of_text|>Once");
  EXPECT_EQ(post("/detokenize", R"({"tokens": [500]})").status, 400);
  EXPECT_EQ(post("/tokenize", R"({"prompt": "a", "model": "x"})").status, 404);
  EXPECT_TRUE(api_.empty());
}

// At the server's end it is waited for.
TEST_F(ApiTest, TasksOfWorkersCount) {
  start();
  std::promise<void> end;
  ASSERT_TRUE(served_.workers.post([&] { end.get_future().wait(); }));
  const Shared exchange = send(head_of("POST", "/tokenize"), R"({"prompt": "a"})");
  EXPECT_FALSE(api_.empty());
  const Shared refused = send(head_of("POST", "/tokenize"), R"({"prompt": "a"})");
  ASSERT_TRUE(refused->response);
  EXPECT_EQ(refused->response->status, 503);
  EXPECT_EQ(value_of(*refused->response, "Retry-After"), "1");
  EXPECT_EQ(served_.metrics.refused, 1);
  end.set_value();
  EXPECT_TRUE(served_.wait_for(exchange));
  EXPECT_EQ(exchange->response->status, 200);
  EXPECT_TRUE(api_.empty());
}

TEST_F(ApiTest, WhatWaitsForAWorkerWhenTheDeviceIsLostIs503) {
  start();
  std::promise<void> end;
  ASSERT_TRUE(served_.workers.post([&] { end.get_future().wait(); }));
  const Shared exchange = send(head_of("POST", "/tokenize"), R"({"prompt": "a"})");
  api_.set_state(ServeState::lost);
  end.set_value();
  EXPECT_TRUE(served_.wait_for(exchange));
  EXPECT_EQ(exchange->response->status, 503);
}

TEST_F(ApiTest, ThePageIsStrict) {
  const HttpResponse first = get("/");
  const HttpResponse second = get("/");
  EXPECT_EQ(first.content_type, "text/html; charset=utf-8");
  const std::string policy = value_of(first, "Content-Security-Policy");
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(policy, value_of(second, "Content-Security-Policy"));  // the nonce is a fresh one
  EXPECT_EQ(first.body.find("@NONCE@"), std::string::npos);
}

}  // namespace
}  // namespace sparsellm
