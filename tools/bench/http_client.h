#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tools/bench/server_url.h"

namespace sparsellm {

struct HttpCall {
  std::string method = "POST";
  std::string path;       // after ServerUrl::prefix
  std::string body = {};  // JSON, of a POST
};

// What becomes of a call, on the thread of HttpClient::run().
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;

  virtual void on_status(int status) = 0;
  virtual void on_body(std::string_view part) = 0;  // whatever has come by now
  // The last: `error` is empty if the whole answer was read, and says else why it was not.
  virtual void on_end(std::string_view error) = 0;
};

// HTTP/1.1 to one server, thousands of calls at a time on one thread. Connections are used again
// when their answers have been read.
class HttpClient {
 public:
  // Finds the addresses of the host; nothing is connected yet. `api_key` is sent with every call
  // unless it is empty. Throws Error, in a build without Boost always.
  HttpClient(const ServerUrl& url, const std::string& api_key);
  ~HttpClient();  // calls that have not ended are dropped without a word

  // Before and during run(). `answer` has to outlive its last call.
  void send(HttpCall call, HttpAnswer& answer);
  void after(double seconds, std::function<void()> task);

  // Until every call has ended and every task has been done. Throws what a task or an answer
  // throws, after which it may not be called again.
  void run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
