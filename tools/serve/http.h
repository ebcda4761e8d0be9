#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sparsellm {

struct HttpHeader {
  std::string name;
  std::string value;
};

// A request before its body. Nothing in it has been looked at but the rules of HTTP itself.
struct HttpHead {
  std::string method;
  std::string target;  // with the query
  std::vector<HttpHeader> headers;
  int version = 11;  // 10: HTTP/1.0

  std::string_view path() const;  // without the query
  // The value of the first header of this name in any case; empty without one.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<HttpHeader> headers = {};
};

// A request and its answer, which is either respond() or begin_stream(), write() as often as
// needed, and end(). All of it on the server's thread; it may be dropped on any, and after the
// server. What is written to a client that has left, or after the answer's end, is dropped.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  const HttpHead& head() const { return head_; }
  // Until the answer begins. It counts in HttpServerOptions::max_bodies so long, also if it was
  // moved out, or else until the exchange is dropped.
  std::string& body() { return body_; }

  virtual void respond(HttpResponse response) = 0;
  virtual void begin_stream(HttpResponse head) = 0;  // with the first part of its body
  virtual void write(std::string_view text) = 0;
  virtual void end() = 0;

  // The answer has begun or is not wanted any more.
  virtual bool answered() const = 0;
  // The client has left, or was cut off because it did not read.
  bool gone() const { return gone_; }
  // Called once when a client leaves before the answer's end.
  std::function<void()> on_gone = {};

 protected:
  HttpHead head_;
  std::string body_;
  bool gone_ = false;
};

// Why two readers of this header may see two different requests (RFC 9112, section 11.2); empty if
// they may not.
std::string_view ambiguity(const HttpHead& head);

bool equal_without_case(std::string_view a, std::string_view b);  // of ASCII
std::string_view status_text(int status);                         // "Not Found"

}  // namespace sparsellm
