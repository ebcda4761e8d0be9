#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tools/serve/http.h"
#include "tools/serve/http_connection_body.h"

namespace sparsellm {

// Every answer begins so.
inline constexpr std::string_view kAnswerStart = "HTTP/1.1 ";

// The bytes of an answer with its length. `connection`: the field of this name with its line's end,
// or nothing. `head_only`: without the body, for HEAD.
std::string answer_text(const HttpResponse& response, std::string_view connection, bool head_only);
inline constexpr std::string_view kConnectionClose = "Connection: close\r\n";

// Where the bytes of answers go.
class HttpOutput {
 public:
  virtual ~HttpOutput() = default;
  virtual void send_head(std::string_view text) = 0;  // an answer's beginning
  virtual void send_part(std::string_view text) = 0;  // of a stream; may cut off a slow client
  virtual void send(std::string_view text) = 0;
  virtual void exchange_ended() = 0;  // after its last text
};

// An exchange of a connection, which may outlive it.
class ConnectionExchange final : public HttpExchange {
 public:
  struct Request {
    HttpHead head;
    std::string body;
    BodyShare memory;  // of the body
    bool keep_alive;
  };

  ConnectionExchange(std::weak_ptr<HttpOutput> output, Request request);

  void respond(HttpResponse response) override;
  void begin_stream(HttpResponse head) override;
  void write(std::string_view text) override;
  void end() override;
  bool answered() const override { return begun_ || gone_; }

  // For the connection:
  bool ended() const { return ended_; }
  bool keeps_alive() const { return keep_alive_; }
  // The connection ends after the answer, which says so if it has not begun.
  void close_after() { keep_alive_ = keep_alive_ && begun_; }
  void leave();  // calls on_gone

 private:
  void begin();
  bool of_http_1_0() const { return head_.version < 11; }  // which knows no chunks
  bool of_head() const { return head_.method == "HEAD"; }
  std::string_view connection_field() const;

  std::weak_ptr<HttpOutput> output_;
  BodyShare memory_;
  bool keep_alive_;
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace sparsellm
