// Which connections a server takes, and how it comes to its end.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/serve/http_test_server.h"

namespace sparsellm {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::get_text;
using testing::HttpTestClient;
using testing::HttpTestServer;
using testing::post_of;
using Reply = HttpTestClient::Reply;
using Transport = HttpTestClient::Transport;
using Clients = std::vector<std::unique_ptr<HttpTestClient>>;

Clients clients_of(HttpTestServer& server, int count) {
  Clients clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<HttpTestClient>(server));
  }
  return clients;
}

TEST(HttpServer, ServesManyConnections) {
  HttpTestServer server;
  const Clients clients = clients_of(server, 300);
  for (int round = 0; round < 3; ++round) {
    for (const auto& client : clients) {
      client->send(post_of("/echo", "body"));
    }
    for (const auto& client : clients) {
      EXPECT_EQ(client->receive().body, "body");
    }
  }
  EXPECT_EQ(server.connections(), 300);
}

TEST(HttpServer, TellsThoseAboveTheLimitOfConnections) {
  HttpTestServer server({.max_connections = 2});
  Clients served = clients_of(server, 2);
  for (const auto& client : served) {
    client->send(get_text("/echo"));
    EXPECT_EQ(client->receive().status, 200);
  }
  for (int i = 0; i < 20; ++i) {
    HttpTestClient client(server);
    client.send(post_of("/echo", std::string(100'000, 'x')));  // nobody asks for it
    Reply reply = client.receive();
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.headers["Retry-After"], "1");
    EXPECT_TRUE(client.ended());
  }
  EXPECT_EQ(server.connections(), 2);
  served.pop_back();
  EXPECT_TRUE(eventually([&] { return server.connections() == 1; }));
  HttpTestClient client(server);
  client.send(get_text("/echo"));
  EXPECT_EQ(client.receive().status, 200);
}

TEST(HttpServer, HearsFewAboveTheLimitOfConnections) {
  HttpTestServer server({.max_connections = 1});
  HttpTestClient served(server);
  served.send(get_text("/echo"));
  EXPECT_EQ(served.receive().status, 200);
  const Clients clients = clients_of(server, 100);
  int told = 0;
  for (const auto& client : clients) {
    told += client->receive().status == 503 ? 1 : 0;
  }
  EXPECT_EQ(told, 64);
  EXPECT_EQ(server.connections(), 1);
  for (const auto& client : clients) {
    EXPECT_TRUE(client->ended());
  }
  // They are not waited for without an end.
  EXPECT_TRUE(eventually([&] {
    HttpTestClient client(server);
    return client.receive().status == 503;
  }));
}

TEST(HttpServer, WaitsForFileDescriptors) {
  HttpTestServer server;
  HttpTestClient first(server);
  HttpTestClient second(server, Transport::unix_pair);
  first.send(get_text("/echo"));
  EXPECT_EQ(first.receive().status, 200);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit all = limit;
  // The next descriptor is the client's, and after it there are none.
  const int next = ::fcntl(0, F_DUPFD_CLOEXEC, 0);
  ::close(next);
  limit.rlim_cur = static_cast<rlim_t>(next) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  HttpTestClient client(server);
  client.send(get_text("/echo"));
  const bool answered = client.has_bytes(milliseconds(150));
  ::setrlimit(RLIMIT_NOFILE, &all);
  EXPECT_FALSE(answered);
  EXPECT_EQ(client.receive().status, 200);
}

TEST(HttpServer, RefusesAnAddressThatIsTaken) {
  HttpTestServer server;
  try {
    HttpServer second({.port = server.port()}, {});
    FAIL() << "two servers at one port";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cannot listen on 127.0.0.1:"), std::string::npos);
  }
}

TEST(HttpServer, ListensAtASocketFile) {
  const testing::TempDir folder;
  const std::filesystem::path path = folder.path() / "s";
  {
    HttpTestServer server({.unix_path = path.string()});
    EXPECT_EQ(server.address(), "unix:" + path.string());
    EXPECT_EQ(server.port(), 0);
    EXPECT_TRUE(server.server().on_loopback());
    EXPECT_THROW(HttpTestServer({.unix_path = path.string()}), Error);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(HttpServer, AdoptsSocketsAlone) {
  HttpTestServer server;
  server.call([](HttpServer& called) {
    const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_THROW(called.adopt(file), Error);
    EXPECT_THROW(called.adopt(-1), Error);
    ::close(file);
  });
  HttpTestClient client(server, Transport::unix_pair);
  client.send(get_text("/echo"));
  EXPECT_EQ(client.receive().status, 200);
}

TEST(HttpServer, GoesOnAfterATaskThatThrows) {
  HttpTestServer server;
  server.server().post([] { throw std::runtime_error("of a task"); });
  HttpTestClient client(server);
  client.send(get_text("/echo"));
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(server.failures(), std::vector<std::string>{"of a task"});
}

TEST(HttpServer, WhatTheTickThrowsEndsNothing) {
  int ticks = 0;
  int failures = 0;
  HttpServer* ticking = nullptr;
  HttpServer server({.port = 0}, {.check = {},
                                  .handle = {},
                                  .error = {},
                                  .tick =
                                      [&] {
                                        if (++ticks == 3) {
                                          ticking->stop();
                                        }
                                        throw std::runtime_error("of the tick");
                                      },
                                  .failed = [&](std::string_view) { ++failures; }});
  ticking = &server;
  server.run();
  EXPECT_EQ(ticks, 3);
  EXPECT_EQ(failures, 3);
}

TEST(HttpServer, HasAnswersWithoutItsHandlers) {
  HttpServer server({.port = 0}, {});  // all of them throw
  std::thread thread([&] { server.run(); });
  EXPECT_EQ(server.address(), fmt::format("http://127.0.0.1:{}", server.port()));
  {
    HttpTestClient client(server.port());
    client.send(get_text("/"));
    const Reply reply = client.receive();
    EXPECT_EQ(reply.status, 500);
    EXPECT_EQ(reply.body, "");
    client.send("\r\n\r\n");
    EXPECT_EQ(client.receive().status, 400);
  }
  server.post([&] { server.stop(); });
  thread.join();
}

TEST(HttpServer, EndsWhatIsIdleAndAnswersTheRest) {
  HttpTestServer server;
  HttpTestClient fresh(server);
  HttpTestClient idle(server);
  HttpTestClient busy(server);
  HttpTestClient streaming(server);
  HttpTestClient sending(server);
  idle.send(get_text("/echo"));
  EXPECT_EQ(idle.receive().status, 200);
  busy.send(get_text("/later"));
  const auto answer = server.waiting(0);
  streaming.send(get_text("/later"));
  const auto stream = server.waiting(1);
  const std::string post = post_of("/echo", "body");
  sending.send(post.substr(0, post.size() - 1));
  server.call([&](HttpServer& called) {
    stream->begin_stream({.body = "a part, "});
    EXPECT_EQ(called.connections(), 5);
  });
  server.settle();
  server.call([](HttpServer& called) { called.stop_accepting(); });
  EXPECT_TRUE(fresh.ended());
  EXPECT_TRUE(idle.ended());
  EXPECT_THROW(HttpTestClient{server}, std::runtime_error);

  sending.send(post.substr(post.size() - 1));
  Reply reply = sending.receive();
  EXPECT_EQ(reply.body, "body");
  EXPECT_EQ(reply.headers["Connection"], "close");
  server.call([&](HttpServer&) {
    answer->respond({.body = "answer"});
    stream->write("its end");
    stream->end();
  });
  reply = busy.receive();
  EXPECT_EQ(reply.body, "answer");
  EXPECT_EQ(reply.headers["Connection"], "close");
  EXPECT_EQ(streaming.receive().body, "a part, its end");
  for (HttpTestClient* client : {&busy, &streaming, &sending}) {
    EXPECT_TRUE(client->ended());
  }
}

TEST(HttpServer, RefusesWhatIsNotRead) {
  HttpTestServer server;
  HttpTestClient fresh(server);
  HttpTestClient idle(server);
  HttpTestClient header(server);
  HttpTestClient body(server);
  HttpTestClient chunks(server);
  HttpTestClient busy(server);
  idle.send(get_text("/echo"));
  EXPECT_EQ(idle.receive().status, 200);
  header.send("GET /echo HTTP/1.1\r\n");
  body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbod");
  chunks.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nb");
  busy.send(get_text("/later"));
  const auto exchange = server.waiting();
  server.settle();
  server.call([&](HttpServer& called) {
    EXPECT_EQ(called.connections(), 6);
    EXPECT_FALSE(called.sending());
  });
  server.call([](HttpServer& called) {
    called.stop_accepting();
    called.refuse_unread(503, "the model's device is lost");
    EXPECT_TRUE(called.sending());
  });
  server.settle();
  bool sending = false;
  server.call([&](HttpServer& called) { sending = called.sending(); });
  EXPECT_TRUE(sending) << "the answers may still be lost";
  for (HttpTestClient* client : {&header, &body, &chunks}) {
    Reply reply = client->receive();
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.body, "the model's device is lost");
    EXPECT_EQ(reply.headers["Connection"], "close");
    EXPECT_TRUE(client->ended());
    client->close();
  }
  EXPECT_TRUE(fresh.ended());
  EXPECT_TRUE(idle.ended());
  EXPECT_TRUE(eventually([&] {
    server.call([&](HttpServer& called) { sending = called.sending(); });
    return !sending;
  }));
  server.call([&](HttpServer&) { exchange->respond({.status = 503}); });
  EXPECT_EQ(busy.receive().status, 503);
  EXPECT_TRUE(busy.ended());
}

}  // namespace
}  // namespace sparsellm
