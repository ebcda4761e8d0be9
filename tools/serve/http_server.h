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

  // A client that reads so slowly is cut off: bytes of a stream that wait for it, and the time in
  // which it has taken none.
  int64_t max_unsent = int64_t{1} << 20;
  std::chrono::seconds stalled{30};
  // To wait for the whole of a header, for the whole of a body, for the next request of a
  // connection.
  std::chrono::seconds header{10};
  std::chrono::seconds body{60};
  std::chrono::seconds idle{60};
};

// What the server asks of its program; all of it is called on the server's thread.
struct HttpHandlers {
  // Before a body is read: a response that refuses it, after which the connection is closed unless
  // there is none.
  std::function<std::optional<HttpResponse>(const HttpHead& head)> check;
  // Answers now or later.
  std::function<void(std::shared_ptr<HttpExchange> exchange)> handle;
  // The answer to what is not HTTP, too large or too late.
  std::function<HttpResponse(int status, std::string_view why)> error;
  std::function<void()> tick = {};  // every kHttpTick
};
inline constexpr std::chrono::milliseconds kHttpTick{100};

// HTTP/1.0 and 1.1 without TLS, on one thread. What might be taken for two different requests by
// two readers is refused and ends its connection (RFC 9112, section 11.2): a Transfer-Encoding
// other than exactly "chunked", one beside a Content-Length, none or several Hosts.
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
  void stop_accepting();  // and close connections that have no request, now or when it is answered
  void stop();            // run() returns; what is not sent by now is lost
  int64_t connections() const;
  int64_t cut_off() const;  // clients, in all, that did not read
  bool sending() const;     // some answer is not sent to its end

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
