#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tools/serve/http_server.h"

namespace sparsellm::testing {

// A server on a thread of its own, at a free port unless the options say otherwise. It answers
//   /echo          with the body of the request
//   /stream        with the same as one part of a stream
//   /empty         204
//   /later         as the test says: see waiting()
//   /throws        not at all: its handler throws
//   /throws-late   throws after a stream has begun
//   /throws-check  throws before the body is read
// and refuses /refused with 403, and all others with 404.
class HttpTestServer {
 public:
  explicit HttpTestServer(HttpServerOptions options = {});
  ~HttpTestServer();
  HttpTestServer(const HttpTestServer&) = delete;
  HttpTestServer& operator=(const HttpTestServer&) = delete;

  uint16_t port() const { return server_->port(); }
  std::string address() const { return server_->address(); }

  // On the server's thread, while the caller waits.
  void call(const std::function<void(HttpServer&)>& task);
  void settle();  // until the server has seen what clients have sent
  int64_t connections();
  int64_t cut_off();

  // The exchange of /later that is the `index`-th; waits for it.
  std::shared_ptr<HttpExchange> waiting(size_t index = 0);
  void forget_waiting();
  int64_t gone();     // exchanges of /later whose clients have left
  int64_t handled();  // requests
  std::vector<std::string> failures();
  HttpServer& server() { return *server_; }

 private:
  void handle(const std::shared_ptr<HttpExchange>& exchange);

  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> waiting_;
  std::vector<std::string> failures_;
  int64_t gone_ = 0;
  int64_t handled_ = 0;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

// A client with a blocking socket, which gives up after some seconds.
class HttpTestClient {
 public:
  enum class Transport { tcp, unix_pair };

  // `receive_buffer`: bytes that the kernel keeps for the client; 0: its default.
  explicit HttpTestClient(HttpTestServer& server, Transport transport = Transport::tcp,
                          int receive_buffer = 0);
  explicit HttpTestClient(uint16_t port);
  ~HttpTestClient();
  HttpTestClient(const HttpTestClient&) = delete;
  HttpTestClient& operator=(const HttpTestClient&) = delete;

  bool send(std::string_view bytes);  // false: the server has closed
  void end_sending();                 // its answers are still read
  void close();
  void reset();

  struct Reply {
    int status = 0;  // 0: the connection ended before a whole reply
    std::map<std::string, std::string> headers = {};
    std::string body = {};  // of chunks, joined
  };
  // `of_head`: the request was HEAD, whose answers have no bodies.
  enum class Method { head, other };
  Reply receive(Method method = Method::other);
  std::string receive_rest();  // until the connection ends
  // The connection has ended, and not a byte came before.
  bool ended();
  // A byte that comes next, without taking it; nothing if there is none in this time.
  bool has_bytes(std::chrono::milliseconds time);
  int socket() const { return socket_; }

 private:
  struct Socket {
    int number;
  };
  explicit HttpTestClient(Socket socket);
  bool receive_more();  // false at the end
  bool receive_until(size_t bytes);
  std::string take_line();

  int socket_;
  std::string received_;
};

std::string get_text(std::string_view path);
std::string post_of(std::string_view path, std::string_view body);

// Waits some seconds for it to become true.
bool eventually(const std::function<bool()>& condition);

}  // namespace sparsellm::testing
