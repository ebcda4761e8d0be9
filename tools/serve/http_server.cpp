#include "tools/serve/http_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>
#include <cstring>
#include <iterator>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Protocol = asio::generic::stream_protocol;
using RequestParser = http::request_parser<http::string_body>;

constexpr uint32_t kMaxHeader = 8 << 10;
// What a client may send while its request is answered; more is left in the socket.
constexpr size_t kMaxAhead = 16 << 10;
constexpr size_t kReadBytes = 1 << 10;
// A refused body is read so far, that the client sees the answer instead of a reset connection.
constexpr int64_t kMaxRefused = int64_t{1} << 20;
constexpr std::chrono::seconds kRefusedTime{2};
constexpr std::chrono::milliseconds kAcceptPause{100};  // after want of file descriptors

class Connection;
using Connections = std::unordered_set<Connection*>;

// What connections share.
struct Service {
  const HttpServerOptions& options;
  const HttpHandlers& handlers;
  Connections connections = {};
  int64_t cut_off = 0;
  bool draining = false;
};

std::string head_text(const HttpResponse& response, std::string_view framing, bool keep_alive) {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, status_text(response.status));
  if (!response.content_type.empty()) {
    text.append("Content-Type: ").append(response.content_type).append("\r\n");
  }
  for (const HttpHeader& header : response.headers) {
    text.append(header.name).append(": ").append(header.value).append("\r\n");
  }
  text.append(framing);
  text.append(keep_alive ? "\r\n" : "Connection: close\r\n\r\n");
  return text;
}

class Exchange final : public HttpExchange {
 public:
  struct Traits {
    bool keep_alive = true;
    bool chunked = true;     // the client understands it: HTTP/1.1
    bool head_only = false;  // of HEAD
  };

  Exchange(std::weak_ptr<Connection> connection, HttpHead head, std::string body, Traits traits)
      : connection_(std::move(connection)), traits_(traits) {
    head_ = std::move(head);
    body_ = std::move(body);
  }

  void respond(HttpResponse response) override;
  void begin_stream(HttpResponse head) override;
  void write(std::string_view text) override;
  void end() override;
  bool answered() const override { return begun_ || gone_; }

  bool ended() const { return ended_; }
  bool keeps_alive() const { return traits_.keep_alive; }
  void close_after() { traits_.keep_alive = traits_.keep_alive && begun_; }

  void leave() {
    if (!std::exchange(gone_, true) && !ended_ && on_gone) {
      std::exchange(on_gone, {})();
    }
  }

 private:
  std::weak_ptr<Connection> connection_;
  Traits traits_;
  bool begun_ = false;
  bool ended_ = false;
};

// A client. Its coroutine reads; answers are written when there is something to write, whatever the
// coroutine waits for. While a request is answered a read is pending, which notices that the client
// leaves.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Protocol::socket socket, Service& service)
      : socket_(std::move(socket)), service_(service) {
    service_.connections.insert(this);
  }
  ~Connection() { service_.connections.erase(this); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  static awaitable<void> serve(std::shared_ptr<Connection> connection) {
    try {
      while (co_await connection->serve_request()) {
      }
    } catch (const boost::system::system_error&) {  // the connection's end, whoever made it
    }
    connection->leave();
    error_code ignored;
    connection->socket_.close(ignored);
  }

  // What is late at this time.
  void look_at_clock(Clock::time_point now) {
    if (writing_ && now - progress_ > service_.options.stalled) {
      cut_off();
    } else if (now > deadline_) {
      late_ = true;
      cancel_read();
    }
  }

  void close_if_idle() {
    if (exchange_) {
      exchange_->close_after();
    } else if (idle_) {
      late_ = true;
      cancel_read();
    }
  }

  void send(std::string_view text, bool limited) {
    if (broken_) {
      return;
    }
    unsent_ += text;
    const auto waiting = static_cast<int64_t>(unsent_.size() + sending_.size() - sent_);
    if (limited && waiting > service_.options.max_unsent) {
      cut_off();
    } else if (!writing_) {
      write_more();
    }
  }

  // Of the exchange, after its last send().
  void exchange_ended() {
    if (!writing_) {
      cancel_read();
    }
  }

  bool writing() const { return writing_; }

 private:
  // False: no further request on this connection.
  awaitable<bool> serve_request() {
    RequestParser parser;
    parser.header_limit(kMaxHeader);
    parser.body_limit(static_cast<uint64_t>(service_.options.max_body));
    error_code error;
    if (buffer_.size() == 0) {
      idle_ = served_;
      deadline_ = Clock::now() + (served_ ? service_.options.idle : service_.options.header);
      co_await read_some(error);
      idle_ = false;
      if (error) {
        co_return false;
      }
    }
    deadline_ = Clock::now() + service_.options.header;
    co_await http::async_read_header(socket_, buffer_, parser, use(error));
    if (error == http::error::end_of_stream) {
      co_return false;
    }
    if (error) {
      co_return co_await refuse_malformed(error);
    }
    served_ = true;
    HttpHead head = head_of(parser);
    if (const std::string_view why = ambiguity(parser); !why.empty()) {
      co_return co_await refuse(service_.handlers.error(400, why));
    }
    if (std::optional<HttpResponse> refusal = service_.handlers.check(head)) {
      const bool whole = parser.is_done();
      if (!whole) {
        co_return co_await refuse(*std::move(refusal));
      }
      co_return co_await answer_now(parser, std::move(head), *std::move(refusal));
    }
    if (const std::string_view expect = head.header("Expect"); !expect.empty()) {
      if (!equal_without_case(expect, "100-continue")) {
        co_return co_await refuse(service_.handlers.error(417, "Expect is not 100-continue"));
      }
      if (!parser.is_done()) {
        send("HTTP/1.1 100 Continue\r\n\r\n", false);
      }
    }
    if (!parser.is_done()) {
      deadline_ = Clock::now() + service_.options.body;
      co_await http::async_read(socket_, buffer_, parser, use(error));
      if (error) {
        co_return co_await refuse_malformed(error);
      }
    }
    auto exchange = begin_exchange(parser, std::move(head));
    service_.handlers.handle(exchange);
    co_return co_await answered(*exchange);
  }

  std::shared_ptr<Exchange> begin_exchange(RequestParser& parser, HttpHead head) {
    buffer_.shrink_to_fit();  // a body was read through it
    deadline_ = Clock::time_point::max();
    const Exchange::Traits traits{.keep_alive = parser.keep_alive() && !service_.draining,
                                  .chunked = parser.get().version() >= 11,
                                  .head_only = head.method == "HEAD"};
    exchange_ = std::make_shared<Exchange>(weak_from_this(), std::move(head),
                                           std::move(parser.get().body()), traits);
    return exchange_;
  }

  awaitable<bool> answer_now(RequestParser& parser, HttpHead head, HttpResponse response) {
    const auto exchange = begin_exchange(parser, std::move(head));
    exchange->respond(std::move(response));
    co_return co_await answered(*exchange);
  }

  // Waits for the end of an answer, or of the client.
  awaitable<bool> answered(Exchange& exchange) {
    error_code error;
    while (!(exchange.ended() && !writing_) && !broken_) {
      if (buffer_.size() < kMaxAhead) {
        co_await read_some(error);
      } else {
        co_await socket_.async_wait(Protocol::socket::wait_error, use(error));
      }
      if (error && error != asio::error::operation_aborted) {
        leave();
        co_return false;
      }
    }
    exchange_.reset();
    if (broken_ || !exchange.keeps_alive()) {
      co_await end_writing();
      co_return false;
    }
    co_return true;
  }

  awaitable<bool> refuse_malformed(error_code error) {
    if (late_) {
      co_return co_await refuse(service_.handlers.error(408, "the request was not sent in time"));
    }
    if (error == http::error::body_limit) {
      co_return co_await refuse(service_.handlers.error(
          413, fmt::format("the body has more than {} bytes", service_.options.max_body)));
    }
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      co_return co_await refuse(service_.handlers.error(
          431, fmt::format("the header has more than {} bytes", kMaxHeader)));
    }
    if (error == http::error::bad_version) {
      co_return co_await refuse(service_.handlers.error(505, "not HTTP/1.0 or 1.1"));
    }
    if (error.category() == make_error_code(http::error::bad_method).category() &&
        error != http::error::partial_message) {
      co_return co_await refuse(
          service_.handlers.error(400, fmt::format("not HTTP: {}", error.message())));
    }
    co_return false;
  }

  // Answers and closes, in a way that the client can read the answer.
  awaitable<bool> refuse(HttpResponse response) {
    const std::string framing = fmt::format("Content-Length: {}\r\n", response.body.size());
    send(head_text(response, framing, false) + response.body, false);
    co_await end_writing();
    co_return false;
  }

  // Sends what is left and drops what comes in, up to a limit.
  awaitable<void> end_writing() {
    error_code error;
    deadline_ = Clock::now() + kRefusedTime;
    late_ = false;
    closing_ = true;
    if (!writing_) {
      shut_down();
    }
    for (int64_t dropped = 0; !broken_ && !late_ && dropped < kMaxRefused;) {
      buffer_.clear();
      co_await read_some(error);
      if (error) {
        break;
      }
      dropped += static_cast<int64_t>(buffer_.size());
    }
  }

  void shut_down() {
    error_code ignored;
    socket_.shutdown(Protocol::socket::shutdown_send, ignored);
  }

  awaitable<void> read_some(error_code& error) {
    const size_t bytes = co_await socket_.async_read_some(buffer_.prepare(kReadBytes), use(error));
    buffer_.commit(bytes);
  }

  void write_more() {
    sending_.clear();
    std::swap(sending_, unsent_);
    sent_ = 0;
    writing_ = true;
    progress_ = Clock::now();
    write_rest();
  }

  void write_rest() {
    const auto rest = asio::buffer(sending_) + sent_;
    socket_.async_write_some(rest, [self = shared_from_this()](error_code error, size_t bytes) {
      self->written(error, bytes);
    });
  }

  void written(error_code error, size_t bytes) {
    if (error) {
      writing_ = false;
      broken_ = true;
      leave();
      cancel_read();
      return;
    }
    sent_ += bytes;
    progress_ = Clock::now();
    if (sent_ < sending_.size()) {
      return write_rest();
    }
    if (!unsent_.empty()) {
      return write_more();
    }
    writing_ = false;
    if (sending_.capacity() > kMaxAhead) {
      sending_ = {};
    }
    if (closing_) {
      shut_down();
    } else if (exchange_ && exchange_->ended()) {
      cancel_read();
    }
  }

  void cut_off() {
    ++service_.cut_off;
    broken_ = true;
    leave();
    error_code ignored;
    socket_.close(ignored);
  }

  void cancel_read() {
    error_code ignored;
    socket_.cancel(ignored);
  }

  void leave() {
    if (const auto exchange = exchange_) {
      exchange->leave();
    }
  }

  static HttpHead head_of(const RequestParser& parser) {
    const auto& message = parser.get();
    HttpHead head{.method = std::string(message.method_string()),
                  .target = std::string(message.target()),
                  .headers = {}};
    for (const auto& field : message) {
      head.headers.push_back(
          {.name = std::string(field.name_string()), .value = std::string(field.value())});
    }
    return head;
  }

  // Why the request may be read in two ways; empty: it may not.
  static std::string_view ambiguity(const RequestParser& parser) {
    const auto& message = parser.get();
    const auto hosts = message.count(http::field::host);
    if (hosts > 1 || (hosts == 0 && message.version() >= 11)) {
      return "a request has one Host";
    }
    const auto encodings = message.equal_range(http::field::transfer_encoding);
    if (encodings.first == encodings.second) {
      return {};
    }
    const auto value = encodings.first->value();
    if (std::next(encodings.first) != encodings.second || message.version() < 11 ||
        !equal_without_case({value.data(), value.size()}, "chunked")) {
      return "Transfer-Encoding is not chunked";
    }
    return {};
  }

  static asio::redirect_error_t<asio::use_awaitable_t<>> use(error_code& error) {
    return asio::redirect_error(asio::use_awaitable, error);
  }

  Protocol::socket socket_;
  Service& service_;
  boost::beast::flat_buffer buffer_;
  std::shared_ptr<Exchange> exchange_;  // that is being answered
  std::string sending_;
  size_t sent_ = 0;  // of `sending_`
  std::string unsent_;
  bool writing_ = false;
  bool broken_ = false;   // nothing can be written any more
  bool closing_ = false;  // nothing is written after what is there
  bool served_ = false;   // a request has begun on this connection
  bool idle_ = false;     // waits for a further one
  bool late_ = false;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point progress_;
};

void Exchange::respond(HttpResponse response) {
  begun_ = true;
  ended_ = true;
  if (const auto connection = connection_.lock()) {
    const std::string framing = fmt::format("Content-Length: {}\r\n", response.body.size());
    std::string text = head_text(response, framing, traits_.keep_alive);
    if (!traits_.head_only) {
      text += response.body;
    }
    connection->send(text, false);
    connection->exchange_ended();
  }
}

void Exchange::begin_stream(HttpResponse head) {
  begun_ = true;
  if (!traits_.chunked) {
    traits_.keep_alive = false;  // its end is that of the connection
  }
  if (const auto connection = connection_.lock()) {
    const std::string_view framing = traits_.chunked ? "Transfer-Encoding: chunked\r\n" : "";
    connection->send(head_text(head, framing, traits_.keep_alive), true);
    write(head.body);
  }
}

void Exchange::write(std::string_view text) {
  const auto connection = connection_.lock();
  if (!connection || gone_ || text.empty()) {
    return;
  }
  if (!traits_.chunked) {
    return connection->send(text, true);
  }
  std::array<char, 24> size;
  const auto end = std::to_chars(size.data(), size.data() + size.size(), text.size(), 16).ptr;
  std::string chunk;
  chunk.reserve(text.size() + 24);
  chunk.append(size.data(), end).append("\r\n").append(text).append("\r\n");
  connection->send(chunk, true);
}

void Exchange::end() {
  if (std::exchange(ended_, true)) {
    return;
  }
  if (const auto connection = connection_.lock()) {
    if (traits_.chunked) {
      connection->send("0\r\n\r\n", true);
    }
    connection->exchange_ended();
  }
}

// An address of TCP, in the form that generic sockets take.
Protocol::endpoint tcp_endpoint(const HttpServerOptions& options) {
  error_code error;
  const std::string& host = options.host == "localhost" ? "127.0.0.1" : options.host;
  const asio::ip::address address = asio::ip::make_address(host, error);
  require(!error, "--host {} is not an address", options.host);
  return asio::ip::tcp::endpoint(address, options.port);
}

// A socket that a server left behind when it was killed is removed; anything else stays.
void remove_dead_socket(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    return;
  }
  require(S_ISSOCK(status.st_mode), "--unix {}: there is a file that is no socket", path);
  asio::io_context io;
  asio::local::stream_protocol::socket probe(io);
  error_code error;
  probe.connect(path, error);
  require(error == asio::error::connection_refused, "--unix {}: another server listens there",
          path);
  ::unlink(path.c_str());
}

}  // namespace

struct HttpServer::State {
  State(HttpServerOptions the_options, HttpHandlers the_handlers)
      : options(std::move(the_options)), handlers(std::move(the_handlers)) {}

  void listen() {
    error_code error;
    const bool is_unix = !options.unix_path.empty();
    if (is_unix) {
      require(options.unix_path.size() < sizeof(sockaddr_un::sun_path),
              "--unix {}: the path has {} bytes, more than a socket's can", options.unix_path,
              options.unix_path.size());
      remove_dead_socket(options.unix_path);
    }
    const Protocol::endpoint endpoint =
        is_unix ? Protocol::endpoint(asio::local::stream_protocol::endpoint(options.unix_path))
                : tcp_endpoint(options);
    const auto fail_if = [&] {
      require(!error, "cannot listen on {}: {}",
              is_unix ? options.unix_path : fmt::format("{}:{}", options.host, options.port),
              error.message());
    };
    acceptor.open(endpoint.protocol(), error);
    fail_if();
    if (!is_unix) {
      acceptor.set_option(asio::socket_base::reuse_address(true), error);
      fail_if();
    }
    acceptor.bind(endpoint, error);
    fail_if();
    bound_unix = is_unix;
    acceptor.listen(asio::socket_base::max_listen_connections, error);
    fail_if();
    if (!is_unix) {
      tcp = to_tcp(acceptor.local_endpoint());
    }
  }

  static asio::ip::tcp::endpoint to_tcp(const Protocol::endpoint& endpoint) {
    asio::ip::tcp::endpoint result;
    result.resize(endpoint.size());
    std::memcpy(result.data(), endpoint.data(), endpoint.size());
    return result;
  }

  awaitable<void> accept() {
    while (acceptor.is_open()) {
      error_code error;
      Protocol::socket socket(io);
      co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted || !acceptor.is_open()) {
        break;
      }
      if (error) {  // such as no file descriptors: they come back
        asio::steady_timer pause(io, kAcceptPause);
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      admit(std::move(socket));
    }
  }

  void admit(Protocol::socket socket) {
    error_code ignored;
    if (!bound_unix) {
      socket.set_option(asio::ip::tcp::no_delay(true), ignored);
    }
    socket.non_blocking(true, ignored);
    if (static_cast<int64_t>(service.connections.size()) >= options.max_connections) {
      HttpResponse response = handlers.error(503, "too many connections");
      response.headers.push_back({.name = "Retry-After", .value = "1"});
      const std::string framing = fmt::format("Content-Length: {}\r\n", response.body.size());
      socket.write_some(asio::buffer(head_text(response, framing, false) + response.body), ignored);
      return;
    }
    const auto connection = std::make_shared<Connection>(std::move(socket), service);
    asio::co_spawn(io, Connection::serve(connection), asio::detached);
  }

  void tick() {
    timer.expires_after(kHttpTick);
    timer.async_wait([this](error_code error) {
      if (error) {
        return;
      }
      if (handlers.tick) {
        handlers.tick();
      }
      look_at_clocks();
      tick();
    });
  }

  // A deadline may be late by kLook: a timer for each connection would cost more.
  void look_at_clocks() {
    constexpr std::chrono::milliseconds kLook{500};
    const Clock::time_point now = Clock::now();
    if (now - looked < kLook) {
      return;
    }
    looked = now;
    for_each([now](Connection& connection) { connection.look_at_clock(now); });
  }

  // Connections may end meanwhile.
  template <class Visit>
  void for_each(Visit visit) {
    std::vector<std::shared_ptr<Connection>> all;
    all.reserve(service.connections.size());
    for (Connection* connection : service.connections) {
      if (auto shared = connection->weak_from_this().lock()) {
        all.push_back(std::move(shared));
      }
    }
    for (const auto& connection : all) {
      visit(*connection);
    }
  }

  HttpServerOptions options;
  HttpHandlers handlers;
  Service service{.options = options, .handlers = handlers};
  asio::io_context io{1};
  asio::basic_socket_acceptor<Protocol> acceptor{io};
  asio::steady_timer timer{io};
  Clock::time_point looked = {};
  asio::ip::tcp::endpoint tcp;
  bool bound_unix = false;
};

HttpServer::HttpServer(HttpServerOptions options, HttpHandlers handlers)
    : state_(std::make_unique<State>(std::move(options), std::move(handlers))) {
  state_->listen();
}

HttpServer::~HttpServer() {
  if (state_->bound_unix) {
    ::unlink(state_->options.unix_path.c_str());
  }
}

std::string HttpServer::address() const {
  if (state_->bound_unix) {
    return "unix:" + state_->options.unix_path;
  }
  const asio::ip::address address = state_->tcp.address();
  return address.is_v6() ? fmt::format("http://[{}]:{}", address.to_string(), port())
                         : fmt::format("http://{}:{}", address.to_string(), port());
}

uint16_t HttpServer::port() const { return state_->bound_unix ? 0 : state_->tcp.port(); }

bool HttpServer::on_loopback() const {
  return state_->bound_unix || state_->tcp.address().is_loopback();
}

void HttpServer::run() {
  asio::co_spawn(state_->io, state_->accept(), asio::detached);
  state_->tick();
  state_->io.run();
}

void HttpServer::post(std::function<void()> task) { asio::post(state_->io, std::move(task)); }

void HttpServer::stop_accepting() {
  error_code ignored;
  state_->acceptor.close(ignored);
  state_->service.draining = true;
  state_->for_each([](Connection& connection) { connection.close_if_idle(); });
}

void HttpServer::stop() { state_->io.stop(); }

int64_t HttpServer::connections() const {
  return static_cast<int64_t>(state_->service.connections.size());
}

int64_t HttpServer::cut_off() const { return state_->service.cut_off; }

bool HttpServer::sending() const {
  for (const Connection* connection : state_->service.connections) {
    if (connection->writing()) {
      return true;
    }
  }
  return false;
}

}  // namespace sparsellm
