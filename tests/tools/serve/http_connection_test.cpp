// What one connection of sparsellm-serve makes of the bytes that come in, by plain sockets.

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/tools/serve/http_test_server.h"

namespace sparsellm {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::get_text;
using testing::HttpTestClient;
using testing::HttpTestServer;
using testing::post_of;
using Method = HttpTestClient::Method;
using Reply = HttpTestClient::Reply;
using Transport = HttpTestClient::Transport;

constexpr std::array kTransports{Transport::tcp, Transport::unix_pair};
// As in http_connection.cpp: more that is sent ahead of an answer is not read.
constexpr size_t kMaxAhead = 16 << 10;

std::string chunked(std::string_view path, std::string_view chunks) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{}",
                     path, chunks);
}

// The answer to these bytes, on a connection of their own.
Reply reply_to(HttpTestServer& server, std::string_view bytes, Method method = Method::other) {
  HttpTestClient client(server);
  client.send(bytes);
  return client.receive(method);
}

void respond(HttpTestServer& server, const std::shared_ptr<HttpExchange>& exchange,
             const std::string& body) {
  server.call([&](HttpServer&) { exchange->respond({.body = body}); });
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(HttpConnection, PipelinedRequestsAreAnsweredInTheirOrder) {
  HttpTestServer server;
  HttpTestClient client(server);
  std::string requests;
  for (int i = 0; i < 20; ++i) {
    requests += post_of(i % 2 == 0 ? "/echo" : "/stream", std::to_string(i));
  }
  client.send(requests + post_of("/echo", std::string(3 * kMaxAhead, 'x')) + get_text("/empty"));
  for (int i = 0; i < 20; ++i) {
    const Reply reply = client.receive();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, std::to_string(i));
  }
  EXPECT_TRUE(client.receive().body == std::string(3 * kMaxAhead, 'x'));
  const Reply empty = client.receive();
  EXPECT_EQ(empty.status, 204);
  EXPECT_FALSE(empty.headers.contains("Content-Length"));
}

TEST(HttpConnection, BytesMayComeOneByOne) {
  HttpTestServer server;
  HttpTestClient client(server);
  for (const std::string& request :
       {post_of("/echo", "body"),
        chunked("/echo", "3;a=\"b\"\r\nabc\r\n1\r\nd\r\n0\r\nX: y\r\n\r\n"),
        chunked("/echo", "0\r\n\r\n")}) {
    for (const char byte : request) {
      client.send({&byte, 1});
      std::this_thread::yield();
    }
    const Reply reply = client.receive();
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(reply.body == "body" || reply.body == "abcd" || reply.body.empty());
  }
}

// The server sees each part alone.
TEST(HttpConnection, ChunksMayBeSplitAnywhere) {
  HttpTestServer server;
  for (const std::string_view body : {"ab", ""}) {
    const std::string request =
        chunked("/echo", body.empty() ? "0\r\n\r\n" : "2\r\nab\r\n0\r\n\r\n");
    for (size_t at = 1; at < request.size(); ++at) {
      HttpTestClient client(server, Transport::unix_pair);
      client.send(request.substr(0, at));
      server.settle();
      client.send(request.substr(at));
      EXPECT_EQ(client.receive().body, body) << at;
    }
    HttpTestClient client(server, Transport::unix_pair);
    for (const char byte : request) {
      client.send({&byte, 1});
      server.settle();
    }
    EXPECT_EQ(client.receive().body, body);
  }
}

TEST(HttpConnection, ChunksOfOneByte) {
  HttpTestServer server;
  std::string chunks;
  for (int i = 0; i < 50'000; ++i) {
    chunks += "1\r\nx\r\n";
  }
  const Reply reply = reply_to(server, chunked("/echo", chunks + "0\r\n\r\n"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, std::string(50'000, 'x'));
}

TEST(HttpConnection, WhatCouldBeReadInTwoWaysIsRefused) {
  HttpTestServer server;
  const std::string post = "POST /echo HTTP/1.1\r\nHost: a\r\n";
  const std::vector<std::string> requests{
      "GET /echo HTTP/1.1\r\n\r\n",
      "GET /echo HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
      "GET /echo HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
      post + "Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody",
      post + "Content-Length: 4\r\ncontent-length: 5\r\n\r\nbody",
      post + "Content-Length: 4, 4\r\n\r\nbody",
      post + "Content-Length: 4,\r\n\r\nbody",
      post + "Content-Length: +4\r\n\r\nbody",
      post + "Content-Length: 0x4\r\n\r\nbody",
      post + "Content-Length:\r\n\r\nbody",
      post + "Content-Length: 18446744073709551620\r\n\r\nbody",
      post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding:\r\n\r\n0\r\n\r\n",
      "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      post + "Content-Length : 4\r\n\r\nbody",
      post + " Content-Length: 4\r\n\r\nbody",
      "POST /echo HTTP/1.1\r\n Host: a\r\n\r\n",
      post + "X:\r\n\tContent-Length: 4\r\n\r\nbody",
      post + "Transfer-Encoding: chunked\r\n\r\n4\nbody\n0\n\n",
      post + "Transfer-Encoding: chunked\r\n\r\n4\r\nbodyx\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\n\r\n-4\r\nbody\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\n\r\n0x4\r\nbody\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\n\r\n10000000000000004\r\nbody\r\n0\r\n\r\n",
      "GET  /echo HTTP/1.1\r\nHost: a\r\n\r\n",
      std::string("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 28),
  };
  for (const std::string& request : requests) {
    HttpTestClient client(server);
    client.send(request + get_text("/echo"));
    const Reply reply = client.receive();
    EXPECT_EQ(reply.status, 400) << request;
    EXPECT_EQ(reply.headers.at("Connection"), "close") << request;
    EXPECT_TRUE(client.ended()) << request;
  }
  EXPECT_EQ(server.handled(), 0);
}

TEST(HttpConnection, OtherVersionsAreRefused) {
  HttpTestServer server;
  for (const std::string_view request :
       {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", "GET / HTTP/0.9\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.2\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n",
        "not HTTP at all\r\n\r\n"}) {
    EXPECT_EQ(reply_to(server, request).status, 505) << request;
  }
}

TEST(HttpConnection, AHeaderHasALimit) {
  HttpTestServer server;
  const auto header_of = [](size_t bytes) {
    std::string text = "GET /empty HTTP/1.1\r\nHost: a\r\nX: ";
    return text + std::string(bytes - text.size() - 4, 'x') + "\r\n\r\n";
  };
  EXPECT_EQ(reply_to(server, header_of(8192)).status, 204);
  EXPECT_EQ(reply_to(server, header_of(8193)).status, 431);
  EXPECT_EQ(reply_to(server, "GET /" + std::string(9000, 'x')).status, 431);

  // Whole fields, one by one, are no way around it.
  HttpTestClient client(server, Transport::unix_pair);
  client.send("GET /empty HTTP/1.1\r\nHost: a\r\n");
  const std::string field = "X: " + std::string(95, 'x') + "\r\n";
  for (int i = 0; i < 100 && !client.has_bytes(milliseconds(0)); ++i) {
    client.send(field);
    server.settle();
  }
  EXPECT_EQ(client.receive().status, 431);
}

TEST(HttpConnection, ABodyHasALimit) {
  HttpTestServer server({.max_body = 1000});
  const std::string most(1000, 'x');
  EXPECT_TRUE(reply_to(server, post_of("/echo", most)).body == most);
  EXPECT_TRUE(reply_to(server, chunked("/echo", "3e8\r\n" + most + "\r\n0\r\n\r\n")).body == most);
  EXPECT_EQ(reply_to(server, post_of("/echo", most + "x")).status, 413);
  EXPECT_EQ(reply_to(server, chunked("/echo", "3e8\r\n" + most + "\r\n1\r\nx\r\n0\r\n\r\n")).status,
            413);
  EXPECT_EQ(reply_to(server, chunked("/echo", "ffffffffffffffff\r\n")).status, 413);
}

// Whether the body is echoed; the other way is 431.
bool framing_is_taken(HttpTestServer& server, std::string_view chunks) {
  const Reply reply = reply_to(server, chunked("/echo", chunks));
  EXPECT_TRUE(reply.status == 200 || reply.status == 431) << reply.status << reply.body;
  return reply.status == 200;
}

TEST(HttpConnection, WhatFramesABodyHasALimit) {
  HttpTestServer server;
  const std::string end = "0\r\n\r\n";
  EXPECT_TRUE(framing_is_taken(server, "1;" + std::string(8000, 'e') + "\r\nx\r\n" + end));
  EXPECT_FALSE(framing_is_taken(server, "1;" + std::string(8200, 'e') + "\r\nx\r\n" + end));
  EXPECT_TRUE(framing_is_taken(server, std::string(8000, '0') + "1\r\nx\r\n" + end));
  EXPECT_FALSE(framing_is_taken(server, std::string(8200, '0') + "1\r\nx\r\n" + end));
  EXPECT_FALSE(framing_is_taken(server, std::string(8200, '0') + "\r\n\r\n"));
  EXPECT_TRUE(framing_is_taken(server, "1\r\nx\r\n0\r\nT: " + std::string(8000, 't') + "\r\n\r\n"));
  EXPECT_FALSE(
      framing_is_taken(server, "1\r\nx\r\n0\r\nT: " + std::string(8200, 't') + "\r\n\r\n"));

  std::string extended;
  for (int i = 0; i < 120; ++i) {
    extended += "1;" + std::string(1024, 'e') + "\r\nx\r\n";
  }
  EXPECT_TRUE(framing_is_taken(server, extended + end));
  EXPECT_FALSE(framing_is_taken(server, extended + extended + end));
  std::string zeros;
  for (int i = 0; i < 120; ++i) {
    zeros += std::string(1024, '0') + "1\r\nx\r\n";
  }
  EXPECT_TRUE(framing_is_taken(server, zeros + end));
  EXPECT_FALSE(framing_is_taken(server, zeros + zeros + end));
}

// None of it is kept until it ends, either.
TEST(HttpConnection, EndlessFramingIsRefusedOnTheWay) {
  HttpTestServer server;
  for (const std::string_view beginning : {"1;", "0", "0\r\nT: "}) {
    HttpTestClient client(server);
    client.send(chunked("/echo", beginning));
    const std::string more(4096, '0');
    for (int i = 0; i < 64 && !client.has_bytes(milliseconds(0)); ++i) {
      client.send(more);
    }
    EXPECT_EQ(client.receive().status, 431) << beginning;
  }
}

TEST(HttpConnection, ExpectIsAnsweredBeforeTheBody) {
  HttpTestServer server;
  const auto expecting = [](std::string_view path, std::string_view version,
                            std::string_view what) {
    return fmt::format("POST {} HTTP/{}\r\nHost: a\r\nContent-Length: 4\r\nExpect: {}\r\n\r\n",
                       path, version, what);
  };
  {
    HttpTestClient client(server);
    client.send(expecting("/echo", "1.1", "100-Continue"));
    EXPECT_EQ(client.receive().status, 100);
    client.send("body");
    EXPECT_EQ(client.receive().body, "body");
    client.send(expecting("/refused", "1.1", "100-continue"));
    EXPECT_EQ(client.receive().status, 403);
    EXPECT_TRUE(client.ended());
  }
  {
    HttpTestClient client(server);
    client.send(expecting("/echo", "1.1", "200-ok"));
    EXPECT_EQ(client.receive().status, 417);
  }
  HttpTestClient client(server);
  client.send(expecting("/echo", "1.0", "100-continue"));
  EXPECT_FALSE(client.has_bytes(milliseconds(50)));
  client.send("body");
  EXPECT_EQ(client.receive().body, "body");
}

TEST(HttpConnection, HeadHasNoBodyInItsAnswer) {
  HttpTestServer server;
  HttpTestClient client(server);
  client.send("HEAD /none HTTP/1.1\r\nHost: a\r\n\r\n" + get_text("/refused"));
  EXPECT_EQ(client.receive(Method::head).status, 404);
  EXPECT_EQ(client.receive().body, "refused");

  // Also if it is refused before its body is read.
  for (const std::string_view headers :
       {"Content-Length: 100\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: 1e9\r\n",
        "Content-Length: 99999999999\r\n", "Expect: tea\r\nContent-Length: 1\r\n"}) {
    HttpTestClient refused(server);
    refused.send(fmt::format("HEAD /refused HTTP/1.1\r\nHost: a\r\n{}\r\n", headers));
    const Reply reply = refused.receive(Method::head);
    EXPECT_GE(reply.status, 400);
    EXPECT_EQ(reply.headers.at("Connection"), "close");
    EXPECT_TRUE(refused.ended()) << headers;
  }
}

TEST(HttpConnection, ConnectionsAreKeptAsTheClientSays) {
  HttpTestServer server;
  struct Case {
    std::string_view version;
    std::string_view header;
    std::string_view answer;  // the header Connection
  };
  for (const Case& c : {Case{"1.1", "", ""}, Case{"1.1", "Connection: close\r\n", "close"},
                        Case{"1.1", "Connection: keep-alive\r\n", ""}, Case{"1.0", "", "close"},
                        Case{"1.0", "Connection: Keep-Alive\r\n", "keep-alive"}}) {
    HttpTestClient client(server);
    const std::string get =
        fmt::format("GET /echo HTTP/{}\r\nHost: a\r\n{}\r\n", c.version, c.header);
    client.send(get);
    Reply reply = client.receive();
    EXPECT_EQ(reply.headers["Connection"], c.answer) << get;
    if (c.answer == "close") {
      EXPECT_TRUE(client.ended());
    } else {
      client.send(get);
      EXPECT_EQ(client.receive().status, 200);
    }
  }
  // The end of a stream of HTTP/1.0 is that of its connection.
  HttpTestClient client(server);
  client.send("POST /stream HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nbody");
  Reply reply = client.receive();
  EXPECT_EQ(reply.headers["Connection"], "close");
  EXPECT_EQ(reply.body, "body");
}

TEST(HttpConnection, ARefusedBodyIsReadSoThatTheAnswerArrives) {
  HttpTestServer server;
  HttpTestClient client(server);
  client.send(post_of("/refused", std::string(900'000, 'x')));
  EXPECT_EQ(client.receive().status, 403);
  EXPECT_TRUE(client.ended());
}

TEST(HttpConnection, WhatIsLateEnds) {
  HttpTestServer server(
      {.header = milliseconds(50), .body = milliseconds(50), .idle = milliseconds(50)});
  HttpTestClient silent(server);
  HttpTestClient header(server);
  HttpTestClient body(server);
  HttpTestClient chunks(server);
  HttpTestClient idle(server);
  header.send("GET /echo HTTP/1.1\r\n");
  body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbod");
  chunks.send(chunked("/echo", "4\r\nbody\r\n"));
  idle.send(get_text("/echo"));
  EXPECT_EQ(idle.receive().status, 200);
  EXPECT_TRUE(silent.ended());
  EXPECT_TRUE(idle.ended());
  for (HttpTestClient* late : {&header, &body, &chunks}) {
    EXPECT_EQ(late->receive().status, 408);
    EXPECT_TRUE(late->ended());
  }
}

// The deadline of a request is none of the one that follows, nor of its answer.
TEST(HttpConnection, AnAnswerMayTakeLongerThanARequest) {
  HttpTestServer server(
      {.header = milliseconds(100), .body = milliseconds(100), .idle = milliseconds(3000)});
  HttpTestClient client(server);
  client.send(post_of("/later", "body"));
  const auto exchange = server.waiting();
  std::this_thread::sleep_for(milliseconds(800));
  respond(server, exchange, "answer");
  EXPECT_EQ(client.receive().body, "answer");
  client.send(get_text("/echo"));
  EXPECT_EQ(client.receive().status, 200);
}

TEST(HttpConnection, AClientThatDoesNotReadIsCutOff) {
  HttpTestServer server({.max_unsent = 100'000});
  HttpTestClient client(server, Transport::tcp, 4096);
  client.send(get_text("/later"));
  const auto exchange = server.waiting();
  server.call([&](HttpServer&) { exchange->begin_stream({}); });
  int64_t written = 0;
  for (; written < 10'000 && server.gone() == 0; ++written) {
    server.call([&](HttpServer&) { exchange->write(std::string(10'000, 'x')); });
  }
  EXPECT_LT(written, 10'000);
  EXPECT_EQ(server.cut_off(), 1);
  EXPECT_TRUE(exchange->gone());
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
}

TEST(HttpConnection, AClientThatTakesNothingIsCutOff) {
  HttpTestServer server({.stalled = milliseconds(50)});
  HttpTestClient client(server, Transport::tcp, 4096);
  client.send(get_text("/later"));
  respond(server, server.waiting(), std::string(32 << 20, 'x'));
  EXPECT_TRUE(eventually([&] { return server.cut_off() == 1; }));
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
}

TEST(HttpConnection, ALargePartOfAStreamIsNoReasonToCutOff) {
  constexpr int64_t kUnsent = 1 << 20;
  HttpTestServer server({.max_unsent = kUnsent});
  HttpTestClient client(server, Transport::tcp, 4096);
  client.send(get_text("/later"));
  const auto exchange = server.waiting();
  std::string expected;
  const auto write = [&](size_t bytes, char letter) {
    const std::string part(bytes, letter);
    expected += part;
    exchange->write(part);
  };
  server.call([&](HttpServer&) {
    exchange->begin_stream({});
    write(1000, 'a');
    write(20 * kUnsent, 'b');  // one that could not be sent at once
    for (int i = 0; i < 100; ++i) {
      write(1000, 'c');
    }
    exchange->end();
  });
  const Reply reply = client.receive();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.body == expected) << reply.body.size();
  EXPECT_EQ(server.cut_off(), 0);

  // Two of them are.
  client.send(get_text("/later"));
  const auto second = server.waiting(1);
  server.call([&](HttpServer&) {
    second->begin_stream({});
    for (int i = 0; i < 3; ++i) {
      second->write(std::string(20 * kUnsent, 'b'));
    }
  });
  EXPECT_EQ(server.cut_off(), 1);
  EXPECT_EQ(server.gone(), 1);
}

enum class Leaving { close, reset };

// A client has sent a request and `ahead` bytes of others, and leaves before the answer.
void expect_leave_is_noticed(Transport transport, size_t ahead, Leaving leaving) {
  HttpTestServer server;
  HttpTestClient client(server, transport);
  client.send(get_text("/later"));
  const auto exchange = server.waiting();
  client.send(std::string(ahead, 'x'));
  server.settle();
  EXPECT_EQ(server.gone(), 0);
  if (leaving == Leaving::close) {
    client.close();
  } else {
    client.reset();
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(eventually([&] { return server.gone() == 1; })) << ahead;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
  respond(server, exchange, "nobody reads it");
}

TEST(HttpConnection, AClientThatLeavesIsNoticed) {
  for (const Transport transport : kTransports) {
    for (const size_t ahead : {size_t{0}, size_t{100}, kMaxAhead, 5 * kMaxAhead}) {
      expect_leave_is_noticed(transport, ahead, Leaving::close);
      if (transport == Transport::tcp) {
        expect_leave_is_noticed(transport, ahead, Leaving::reset);
      }
    }
  }
}

TEST(HttpConnection, AClientThatLeavesAStreamIsNoticed) {
  for (const Transport transport : kTransports) {
    HttpTestServer server;
    HttpTestClient client(server, transport);
    client.send(get_text("/later"));
    const auto exchange = server.waiting();
    server.call([&](HttpServer&) { exchange->begin_stream({.body = "first"}); });
    client.has_bytes(milliseconds(10'000));
    client.close();
    EXPECT_TRUE(eventually([&] {
      server.call([&](HttpServer&) { exchange->write("next"); });
      return server.gone() == 1;
    }));
  }
}

// What waits in a socket, urgent bytes among it, does not keep the server busy.
TEST(HttpConnection, BytesAheadCostNothing) {
  HttpTestServer server;
  HttpTestClient client(server);
  client.send(get_text("/later"));
  const auto exchange = server.waiting();
  client.send(std::string(4 * kMaxAhead, 'x'));
  ::send(client.socket(), "!", 1, MSG_OOB | MSG_NOSIGNAL);
  client.end_sending();
  std::this_thread::sleep_for(milliseconds(50));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_LT(cpu_seconds() - before, 0.05);
  EXPECT_EQ(server.gone(), 0);
  respond(server, exchange, "answer");
  EXPECT_EQ(client.receive().body, "answer");
}

TEST(HttpConnection, AClientThatOnlyEndsSendingIsAnswered) {
  for (const Transport transport : kTransports) {
    HttpTestServer server;
    HttpTestClient client(server, transport);
    client.send(post_of("/later", "1") + post_of("/later", "2") + post_of("/later", "3"));
    client.end_sending();
    // The look at the client is after some ticks of the server, too.
    const auto first = server.waiting(0);
    std::this_thread::sleep_for(3 * kHttpTick);
    EXPECT_EQ(server.gone(), 0);
    const std::string large(4 << 20, 'x');
    respond(server, first, large);
    EXPECT_TRUE(client.receive().body == large);
    const auto second = server.waiting(1);
    server.call([&](HttpServer&) { second->begin_stream({.body = "a stream "}); });
    std::this_thread::sleep_for(2 * kHttpTick);
    server.call([&](HttpServer&) {
      second->write("to its end");
      second->end();
    });
    EXPECT_EQ(client.receive().body, "a stream to its end");
    respond(server, server.waiting(2), "");
    EXPECT_EQ(client.receive().status, 200);
    EXPECT_TRUE(client.ended());
    EXPECT_EQ(server.gone(), 0);
  }
}

// The end of what it sends is that of the connection, once all is answered.
TEST(HttpConnection, AClientThatHasEndedSendingIsNotWaitedFor) {
  for (const Transport transport : kTransports) {
    for (int i = 0; i < 20; ++i) {
      HttpTestServer server;
      HttpTestClient client(server, transport);
      client.send(get_text("/later"));
      client.end_sending();
      const auto exchange = server.waiting();
      server.settle();
      respond(server, exchange, "answer");
      EXPECT_EQ(client.receive().body, "answer");
      ASSERT_TRUE(client.ended()) << i;
    }
  }
}

TEST(HttpConnection, AToolOfHttp10MayEndSending) {
  HttpTestServer server;
  HttpTestClient client(server);
  client.send("POST /later HTTP/1.0\r\nContent-Length: 1\r\n\r\n1");
  client.end_sending();
  const auto exchange = server.waiting();
  std::this_thread::sleep_for(2 * kHttpTick);
  respond(server, exchange, "answer");
  EXPECT_EQ(client.receive().body, "answer");
  EXPECT_TRUE(client.ended());
}

// Also if it ends sending while the answer is on its way.
TEST(HttpConnection, AnAnswerThatHasBegunIsSentToItsEnd) {
  HttpTestServer server;
  HttpTestClient client(server, Transport::tcp, 4096);
  client.send(get_text("/later"));
  const std::string large(16 << 20, 'x');
  respond(server, server.waiting(), large);
  client.end_sending();
  std::this_thread::sleep_for(2 * kHttpTick);
  EXPECT_TRUE(client.receive().body == large);
}

TEST(HttpConnection, ARequestThatIsNotSentToItsEndIsNotAnswered) {
  HttpTestServer server;
  for (const std::string_view part :
       {"", "GET", "GET / HTTP/1.1\r\nHost: a\r\n",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbod"}) {
    HttpTestClient client(server);
    client.send(part);
    client.end_sending();
    EXPECT_TRUE(client.ended()) << part;
  }
  EXPECT_EQ(server.handled(), 0);
}

TEST(HttpConnection, WhatHandlersThrowIs500) {
  HttpTestServer server;
  {
    HttpTestClient client(server);
    client.send(get_text("/throws-check"));
    EXPECT_EQ(client.receive().status, 500);
  }
  {
    HttpTestClient client(server);
    client.send("POST /throws-check HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n");
    EXPECT_EQ(client.receive().status, 500);
    EXPECT_TRUE(client.ended());
  }
  {
    HttpTestClient client(server);
    client.send(get_text("/throws") + get_text("/echo"));
    const Reply reply = client.receive();
    EXPECT_EQ(reply.status, 500);
    EXPECT_EQ(reply.headers.at("Connection"), "close");
    EXPECT_TRUE(client.ended());
  }
  {
    HttpTestClient client(server);
    client.send(get_text("/throws-late"));
    EXPECT_EQ(client.receive().status, 0) << "a stream without its end";
  }
  EXPECT_EQ(reply_to(server, get_text("/echo")).status, 200);
  EXPECT_EQ(server.failures(), (std::vector<std::string>{"of check", "of check", "of handle",
                                                         "an exception of no known type"}));
}

TEST(HttpConnection, WhatOnGoneThrowsHarmsNobody) {
  HttpTestServer server;
  HttpTestClient client(server);
  client.send(get_text("/later"));
  const auto exchange = server.waiting();
  server.call(
      [&](HttpServer&) { exchange->on_gone = [] { throw std::runtime_error("of on_gone"); }; });
  client.reset();
  EXPECT_TRUE(eventually([&] { return !server.failures().empty(); }));
  EXPECT_EQ(server.failures().front(), "of on_gone");
  EXPECT_EQ(reply_to(server, get_text("/echo")).status, 200);
}

TEST(HttpConnection, AnAnswerIsGivenOnce) {
  HttpTestServer server;
  HttpTestClient client(server);
  client.send(get_text("/later"));
  const auto exchange = server.waiting();
  server.call([&](HttpServer&) {
    exchange->write("before it begins");
    exchange->end();
    EXPECT_FALSE(exchange->answered());
    exchange->begin_stream({.body = "once"});
    EXPECT_TRUE(exchange->answered());
    exchange->begin_stream({.body = "twice"});
    exchange->respond({.body = "twice"});
    exchange->end();
    exchange->end();
    exchange->write("after its end");
  });
  EXPECT_EQ(client.receive().body, "once");
  client.send(get_text("/echo"));
  EXPECT_EQ(client.receive().status, 200);
}

// An exchange may outlive its client, its connection and the server.
TEST(HttpConnection, AnExchangeMayBeDroppedLate) {
  std::shared_ptr<HttpExchange> exchange;
  {
    HttpTestServer server;
    HttpTestClient client(server);
    client.send(post_of("/later", "body"));
    exchange = server.waiting();
  }
  exchange->respond({.body = "nobody reads it"});
  exchange.reset();
}

class Bodies : public ::testing::Test {
 protected:
  static constexpr int64_t kAll = 1'400'000;
  HttpTestServer server_{{.max_bodies = kAll}};
  const std::string large_ = std::string(720'000, 'x');

  // Of one that has to go.
  void expect_refused(std::string_view request) {
    HttpTestClient client(server_);
    client.send(request);
    Reply reply = client.receive();
    EXPECT_EQ(reply.status, 503) << reply.body;
    EXPECT_EQ(reply.headers["Retry-After"], "1");
    EXPECT_EQ(reply.headers["Connection"], "close");
  }
  static std::string chunk_of(std::string_view path, std::string_view body) {
    return chunked(path, fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", body.size(), body));
  }
};

TEST_F(Bodies, HaveALimitAllTogether) {
  HttpTestClient client(server_);
  client.send(post_of("/later", large_));
  const auto exchange = server_.waiting();
  expect_refused(post_of("/echo", large_));
  expect_refused(chunk_of("/echo", large_));
  EXPECT_EQ(reply_to(server_, post_of("/echo", "small")).body, "small");
  // Moved out, it is somewhere else.
  std::string moved;
  server_.call([&](HttpServer&) { moved = std::move(exchange->body()); });
  expect_refused(post_of("/echo", large_));
  respond(server_, exchange, "answer");
  EXPECT_EQ(client.receive().body, "answer");
  EXPECT_TRUE(reply_to(server_, post_of("/echo", large_)).body == large_);
  // A string that grows may have twice the bytes.
  const std::string half(large_.size() / 2, 'x');
  EXPECT_TRUE(reply_to(server_, chunk_of("/echo", half)).body == half);
}

TEST_F(Bodies, CountWhileTheyAreRead) {
  HttpTestClient client(server_);
  const std::string request = post_of("/echo", large_);
  client.send(request.substr(0, 1000));
  EXPECT_TRUE(eventually([&] { return server_.connections() == 1; }));
  server_.settle();
  expect_refused(post_of("/echo", large_));
  client.send(request.substr(1000));
  EXPECT_TRUE(client.receive().body == large_);
  client.send(request.substr(0, 1000));
  client.close();
  EXPECT_TRUE(eventually([&] { return server_.connections() == 0; }));
  EXPECT_TRUE(reply_to(server_, post_of("/echo", large_)).body == large_);
}

TEST_F(Bodies, CountUntilTheyAreDroppedIfTheClientLeaves) {
  {
    HttpTestClient client(server_);
    client.send(post_of("/later", large_));
    server_.waiting();
  }
  EXPECT_TRUE(eventually([&] { return server_.gone() == 1; }));
  expect_refused(post_of("/echo", large_));
  EXPECT_TRUE(eventually([&] { return server_.connections() == 0; }));
  server_.forget_waiting();
  EXPECT_TRUE(reply_to(server_, post_of("/echo", large_)).body == large_);
}

}  // namespace
}  // namespace sparsellm
