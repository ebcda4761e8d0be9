// The input is what a client of sparsellm-serve sends on one connection
// (tools/serve/http_server.h), with marks between its parts: a byte 0xFF and a letter that says
// what happens there besides that the server gets to see what was sent so far.
//   a  a request to /later that waits is answered
//   b  ... with a stream that begins, or goes on
//   e  ... whose stream ends
//   h  the client ends sending
//   g  it closes the connection
//   d  the server does not accept requests any more
//   r  it refuses those that are not read
// All that the server answers is HTTP, every request that came to be handled is answered to its
// end, and the connection comes to its end with the client.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tools/serve/http_server.h"

namespace sparsellm::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kMark = '\xFF';
constexpr std::string_view kThrown = "on purpose";
// Turns of the server's loop after each part.
constexpr int kTurns = 4;
constexpr std::chrono::seconds kPatience{5};

class Answers {
 public:
  explicit Answers(std::string_view text) : rest_(text) {}

  // Takes a final answer; false at the end. `of_head`: of HEAD, or unknown, of the last one.
  bool take(std::optional<bool> of_head) {
    for (;;) {
      if (rest_.empty()) {
        return false;
      }
      const int status = take_head();
      expect(status == 100 || status >= 200, "a status that this server has");
      if (status == 100) {
        continue;
      }
      if (status == 204 || of_head.value_or(false) || (!of_head && rest_.empty())) {
        return true;
      }
      if (chunked_) {
        take_chunks();
      } else {
        take_bytes(length_ ? *length_ : rest_.size());
      }
      return true;
    }
  }

 private:
  std::string_view take_line() {
    const size_t end = rest_.find("\r\n");
    expect(end != rest_.npos, "a line with an end");
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 2);
    return line;
  }
  void take_bytes(size_t bytes) {
    expect(bytes <= rest_.size(), "all bytes of a body");
    rest_.remove_prefix(bytes);
  }
  static size_t number(std::string_view text, int base) {
    size_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    expect(error == std::errc() && end == text.data() + text.size(), "a number");
    return value;
  }
  int take_head() {
    const std::string_view start = take_line();
    expect(start.size() > 13 && start.starts_with("HTTP/1.1 ") && start[12] == ' ',
           "a status line");
    length_.reset();
    chunked_ = false;
    for (std::string_view line = take_line(); !line.empty(); line = take_line()) {
      const size_t colon = line.find(": ");
      expect(colon != line.npos && colon > 0, "a header");
      const std::string_view value = line.substr(colon + 2);
      if (line.starts_with("Content-Length: ")) {
        expect(!length_ && !chunked_, "one length");
        length_ = number(value, 10);
      } else if (line.starts_with("Transfer-Encoding: ")) {
        expect(!length_ && !chunked_ && value == "chunked", "one length");
        chunked_ = true;
      }
    }
    return static_cast<int>(number(start.substr(9, 3), 10));
  }
  void take_chunks() {
    for (;;) {
      const size_t size = number(take_line(), 16);
      take_bytes(size);
      expect(take_line().empty(), "the end of a chunk");
      if (size == 0) {
        return;
      }
    }
  }

  std::string_view rest_;
  std::optional<size_t> length_;
  bool chunked_ = false;
};

class Session {
 public:
  explicit Session(std::string_view input) : input_(input) {}
  ~Session() { close(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void run() {
    std::array<int, 2> pair{};
    expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) == 0, "sockets");
    client_ = pair[0];
    server_.post([this, socket = pair[1]] {
      server_.adopt(socket);
      turn();
    });
    server_.run();
    if (!failure_.empty()) {
      expect(false, failure_.c_str());
    }
    check_answers();
  }

 private:
  static HttpServerOptions options() { return {.port = 0, .max_body = 2000, .max_bodies = 3000}; }

  HttpHandlers handlers() {
    return {.check = [this](const HttpHead& head) -> std::optional<HttpResponse> {
              of_head_.push_back(head.method == "HEAD");
              if (head.path() == "/no") {
                return HttpResponse{.status = 404, .body = "no"};
              }
              if (head.path() == "/thrown") {
                throw std::runtime_error(std::string(kThrown));
              }
              return {};
            },
            .handle = [this](const std::shared_ptr<HttpExchange>& exchange) { handle(exchange); },
            .error =
                [](int status, std::string_view why) {
                  return HttpResponse{.status = status, .body = std::string(why)};
                },
            .tick = {},
            .failed =
                [this](std::string_view why) {
                  if (why != kThrown) {
                    failure_ = why;
                  }
                }};
  }

  void handle(const std::shared_ptr<HttpExchange>& exchange) {
    ++handled_;
    const std::string_view path = exchange->head().path();
    if (path == "/later") {
      exchange->on_gone = [this] { ++gone_; };
      waiting_.push_back(exchange);
    } else if (path == "/stream") {
      const std::string body = exchange->body();
      exchange->begin_stream({.body = "first"});
      exchange->write(body);
      exchange->end();
    } else if (path == "/throws") {
      throw std::runtime_error(std::string(kThrown));
    } else {
      exchange->respond({.body = exchange->body()});
    }
  }

  // On the server's thread, again and again, so that the server does all that it can between.
  void turn() {
    try {
      receive();
      if (--turns_ <= 0) {
        turns_ = kTurns;
        next();
      }
    } catch (const std::exception& error) {
      failure_ = error.what();
    }
    if (Clock::now() > end_) {
      failure_ = "the connection's end";
    }
    if (!failure_.empty() || (input_.empty() && received_all_ && server_.connections() == 0)) {
      waiting_.clear();
      return server_.stop();
    }
    server_.post([this] { turn(); });
  }

  void next() {
    if (!input_.empty() && input_.front() == kMark) {
      const char what = input_.size() > 1 ? input_[1] : ' ';
      input_.remove_prefix(std::min<size_t>(2, input_.size()));
      act(what);
    } else if (!input_.empty()) {
      const std::string_view part = input_.substr(0, input_.find(kMark));
      input_.remove_prefix(part.size());
      send(part);
    } else {
      end_sending();
      while (!waiting_.empty()) {
        act('e');
      }
    }
  }

  void act(char what) {
    switch (what) {
      case 'h':
        return end_sending();
      case 'g':
        return close();
      case 'd':
        return server_.stop_accepting();
      case 'r':
        return server_.refuse_unread(503, "no more");
      default:
        break;
    }
    if (waiting_.empty()) {
      return;
    }
    const std::shared_ptr<HttpExchange> exchange = waiting_.front();
    if (what == 'a' || what == 'e') {
      waiting_.erase(waiting_.begin());
      exchange->write("last");
      exchange->end();
      exchange->respond({.body = "later"});
    } else if (what == 'b') {
      exchange->begin_stream({});
      exchange->write("part");
    }
  }

  void send(std::string_view part) {
    if (client_ >= 0) {
      // What does not fit is lost, since nobody waits here.
      ::send(client_, part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
  void end_sending() {
    if (client_ >= 0) {
      ::shutdown(client_, SHUT_WR);
    }
  }
  void close() {
    if (client_ >= 0) {
      ::close(std::exchange(client_, -1));
      left_ = true;
    }
    received_all_ = true;
  }

  void receive() {
    std::array<char, 4096> block;
    while (!received_all_) {
      const ssize_t bytes = ::recv(client_, block.data(), block.size(), MSG_DONTWAIT);
      if (bytes < 0 && errno == EAGAIN) {
        return;
      }
      received_all_ = bytes <= 0;
      received_.append(block.data(), static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
    }
  }

  void check_answers() const {
    if (left_) {
      return;
    }
    Answers answers(received_);
    size_t count = 0;
    while (answers.take(count < of_head_.size() ? std::optional(of_head_[count]) : std::nullopt)) {
      ++count;
    }
    expect(count <= of_head_.size() + 1, "an answer for each request, and one for what is none");
    expect(count >= handled_, "an answer for each request");
    expect(gone_ == 0, "clients that stay are not taken for gone");
  }

  std::string_view input_;
  int client_ = -1;
  bool left_ = false;
  bool received_all_ = false;
  int turns_ = kTurns;
  Clock::time_point end_ = Clock::now() + kPatience;
  std::string received_;
  std::string failure_;
  std::vector<bool> of_head_;  // of requests with a header
  size_t handled_ = 0;
  size_t gone_ = 0;
  std::vector<std::shared_ptr<HttpExchange>> waiting_;
  HttpServer server_{options(), handlers()};
};

}  // namespace

void fuzz_one(std::string_view input) { Session(input).run(); }

}  // namespace sparsellm::fuzz
