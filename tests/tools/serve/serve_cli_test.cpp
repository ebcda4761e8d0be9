// sparsellm-serve as a user meets it: answers equal to those of sparsellm-run, its end, exit codes.

#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"
#include "tests/tools/serve/plain_http.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Outcome;
using testing::PlainConnection;
using testing::TempDir;

constexpr char kProgram[] = "sparsellm-serve";
constexpr char kCompletions[] = "/v1/completions";

std::string llama() { return testing::data("models/fable-llama-relu-8m").string(); }

// A server that runs. A second SIGTERM would end it at once.
class Running {
 public:
  Running(fs::path socket, pid_t process) : socket_(std::move(socket)), process_(process) {}

  const fs::path& socket() const { return socket_; }
  void end() {
    if (!std::exchange(ended_, true)) {
      ::kill(process_, SIGTERM);
    }
  }

 private:
  fs::path socket_;
  pid_t process_;
  bool ended_ = false;
};

// Serves at a socket file while `use` is called.
Outcome serve(const std::vector<std::string>& more, const std::function<void(Running&)>& use) {
  const TempDir folder;
  const fs::path socket = folder.path() / "s";
  std::vector<std::string> args{"-m", llama(), "--unix", socket.string(), "--device", "cpu"};
  args.insert(args.end(), more.begin(), more.end());
  const Outcome outcome = testing::run_program(
      kProgram, args,
      {.input = {}, .before_exec = {}, .meanwhile = [&](pid_t process, const fs::path&) {
         Running server(socket, process);
         use(server);
         server.end();
       }});
  EXPECT_FALSE(fs::exists(socket)) << "the socket file was left behind";
  return outcome;
}

void wait_until_ready(PlainConnection& connection) {
  for (int i = 0; i < 2000; ++i) {
    if (connection.get("/health").status == 200) {
      return;
    }
    ::usleep(10'000);
  }
  FAIL() << "the model was not loaded";
}

TEST(Serve, AnswersAsRunDoes) {
  std::string text;
  json scored;
  const Outcome outcome = serve({}, [&](const Running& server) {
    PlainConnection connection(server.socket());
    wait_until_ready(connection);
    const auto reply = connection.post(
        kCompletions,
        R"({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0.8, "top_k": 40,)"
        R"( "top_p": 0.95, "min_p": 0.05, "seed": 7})");
    ASSERT_EQ(reply.status, 200) << reply.body;
    text = json::parse(reply.body)["choices"][0]["text"];
    scored = json::parse(
        connection
            .post(kCompletions, R"({"prompt": "Once upon a time", "max_tokens": 0, "echo": true,)"
                                R"( "logprobs": 2})")
            .body)["choices"][0];
  });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("fable-llama-relu-8m is served at unix:"), std::string::npos);

  const Outcome run = testing::run_program(
      "sparsellm-run", {"-m", llama(), "-p", "Once upon a time", "-n", "24", "--seed", "7",
                        "--device", "cpu", "--json", "--quiet"});
  EXPECT_EQ(json::parse(run.out)["text"], text);

  const Outcome score = testing::run_program(
      "sparsellm-run", {"-m", llama(), "-p", "Once upon a time", "-n", "0", "--logprobs", "2",
                        "--echo", "--device", "cpu", "--json", "--quiet"});
  const json expected = json::parse(score.out)["prompt_logprobs"];
  EXPECT_EQ(scored["text"], "Once upon a time");
  const json& values = scored["logprobs"]["token_logprobs"];
  ASSERT_EQ(values.size(), expected.size() + 1);
  EXPECT_TRUE(values[0].is_null());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(values[i + 1].get<float>(), expected[i]["logprob"].get<float>()) << i;
  }
}

TEST(Serve, RequestsMayFinishAfterSigterm) {
  const Outcome outcome = serve({}, [&](Running& server) {
    PlainConnection connection(server.socket());
    wait_until_ready(connection);
    PlainConnection other(server.socket());
    connection.send(testing::post_text(
        kCompletions, R"({"prompt": "Once", "max_tokens": 300, "ignore_eos": true,)"
                      R"( "stream": true})"));
    ASSERT_TRUE(connection.wait_for_reply());
    server.end();
    const auto reply = connection.receive();
    EXPECT_EQ(reply.status, 200);
    EXPECT_NE(reply.body.find(R"("finish_reason":"length")"), std::string::npos);
    EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
    EXPECT_EQ(other.receive().status, 0);  // it has sent no request
  });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(Serve, WhatDoesNotFinishInTimeEndsWithAnError) {
  const Outcome outcome = serve({"--drain-seconds", "0"}, [&](Running& server) {
    PlainConnection connection(server.socket());
    wait_until_ready(connection);
    connection.send(testing::post_text(
        kCompletions, R"({"prompt": "Once", "max_tokens": 1000, "ignore_eos": true, "n": 16,)"
                      R"( "stream": true})"));
    ASSERT_TRUE(connection.wait_for_reply());
    server.end();
    const auto reply = connection.receive();
    EXPECT_EQ(reply.status, 200);
    EXPECT_NE(reply.body.find("the server is shutting down"), std::string::npos);
  });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// Whether or not the model is there by then.
TEST(Serve, SigtermWhileItLoadsIsAnEndInOrder) {
  const Outcome outcome = serve({}, [&](Running& server) {
    PlainConnection connection(server.socket());
    EXPECT_NE(connection.get("/health").status, 0);
    server.end();
  });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(Serve, AKeyIsAskedFor) {
  const TempDir folder;
  const std::string keys = folder.write("keys", "# of somebody\nfirst\nsecond\n").string();
  serve({"--api-key-file", keys}, [&](const Running& server) {
    PlainConnection connection(server.socket());
    wait_until_ready(connection);
    const auto models = [&](std::string_view authorization) {
      connection.send(
          fmt::format("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{}\r\n", authorization));
      return connection.receive().status;
    };
    EXPECT_EQ(models(""), 401);
    EXPECT_EQ(models("Authorization: Bearer third\r\n"), 401);
    EXPECT_EQ(models("Authorization: Bearer secon\r\n"), 401);
    EXPECT_EQ(models("Authorization: Bearer second\r\n"), 200);
  });
}

TEST(Serve, WhatCannotBeServedIsOneLine) {
  const TempDir folder;
  const std::string file = folder.write("file", "\n").string();
  struct Case {
    int exit_code;
    std::string message;
    std::vector<std::string> args;
  };
  const std::vector<Case> cases{
      {1, "has no key", {"-m", llama(), "--api-key-file", file}},
      {1, "there is a file that is no socket", {"-m", llama(), "--unix", file}},
      {1, "--host king is not an address", {"-m", llama(), "--host", "king"}},
      {1, "cannot listen on 192.0.2.1:", {"-m", llama(), "--host", "192.0.2.1"}},
      {1, "no-model", {"-m", "no-model", "--port", "0"}},
      {2, "--batch-size 8 is less than --parallel 64", {"-m", llama(), "-b", "8"}},
      {2, "--max-queued", {"-m", llama(), "--max-queued", "-1"}},
      {2, "--unix", {"-m", llama(), "--unix", file, "--port", "80"}},
  };
  for (const Case& c : cases) {
    const Outcome outcome = testing::run_program(kProgram, c.args);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << outcome.err;
    EXPECT_NE(outcome.err.find(c.message), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace sparsellm
