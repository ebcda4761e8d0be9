#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tools/serve/http.h"

namespace sparsellm {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address, or "localhost"
  uint16_t port = 8000;            // 0: one that is free
  std::string unix_path = {};      // instead of host and port
  int64_t max_connections = 4096;
  int64_t max_body = int64_t{16} << 20;
  // Of all bodies that are being read or wait for the beginning of their answers; beyond it
  // requests are answered 503.
  int64_t max_bodies = int64_t{1} << 30;

  // A client that reads so slowly is cut off: bytes of a stream that wait for it when more is
  // written, without one part that is larger than that, and the time in which it has taken none.
  int64_t max_unsent = int64_t{1} << 20;
  std::chrono::milliseconds stalled{30'000};
  // To wait for the whole of a header, for the whole of a body, for the next request of a
  // connection. All times may be exceeded by half a second.
  std::chrono::milliseconds header{10'000};
  std::chrono::milliseconds body{60'000};
  std::chrono::milliseconds idle{60'000};
};

// What the server asks of its program; all of it is called on the server's thread. A request whose
// check() or handle() throws is answered 500, or if its answer has begun, cut off.
struct HttpHandlers {
  // Before a body is read: a response that refuses it, after which the connection is closed unless
  // there is none.
  std::function<std::optional<HttpResponse>(const HttpHead& head)> check;
  // Answers now or later.
  std::function<void(std::shared_ptr<HttpExchange> exchange)> handle;
  // The answer to what is not HTTP, too large or too late.
  std::function<HttpResponse(int status, std::string_view why)> error;
  std::function<void()> tick = {};  // every kHttpTick
  // What was thrown by another of these, by an exchange's on_gone or by a task of post().
  std::function<void(std::string_view why)> failed = {};
};
inline constexpr std::chrono::milliseconds kHttpTick{100};

// HTTP/1.0 and 1.1 without TLS, on one thread. What might be taken for two different requests by
// two readers is refused and ends its connection: see ambiguity().
//
// A client that leaves is noticed at once. One that ends only what it sends (`nc -N`, tools of
// HTTP/1.0) is answered as any other. The two cannot be told apart until something is written, and
// a connection that was closed answers it with a reset: so at the end of what a client sends it is
// sent the first bytes that every answer has, "HTTP/1.1 ", ahead of the others. More than 16 KB
// that a client sends ahead of its answer wait in the socket; whether it has left is then looked up
// every kHttpTick.
class HttpServer {
 public:
  // Listens from here on. Throws Error for an address that cannot be listened on.
  HttpServer(HttpServerOptions options, HttpHandlers handlers);
  ~HttpServer();

  // "http://127.0.0.1:8000", "unix:/run/model.sock"
  std::string address() const;
  uint16_t port() const;     // 0 of a Unix socket
  bool on_loopback() const;  // or a Unix socket: nobody else reaches it

  void run();  // until stop()

  // From any thread: `task` is called on the server's.
  void post(std::function<void()> task);

  // On the server's thread:
  void adopt(int socket);  // serves the client of a connected stream socket, which it then owns
  void stop_accepting();   // and close connections that have no request, now or when it is answered
  // Requests of which not all is read, now or later, are answered by HttpHandlers::error() and end
  // their connections; connections without a request are closed. Those that are whole are handled.
  void refuse_unread(int status, std::string_view why);
  void stop();  // run() returns; what is not sent by now is lost
  int64_t connections() const;
  int64_t cut_off() const;  // clients, in all, that did not read
  // Some answer is not sent to its end, or one to a request that was not read may not be received.
  bool sending() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
