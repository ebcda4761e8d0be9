#include "tools/serve/http_connection.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tools/serve/http_connection_exchange.h"
#include "tools/serve/http_connection_handlers.h"
#include "tools/serve/http_connection_request.h"

namespace sparsellm {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Socket = HttpConnections::Socket;

// What a client may send while its request is answered; more is left in the socket.
constexpr size_t kMaxAhead = 16 << 10;
constexpr size_t kReadBytes = 1 << 10;
constexpr size_t kReadBodyBytes = 16 << 10;
// What is refused is read so far, that the client sees the answer instead of a reset connection.
constexpr int64_t kMaxRefused = int64_t{1} << 20;
constexpr std::chrono::seconds kRefusedTime{2};
// So many clients at a time are told that there are too many connections, and heard like that.
constexpr int64_t kMaxTurnedAway = 64;
// A deadline may be late by this: a timer for each connection would cost more.
constexpr std::chrono::milliseconds kLook{500};

class Connection;

// What connections share.
struct Service {
  const HttpServerOptions& options;
  SafeHandlers handlers;
  std::shared_ptr<BodyMemory> bodies;
  std::unordered_set<Connection*> connections = {};
  int64_t turned_away = 0;  // of `connections`
  int64_t cut_off = 0;
  bool draining = false;
  std::optional<HttpRefusal> refusal = {};  // of all that is not read
};

// A client. Its coroutine reads; answers are written when there is something to write, whatever the
// coroutine waits for. While a request is answered a read is pending, which notices that the client
// leaves.
class Connection final : public HttpOutput, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Socket socket, Service& service)
      : socket_(std::move(socket)), pause_(socket_.get_executor()), service_(service) {
    service_.connections.insert(this);
  }
  ~Connection() override {
    service_.connections.erase(this);
    service_.turned_away -= turned_away_ ? 1 : 0;
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Until one of both closes the connection; then ended(), whose caller holds it so long.
  awaitable<void> serve() {
    // Not awaited in the loop's condition: GCC 12 lays out such a coroutine's frame wrongly where
    // it has no variable.
    bool goes_on = true;
    while (goes_on) {
      goes_on = co_await serve_request();
    }
  }
  awaitable<void> turn_away() {
    HttpResponse response = service_.handlers.error(503, "too many connections");
    co_await refuse(std::move(response), false);
  }
  void ended(const std::exception_ptr& failure) {
    if (failure) {  // such as want of memory
      service_.handlers.report(failure);
    }
    abandon();
  }

  void count_as_turned_away() {
    turned_away_ = true;
    ++service_.turned_away;
  }

  // Ends what is late at this time.
  void look_at_clock(Clock::time_point now) {
    if (writing_ && now - progress_ > service_.options.stalled) {
      cut_off();
    } else if (now > deadline_) {
      late_ = true;
      wake();
    }
  }

  void drain() {
    if (exchange_) {
      exchange_->close_after();
    } else if (phase_ == Phase::idle) {
      wake();
    }
  }

  void refuse_unread() {
    if (phase_ == Phase::idle || phase_ == Phase::reading) {
      wake();
    }
  }

  bool sending() const {
    return writing_ || phase_ == Phase::refusing ||
           (phase_ == Phase::reading && service_.refusal);  // about to be answered
  }

  void send_head(std::string_view text) override {
    if (std::exchange(start_sent_, false)) {
      text.remove_prefix(kAnswerStart.size());
    }
    send(text);
  }
  void send_part(std::string_view text) override {
    const int64_t most = service_.options.max_unsent;
    if (unsent_bytes() <= most) {
      large_part_ = 0;
    }
    if (!broken_ && unsent_bytes() - large_part_ > most) {
      return cut_off();
    }
    if (const auto bytes = static_cast<int64_t>(text.size()); large_part_ == 0 && bytes > most) {
      large_part_ = bytes;
    }
    send(text);
  }
  void send(std::string_view text) override {
    if (broken_) {
      return;
    }
    if (!writing_) {
      text.remove_prefix(sent_at_once(text));
    }
    unsent_ += text;
    if (!writing_ && !unsent_.empty()) {
      write_more();
    }
  }

  void exchange_ended() override {
    if (!writing_) {
      wake();
    }
  }

 private:
  enum class Phase {
    idle,       // no byte of a request is there
    reading,    // of a request that is not complete
    answering,  // one that is
    refusing,   // one that is not read, before the end of the connection
    closing,    // after the last answer
  };

  // False: no further request on this connection.
  awaitable<bool> serve_request() {
    if (buffer_.size() == 0) {
      const bool begun = co_await wait_for_request();
      if (!begun) {
        co_return false;
      }
    }
    phase_ = Phase::reading;
    served_ = true;
    set_deadline(service_.options.header);
    IncomingRequest request(service_.options.max_body, BodyShare(service_.bodies));
    std::optional<HttpRefusal> refusal = co_await read_until(request, &IncomingRequest::has_header);
    if (refusal) {
      co_return co_await refuse(*std::move(refusal), request.of_head());
    }
    HttpHead head = request.head();
    std::optional<HttpResponse> answer = check(request, head);
    if (answer && !request.is_whole()) {
      co_return co_await refuse(*std::move(answer), request.of_head());
    }
    if (!request.is_whole()) {
      if (expects_continue(head)) {
        send("HTTP/1.1 100 Continue\r\n\r\n");
      }
      set_deadline(service_.options.body);
      refusal = co_await read_until(request, &IncomingRequest::is_whole);
      if (refusal) {
        co_return co_await refuse(*std::move(refusal), request.of_head());
      }
    }
    const auto exchange = begin_exchange(request, std::move(head));
    if (answer) {
      exchange->respond(*std::move(answer));
    } else {
      handle(exchange);
    }
    co_return co_await answered(*exchange);
  }

  awaitable<bool> wait_for_request() {
    phase_ = Phase::idle;
    set_deadline(served_ ? service_.options.idle : service_.options.header);
    error_code error;
    if (!service_.draining && !service_.refusal) {
      co_await read_some(kReadBytes, error);
    }
    co_return buffer_.size() > 0;
  }

  // Reads until `reached`; else why not.
  awaitable<std::optional<HttpRefusal>> read_until(IncomingRequest& request,
                                                   bool (IncomingRequest::*reached)() const) {
    for (;;) {
      std::optional<HttpRefusal> refusal = request.take(buffer_);
      if (refusal || (request.*reached)()) {
        co_return refusal;
      }
      if (service_.refusal) {
        co_return service_.refusal;
      }
      if (late_) {
        co_return HttpRefusal{.status = 408, .why = "the request was not sent in time"};
      }
      error_code error;
      co_await read_some(request.has_header() ? kReadBodyBytes : kReadBytes, error);
      if (error && error != asio::error::operation_aborted) {
        co_return HttpRefusal{};
      }
    }
  }

  // An answer without a look at the body, if there is one.
  std::optional<HttpResponse> check(IncomingRequest& request, const HttpHead& head) {
    if (const std::string_view why = ambiguity(head); !why.empty()) {
      reads_on_ = false;
      return service_.handlers.error(400, why);
    }
    if (std::optional<HttpResponse> refusal = service_.handlers.check(head)) {
      return refusal;
    }
    const std::string_view expect = head.header("Expect");
    if (head.version >= 11 && !expect.empty() && !expects_continue(head)) {
      return service_.handlers.error(417, "Expect is not 100-continue");
    }
    if (!request.reserve()) {
      return service_.handlers.error(503, "too many bodies wait");
    }
    return {};
  }

  static bool expects_continue(const HttpHead& head) {
    return head.version >= 11 && equal_without_case(head.header("Expect"), "100-continue");
  }

  std::shared_ptr<ConnectionExchange> begin_exchange(IncomingRequest& request, HttpHead head) {
    phase_ = Phase::answering;
    deadline_ = Clock::time_point::max();
    buffer_.shrink_to_fit();  // a body was read through it
    ConnectionExchange::Request whole = request.take_whole(std::move(head));
    whole.keep_alive = whole.keep_alive && reads_on_ && !service_.draining;
    exchange_ = std::make_shared<ConnectionExchange>(weak_from_this(), std::move(whole));
    return exchange_;
  }

  void handle(const std::shared_ptr<ConnectionExchange>& exchange) {
    if (service_.handlers.handle(exchange)) {
      return;
    }
    exchange->close_after();
    if (!exchange->answered()) {
      exchange->respond(service_.handlers.failure());
    } else if (!exchange->ended()) {
      abandon();
    }
  }

  // Waits for the end of an answer, or of the client.
  awaitable<bool> answered(const ConnectionExchange& exchange) {
    while (!broken_ && (!exchange.ended() || writing_)) {
      if (!read_ended_ && buffer_.size() < kMaxAhead) {
        error_code error;
        co_await read_some(kReadBytes, error);
        if (error && error != asio::error::operation_aborted && !read_ended_) {
          lose();
        }
      } else {
        look_for_client(exchange);
        if (!broken_) {
          co_await pause();
        }
      }
    }
    exchange_.reset();
    if (!broken_ && !exchange.keeps_alive()) {
      co_await finish(Phase::closing);
    }
    co_return !broken_ && exchange.keeps_alive();
  }

  // Where no read is pending: whether the client has left, by what its socket knows of it.
  void look_for_client(const ConnectionExchange& exchange) {
    pollfd socket{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
    ::poll(&socket, 1, 0);
    if ((socket.revents & (POLLERR | POLLHUP)) != 0) {
      lose();
    } else if ((socket.revents & POLLRDHUP) != 0 && !exchange.answered() && !start_sent_) {
      start_sent_ = true;
      send(kAnswerStart);
    }
  }

  awaitable<bool> refuse(HttpRefusal refusal, bool head_only) {
    if (refusal.status == 0) {
      co_return false;
    }
    co_return co_await refuse(service_.handlers.error(refusal.status, refusal.why), head_only);
  }

  // Answers and closes, in a way that the client can read the answer.
  awaitable<bool> refuse(HttpResponse response, bool head_only) {
    send_head(answer_text(response, kConnectionClose, head_only));
    co_await finish(Phase::refusing);
    co_return false;
  }

  // Sends what is left and drops what comes in, up to a limit.
  awaitable<void> finish(Phase phase) {
    phase_ = phase;
    set_deadline(kRefusedTime);
    if (!writing_) {
      shut_down();
    }
    int64_t dropped = static_cast<int64_t>(buffer_.size());
    while (!broken_ && !late_ && (writing_ || (!read_ended_ && dropped < kMaxRefused))) {
      if (read_ended_ || dropped >= kMaxRefused) {
        co_await pause();
        continue;
      }
      buffer_.clear();
      error_code error;
      co_await read_some(kReadBodyBytes, error);
      dropped += static_cast<int64_t>(buffer_.size());
      if (error && error != asio::error::operation_aborted && !read_ended_) {
        lose();
      }
    }
  }

  void shut_down() {
    error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }

  void set_deadline(std::chrono::milliseconds time) {
    deadline_ = Clock::now() + time;
    late_ = false;
  }

  awaitable<void> read_some(size_t most, error_code& error) {
    if (read_ended_) {  // which Asio tells once: the next read would wait
      error = asio::error::eof;
      co_return;
    }
    const size_t bytes = co_await socket_.async_read_some(buffer_.prepare(most), use(error));
    buffer_.commit(bytes);
    read_ended_ = read_ended_ || error == asio::error::eof;
  }

  awaitable<void> pause() {
    error_code ignored;
    pause_.expires_after(kHttpTick);
    co_await pause_.async_wait(use(ignored));
  }

  // The coroutine looks again at what it waits for.
  void wake() {
    error_code ignored;
    socket_.cancel(ignored);
    pause_.cancel();
  }

  // What the socket takes without waiting: all of it, where a client reads. An error shows in the
  // write that follows.
  size_t sent_at_once(std::string_view text) {
    error_code error;
    return socket_.write_some(asio::buffer(text), error);
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
    if (error == asio::error::operation_aborted && socket_.is_open()) {
      return write_rest();  // wake() meant the read
    }
    if (error) {
      writing_ = false;
      lose();
      return wake();
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
    sent_ = 0;
    sending_.clear();
    if (sending_.capacity() > kMaxAhead) {
      sending_ = {};
    }
    const bool ends = phase_ == Phase::refusing || phase_ == Phase::closing;
    if (ends) {
      shut_down();
    }
    if (ends || (exchange_ && exchange_->ended())) {
      wake();
    }
  }

  int64_t unsent_bytes() const {
    return static_cast<int64_t>(unsent_.size() + sending_.size() - sent_);
  }

  void cut_off() {
    ++service_.cut_off;
    abandon();
  }

  // The client is not heard any more, nor written to.
  void abandon() {
    lose();
    error_code ignored;
    socket_.close(ignored);
    pause_.cancel();
  }

  void lose() {
    broken_ = true;
    const auto exchange = exchange_;
    if (!exchange) {
      return;
    }
    try {
      exchange->leave();
    } catch (...) {
      service_.handlers.report(std::current_exception());
    }
  }

  static asio::redirect_error_t<asio::use_awaitable_t<>> use(error_code& error) {
    return asio::redirect_error(asio::use_awaitable, error);
  }

  Socket socket_;
  asio::steady_timer pause_;
  Service& service_;
  boost::beast::flat_buffer buffer_;              // read and not parsed
  std::shared_ptr<ConnectionExchange> exchange_;  // that is being answered
  std::string sending_;
  size_t sent_ = 0;  // of `sending_`
  std::string unsent_;
  int64_t large_part_ = 0;  // larger than max_unsent, and not sent to its end
  Phase phase_ = Phase::idle;
  bool writing_ = false;
  bool broken_ = false;      // nothing can be written any more
  bool served_ = false;      // a request has begun on this connection
  bool read_ended_ = false;  // the client sends no more
  bool reads_on_ = true;     // false: nobody knows where the next request begins
  bool start_sent_ = false;  // kAnswerStart, ahead of its answer
  bool late_ = false;
  bool turned_away_ = false;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point progress_;
};

}  // namespace

struct HttpConnections::State {
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

  Service service;
  Clock::time_point looked = {};
};

HttpConnections::HttpConnections(const HttpServerOptions& options, const HttpHandlers& handlers)
    : state_(std::make_unique<State>(
          State{.service = {.options = options,
                            .handlers = SafeHandlers(handlers),
                            .bodies = std::make_shared<BodyMemory>(options.max_bodies)}})) {}

HttpConnections::~HttpConnections() = default;

void HttpConnections::add(Socket socket) {
  Service& service = state_->service;
  const auto end_of = [](std::shared_ptr<Connection> connection) {
    return [connection = std::move(connection)](const std::exception_ptr& failure) {
      connection->ended(failure);
    };
  };
  const auto executor = socket.get_executor();
  if (size() < service.options.max_connections) {
    const auto connection = std::make_shared<Connection>(std::move(socket), service);
    asio::co_spawn(executor, connection->serve(), end_of(connection));
  } else if (service.turned_away < kMaxTurnedAway) {
    const auto connection = std::make_shared<Connection>(std::move(socket), service);
    connection->count_as_turned_away();
    asio::co_spawn(executor, connection->turn_away(), end_of(connection));
  }
}

void HttpConnections::tick() {
  const Clock::time_point now = Clock::now();
  if (now - state_->looked >= kLook) {
    state_->looked = now;
    state_->for_each([now](Connection& connection) { connection.look_at_clock(now); });
  }
}

void HttpConnections::drain() {
  state_->service.draining = true;
  state_->for_each([](Connection& connection) { connection.drain(); });
}

void HttpConnections::refuse_unread(int status, std::string_view why) {
  state_->service.refusal = HttpRefusal{.status = status, .why = std::string(why)};
  state_->for_each([](Connection& connection) { connection.refuse_unread(); });
}

int64_t HttpConnections::size() const {
  return static_cast<int64_t>(state_->service.connections.size()) - state_->service.turned_away;
}

int64_t HttpConnections::cut_off() const { return state_->service.cut_off; }

bool HttpConnections::sending() const {
  const auto& connections = state_->service.connections;
  return std::any_of(connections.begin(), connections.end(),
                     [](const Connection* connection) { return connection->sending(); });
}

void HttpConnections::report_failure() const {
  state_->service.handlers.report(std::current_exception());
}

}  // namespace sparsellm
