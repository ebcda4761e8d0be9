// The whole server at a socket file, with an engine that does as the test wants.

#include "tools/serve/server.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/temp_dir.h"
#include "tests/tools/serve/plain_http.h"
#include "tests/tools/serve/serve_fixture.h"

namespace sparsellm {
namespace {

using testing::PlainConnection;
using testing::StepGate;
using testing::TempDir;
using testing::WatchedEngine;

constexpr char kCompletions[] = "/v1/completions";
const char kLong[] = R"({"prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true})";
const char kShort[] = R"({"prompt": "Once", "max_tokens": 3, "ignore_eos": true})";

class ServerTest : public ::testing::Test {
 protected:
  // Listens, without a model.
  void listen(std::chrono::seconds drain = std::chrono::seconds(30)) {
    ServerOptions options;
    options.http.unix_path = socket().string();
    options.model = "tiny";
    options.version = "1";
    options.drain = drain;
    options.access.cors_origin = "*";
    server_ = std::make_unique<Server>(
        options, [this] { return interrupted_.load(); },
        [this](std::string_view text) { logged_.emplace_back(text); });
  }
  // Serves on a thread of its own.
  void serve() {
    result_ = std::async(std::launch::async, [this] {
      return server_->serve({.engine = engine_,
                             .tokenizer = engine_.engine.tokenizer(),
                             .context_size = engine_.engine.context_size(),
                             .defaults = {},
                             .weights = {}});
    });
  }
  bool has_ended() const {
    return result_.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  }
  void wait_until_ready() const {
    PlainConnection connection(socket());
    for (int i = 0; i < 2000 && connection.get("/health").status != 200; ++i) {
      ::usleep(5'000);
    }
  }
  void TearDown() override {
    interrupted_ = true;
    if (result_.valid()) {
      ADD_FAILURE() << "the server was not waited for";
    }
  }
  std::filesystem::path socket() const { return folder_.path() / "s"; }

  TempDir folder_;
  WatchedEngine engine_;
  std::atomic<bool> interrupted_ = false;
  std::vector<std::string> logged_;
  std::unique_ptr<Server> server_;
  std::future<bool> result_;
};

TEST_F(ServerTest, AnswersUntilItIsInterrupted) {
  listen();
  PlainConnection early(socket());
  EXPECT_EQ(early.get("/health").status, 503);
  EXPECT_EQ(early.post(kCompletions, kShort).status, 503);
  serve();
  wait_until_ready();
  PlainConnection connection(socket());
  const auto reply = connection.post(kCompletions, kShort);
  EXPECT_EQ(reply.status, 200);
  EXPECT_NE(reply.head.find("Access-Control-Allow-Origin: *"), std::string::npos);
  interrupted_ = true;
  EXPECT_TRUE(has_ended());
  EXPECT_TRUE(result_.get());
  EXPECT_EQ(engine_.engine.free_pages(), engine_.engine.total_pages());
  EXPECT_TRUE(logged_.empty());
}

// No browser reaches it, and a proxy in front has a name of its own.
TEST_F(ServerTest, AtASocketFileAnyHostWillDo) {
  listen();
  PlainConnection connection(socket());
  connection.send("GET /version HTTP/1.1\r\nHost: example.org\r\nOrigin: https://a.b\r\n\r\n");
  EXPECT_EQ(connection.receive().status, 200);
}

TEST_F(ServerTest, InterruptedWhileItLoadsItIsNeverReady) {
  listen();
  interrupted_ = true;
  PlainConnection connection(socket());
  // The server knows of it when it takes no more connections.
  EXPECT_EQ(connection.get("/health").status, 503);
  ::usleep(300'000);
  serve();
  EXPECT_TRUE(has_ended());
  EXPECT_TRUE(result_.get());
  EXPECT_EQ(engine_.steps, 0);
  server_.reset();
}

TEST_F(ServerTest, WhatIsLeftWhenTheTimeIsOverGetsAnError) {
  StepGate gate(engine_);
  gate.allow(3);
  listen(std::chrono::seconds(0));
  serve();
  wait_until_ready();
  PlainConnection stream(socket());
  stream.send(testing::post_text(kCompletions, kLong));
  ASSERT_TRUE(stream.wait_for_reply());
  PlainConnection waits(socket());
  waits.send(testing::post_text(kCompletions, kShort));
  ::usleep(100'000);  // it is in the engine's queue, most likely
  interrupted_ = true;
  const auto begun = stream.receive();
  EXPECT_EQ(begun.status, 200);
  EXPECT_NE(begun.body.find("the server is shutting down"), std::string::npos);
  EXPECT_EQ(begun.body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(waits.receive().status, 503);
  gate.open();
  EXPECT_TRUE(has_ended());
  EXPECT_TRUE(result_.get());
  EXPECT_EQ(engine_.engine.free_pages(), engine_.engine.total_pages());
}

TEST_F(ServerTest, WhatWasBegunMayFinish) {
  StepGate gate(engine_);
  gate.allow(3);
  listen();
  serve();
  wait_until_ready();
  PlainConnection stream(socket());
  stream.send(testing::post_text(kCompletions, kLong));
  ASSERT_TRUE(stream.wait_for_reply());
  interrupted_ = true;
  ::usleep(250'000);
  gate.open();
  EXPECT_TRUE(stream.receive().body.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(has_ended());
  EXPECT_TRUE(result_.get());
}

TEST_F(ServerTest, ALostDeviceIsToldToAll) {
  std::atomic<bool> loses = false;
  engine_.before_step = [&] {
    if (loses) {
      engine_.lost = "device 0 is lost";
      throw DeviceLost("device 0 is lost");
    }
    ::usleep(1000);
  };
  listen();
  serve();
  wait_until_ready();
  PlainConnection stream(socket());
  stream.send(testing::post_text(kCompletions, kLong));
  ASSERT_TRUE(stream.wait_for_reply());
  PlainConnection idle(socket());
  EXPECT_EQ(idle.get("/health").status, 200);
  loses = true;
  const auto begun = stream.receive();
  EXPECT_NE(begun.body.find("the model's device is lost"), std::string::npos) << begun.body;
  EXPECT_EQ(begun.body.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(has_ended());
  EXPECT_FALSE(result_.get());  // the exit code is 1
  EXPECT_EQ(logged_.size(), 2u);
}

// A body that comes slowly, too.
TEST_F(ServerTest, ABodyThatIsBeingReadAtTheEndIs503) {
  for (const bool is_lost : {false, true}) {
    std::atomic<bool> loses = false;
    interrupted_ = false;
    engine_.lost = {};
    engine_.before_step = [&] {
      if (loses) {
        engine_.lost = "device 0 is lost";
        throw DeviceLost("device 0 is lost");
      }
      ::usleep(1000);
    };
    listen();
    serve();
    wait_until_ready();
    PlainConnection stream(socket());
    stream.send(testing::post_text(kCompletions, kLong));
    ASSERT_TRUE(stream.wait_for_reply());
    PlainConnection slow(socket());
    const std::string text = testing::post_text(kCompletions, kShort);
    slow.send(text.substr(0, text.size() - 5));
    ::usleep(100'000);
    loses = is_lost;
    interrupted_ = !is_lost;
    EXPECT_EQ(slow.receive().status, 503);
    EXPECT_EQ(stream.receive().body.ends_with("data: [DONE]\n\n"), !is_lost);
    EXPECT_TRUE(has_ended());
    EXPECT_EQ(result_.get(), !is_lost);
    server_.reset();
  }
}

// What is wrong in the loop itself is no reason to leave clients without an answer.
TEST_F(ServerTest, AnEngineThatFailsEndsTheServer) {
  std::atomic<bool> fails = false;
  engine_.before_step = [&] {
    if (fails) {
      throw 5;  // nothing that the loop knows
    }
    ::usleep(1000);
  };
  listen();
  serve();
  wait_until_ready();
  PlainConnection stream(socket());
  stream.send(testing::post_text(kCompletions, kLong));
  ASSERT_TRUE(stream.wait_for_reply());
  fails = true;
  EXPECT_NE(stream.receive().body.find("the engine failed"), std::string::npos);
  EXPECT_TRUE(has_ended());
  EXPECT_THROW(result_.get(), int);
}

// Nothing that two threads share ends before the later of them is done with it.
TEST_F(ServerTest, ManyServersComeAndGo) {
  for (int i = 0; i < 10; ++i) {
    interrupted_ = false;
    listen();
    serve();
    std::thread client([this] {
      PlainConnection connection(socket());
      connection.send(testing::post_text("/tokenize", R"({"prompt": "Once upon a time"})"));
      connection.receive();
    });
    if (i % 2 == 0) {
      ::usleep(static_cast<useconds_t>(i) * 1000);
    }
    interrupted_ = true;
    EXPECT_TRUE(has_ended());
    EXPECT_TRUE(result_.get());
    client.join();
    server_.reset();
  }
}

TEST(CompletionDefaults, AreTheModelsOrOpenAis) {
  const Prompt none = completion_defaults({});
  EXPECT_EQ(none.request.max_tokens, 16);
  EXPECT_EQ(none.request.sampling.temperature, 1.0f);
  EXPECT_EQ(none.request.sampling.top_p, 1.0f);
  EXPECT_EQ(none.request.sampling.top_k, 0);
  GenerationDefaults defaults;
  defaults.temperature = 0.5f;
  defaults.top_k = 7;
  EXPECT_EQ(completion_defaults(defaults).request.sampling.temperature, 0.5f);
  EXPECT_EQ(completion_defaults(defaults).request.sampling.top_k, 7);
  defaults.do_sample = false;
  EXPECT_EQ(completion_defaults(defaults).request.sampling.temperature, 0.0f);
}

}  // namespace
}  // namespace sparsellm
