#include "tools/serve/http_connection_exchange.h"

#include <spdlog/fmt/fmt.h>

#include <iterator>
#include <utility>

namespace sparsellm {
namespace {

std::string head_text(const HttpResponse& response, std::string_view framing,
                      std::string_view connection) {
  std::string text =
      fmt::format("{}{} {}\r\n", kAnswerStart, response.status, status_text(response.status));
  if (!response.content_type.empty()) {
    text.append("Content-Type: ").append(response.content_type).append("\r\n");
  }
  for (const HttpHeader& header : response.headers) {
    text.append(header.name).append(": ").append(header.value).append("\r\n");
  }
  return text.append(framing).append(connection).append("\r\n");
}

}  // namespace

std::string answer_text(const HttpResponse& response, std::string_view connection, bool head_only) {
  std::string framing;
  if (response.status != 204) {  // which has no length
    framing = fmt::format("Content-Length: {}\r\n", response.body.size());
  }
  std::string text = head_text(response, framing, connection);
  return head_only ? text : text.append(response.body);
}

ConnectionExchange::ConnectionExchange(std::weak_ptr<HttpOutput> output, Request request)
    : output_(std::move(output)),
      memory_(std::move(request.memory)),
      keep_alive_(request.keep_alive) {
  head_ = std::move(request.head);
  body_ = std::move(request.body);
}

void ConnectionExchange::begin() {
  begun_ = true;
  body_ = {};
  memory_.resize(0);
}

std::string_view ConnectionExchange::connection_field() const {
  if (!keep_alive_) {
    return kConnectionClose;
  }
  return of_http_1_0() ? "Connection: keep-alive\r\n" : "";
}

void ConnectionExchange::respond(HttpResponse response) {
  if (answered()) {
    return;
  }
  begin();
  ended_ = true;
  if (const auto output = output_.lock()) {
    output->send_head(answer_text(response, connection_field(), of_head()));
    output->exchange_ended();
  }
}

void ConnectionExchange::begin_stream(HttpResponse head) {
  if (answered()) {
    return;
  }
  begin();
  if (of_http_1_0()) {
    keep_alive_ = false;  // its end is that of the connection
  }
  if (const auto output = output_.lock()) {
    const std::string_view framing = of_http_1_0() ? "" : "Transfer-Encoding: chunked\r\n";
    output->send_head(head_text(head, framing, connection_field()));
    write(head.body);
  }
}

void ConnectionExchange::write(std::string_view text) {
  const auto output = output_.lock();
  if (!output || !begun_ || ended_ || gone_ || of_head() || text.empty()) {
    return;
  }
  if (of_http_1_0()) {
    output->send_part(text);
  } else {
    std::string chunk;
    chunk.reserve(text.size() + 24);
    fmt::format_to(std::back_inserter(chunk), "{:x}\r\n", text.size());
    output->send_part(chunk.append(text).append("\r\n"));
  }
}

void ConnectionExchange::end() {
  if (!begun_ || std::exchange(ended_, true)) {
    return;
  }
  if (const auto output = output_.lock()) {
    if (!of_http_1_0() && !of_head()) {
      output->send("0\r\n\r\n");
    }
    output->exchange_ended();
  }
}

void ConnectionExchange::leave() {
  if (!std::exchange(gone_, true) && !ended_ && on_gone) {
    std::exchange(on_gone, {})();
  }
}

}  // namespace sparsellm
