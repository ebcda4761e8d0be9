// GET /layers: who gets it, and when.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/paths.h"
#include "tokenizer/tokenizer.h"
#include "tools/serve/api.h"

namespace sparsellm {
namespace {

class Exchange final : public HttpExchange {
 public:
  Exchange(HttpHead head, std::optional<HttpResponse>& answer) : answer_(answer) {
    head_ = std::move(head);
  }
  void respond(HttpResponse response) override { answer_ = std::move(response); }
  void begin_stream(HttpResponse) override {}
  void write(std::string_view) override {}
  void end() override {}
  bool answered() const override { return answer_.has_value(); }

 private:
  std::optional<HttpResponse>& answer_;
};

HttpHead request(const std::string& key, const std::string& method = "GET") {
  HttpHead head{.method = method, .target = "/layers", .headers = {}};
  head.headers = {{.name = "Host", .value = "localhost"}};
  if (!key.empty()) {
    head.headers.push_back({.name = "Authorization", .value = "Bearer " + key});
  }
  return head;
}

class LayersEndpoint : public ::testing::Test {
 protected:
  void start() {
    api_.start(context_, completions_, metrics_, workers_, post_);
    api_.set_layers(R"({"layers": []})");
  }

  HttpResponse ask(const HttpHead& head) {
    if (auto refused = api_.check(head)) {
      return *std::move(refused);
    }
    std::optional<HttpResponse> answer;
    api_.handle(std::make_shared<Exchange>(head, answer));
    return answer.value_or(HttpResponse{.status = 0});
  }

  Api api_{{.access = {.keys = {"sesame"}, .cors_origin = {}, .on_loopback = true},
            .model = "m",
            .version = "1",
            .now = {}}};

 private:
  std::unique_ptr<Tokenizer> tokenizer_ =
      load_tokenizer(testing::data("models/fable-llama-relu-8m"));
  std::shared_ptr<const CompletionContext> context_ =
      std::make_shared<const CompletionContext>(CompletionContext{
          .tokenizer = *tokenizer_, .context_size = 64, .model = "m", .defaults = {}});
  std::function<void(std::function<void()>)> post_ = [](const std::function<void()>& task) {
    task();
  };
  ServeMetrics metrics_{"m"};
  EngineLoop loop_{[](std::unique_ptr<LoopEvents>) {}};
  WorkerPool workers_{1};
  Completions completions_{
      context_, {}, {.loop = loop_, .workers = workers_, .post = post_, .metrics = metrics_}};
};

TEST_F(LayersEndpoint, NeedsTheModelAndAKey) {
  EXPECT_EQ(ask(request("sesame")).status, 503);
  EXPECT_EQ(ask(request("")).status, 401);
  start();
  EXPECT_EQ(ask(request("")).status, 401);
  EXPECT_EQ(ask(request("sesame!")).status, 401);
  const HttpResponse answer = ask(request("sesame"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.content_type, "application/json");
  EXPECT_EQ(answer.body, R"({"layers": []})");
  EXPECT_EQ(ask(request("sesame", "HEAD")).status, 200);
  EXPECT_EQ(ask(request("sesame", "POST")).status, 405);
  api_.set_state(ServeState::draining);
  EXPECT_EQ(ask(request("sesame")).status, 503);
}

}  // namespace
}  // namespace sparsellm
