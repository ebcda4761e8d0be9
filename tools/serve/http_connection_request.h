#pragma once

// Of Beast, for http_connection.cpp alone.

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tools/serve/http.h"
#include "tools/serve/http_connection_body.h"
#include "tools/serve/http_connection_exchange.h"

namespace sparsellm {

// Why a request is not read to its end. Its connection ends after the answer.
struct HttpRefusal {
  int status = 0;  // 0: nobody is there to be answered
  std::string why = {};
};

// Of a header; also of a chunk's size with its extensions, and of the trailers.
inline constexpr size_t kMaxHeader = 8 << 10;
// Of all chunk extensions and trailers of a body, and zeros in front of sizes.
inline constexpr size_t kMaxFraming = 128 << 10;

// A request as it arrives. Beast's parser limits the bytes of a header only while no field of it is
// complete, and of a body only those that it keeps, so that they are counted here.
class IncomingRequest {
 public:
  IncomingRequest(int64_t max_body, BodyShare memory)
      : max_body_(max_body), memory_(std::move(memory)) {
    parser_.header_limit(2 * kMaxHeader);
    parser_.body_limit(static_cast<uint64_t>(max_body));
  }

  // Parses what `input` begins with and takes it out: up to the end of the header if that was not
  // there yet, else up to that of the request. What is left then is of a further request, or
  // incomplete.
  std::optional<HttpRefusal> take(boost::beast::flat_buffer& input) {
    return has_header() ? parse_body(input) : parse_header(input);
  }

  bool has_header() const { return parser_.is_header_done(); }
  bool is_whole() const { return parser_.is_done(); }
  bool of_head() const { return parser_.get().method() == boost::beast::http::verb::head; }

  // With the header. False: there is no memory for a body of its Content-Length.
  bool reserve() {
    return memory_.resize(static_cast<int64_t>(parser_.content_length().value_or(0)));
  }
  HttpHead head() const {
    const auto& message = parser_.get();
    HttpHead head{.method = std::string(message.method_string()),
                  .target = std::string(message.target()),
                  .headers = {},
                  .version = static_cast<int>(message.version())};
    for (const auto& field : message) {
      head.headers.push_back(
          {.name = std::string(field.name_string()), .value = std::string(field.value())});
    }
    return head;
  }

  // When it is whole. The header was taken before, since a chunked body has fields of its own.
  ConnectionExchange::Request take_whole(HttpHead head) {
    return {.head = std::move(head),
            .body = std::move(parser_.get().body()),
            .memory = std::move(memory_),
            .keep_alive = parser_.keep_alive()};
  }

 private:
  using Error = boost::beast::http::error;
  // "\r\n" after a chunk, a size of eight digits, "\r\n": what a chunk takes anyway.
  static constexpr size_t kChunkFraming = 12;
  // Less than that is never all that is left of a chunked body, and Beast asserts that it is there.
  static constexpr size_t kLeastChunk = 5;

  std::optional<HttpRefusal> parse_header(boost::beast::flat_buffer& input) {
    if (input.size() == 0) {
      return {};
    }
    boost::system::error_code error;
    const size_t taken = parser_.put(input.data(), error);
    const std::string_view text(static_cast<const char*>(input.data().data()), taken);
    const bool folded = text.find("\n ") != text.npos || text.find("\n\t") != text.npos;
    input.consume(taken);
    header_bytes_ += taken;
    if (folded) {  // Beast joins the lines, and others do not
      return HttpRefusal{.status = 400, .why = "a field of the header has several lines"};
    }
    const bool incomplete = error == Error::need_more;
    if (header_bytes_ + (incomplete ? input.size() : 0) > kMaxHeader) {
      return refusal(Error::header_limit);
    }
    if (error && !incomplete) {
      return refusal(error);
    }
    return {};
  }

  std::optional<HttpRefusal> parse_body(boost::beast::flat_buffer& input) {
    const size_t least = parser_.chunked() ? kLeastChunk : 1;
    bool incomplete = false;
    while (!parser_.is_done() && !incomplete && input.size() >= least) {
      const std::string& body = parser_.get().body();
      const size_t before = body.size();
      boost::system::error_code error;
      const size_t taken = parser_.put(input.data(), error);
      input.consume(taken);
      incomplete = error == Error::need_more;
      if (error && !incomplete) {
        return refusal(error);
      }
      if (!parser_.chunked()) {
        continue;
      }
      // Beast takes one piece at a time: of data, or of all that stands between data.
      const size_t framing = incomplete ? input.size() : body.size() > before ? 0 : taken;
      if (framing > kMaxHeader) {
        return framing_refusal(kMaxHeader);
      }
      framing_bytes_ += incomplete ? 0 : framing - std::min(framing, kChunkFraming);
      if (framing_bytes_ > kMaxFraming) {
        return framing_refusal(kMaxFraming);
      }
      if (!memory_.resize(static_cast<int64_t>(body.capacity()))) {
        return HttpRefusal{.status = 503, .why = "too many bodies wait"};
      }
    }
    return {};
  }

  static HttpRefusal framing_refusal(size_t limit) {
    return {.status = 431,
            .why = fmt::format("chunk extensions and trailers have more than {} bytes", limit)};
  }

  HttpRefusal refusal(boost::system::error_code error) const {
    if (error == Error::body_limit) {
      return {.status = 413, .why = fmt::format("the body has more than {} bytes", max_body_)};
    }
    if (error == Error::header_limit) {
      return {.status = 431, .why = fmt::format("the header has more than {} bytes", kMaxHeader)};
    }
    if (error == Error::bad_version) {
      return {.status = 505, .why = "not HTTP/1.0 or 1.1"};
    }
    return {.status = 400, .why = fmt::format("not HTTP: {}", error.message())};
  }

  int64_t max_body_;
  BodyShare memory_;
  boost::beast::http::request_parser<boost::beast::http::string_body> parser_;
  size_t header_bytes_ = 0;   // taken
  size_t framing_bytes_ = 0;  // taken, without kChunkFraming of each chunk
};

}  // namespace sparsellm
