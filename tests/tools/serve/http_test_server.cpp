#include "tests/tools/serve/http_test_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <utility>

namespace sparsellm::testing {
namespace {

constexpr std::chrono::seconds kPatience{20};

HttpServerOptions at_free_port(HttpServerOptions options) {
  options.port = 0;
  return options;
}

int connected(uint16_t port, int receive_buffer) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) {
    ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(socket);
    throw std::runtime_error("the server does not take a connection");
  }
  return socket;
}

int adopted(HttpTestServer& server) {
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    throw std::runtime_error("no pair of sockets");
  }
  server.call([&pair](HttpServer& called) { called.adopt(pair[1]); });
  return pair[0];
}

}  // namespace

HttpTestServer::HttpTestServer(HttpServerOptions options) {
  HttpHandlers handlers;
  handlers.check = [](const HttpHead& head) -> std::optional<HttpResponse> {
    if (head.path() == "/throws-check") {
      throw std::runtime_error("of check");
    }
    if (head.path() == "/refused") {
      return HttpResponse{.status = 403, .body = "refused"};
    }
    return {};
  };
  handlers.handle = [this](const std::shared_ptr<HttpExchange>& exchange) { handle(exchange); };
  handlers.error = [](int status, std::string_view why) {
    return HttpResponse{.status = status, .content_type = "text/plain", .body = std::string(why)};
  };
  handlers.failed = [this](std::string_view why) {
    const std::lock_guard lock(mutex_);
    failures_.emplace_back(why);
  };
  server_ = std::make_unique<HttpServer>(at_free_port(std::move(options)), std::move(handlers));
  thread_ = std::thread([this] { server_->run(); });
}

HttpTestServer::~HttpTestServer() {
  server_->post([this] { server_->stop(); });
  thread_.join();
}

void HttpTestServer::call(const std::function<void(HttpServer&)>& task) {
  std::promise<void> done;
  server_->post([&] {
    task(*server_);
    done.set_value();
  });
  done.get_future().wait();
}

void HttpTestServer::settle() {
  constexpr int kTurns = 4;  // of its loop
  for (int i = 0; i < kTurns; ++i) {
    call([](HttpServer&) {});
  }
}

int64_t HttpTestServer::connections() {
  int64_t result = 0;
  call([&result](HttpServer& server) { result = server.connections(); });
  return result;
}

int64_t HttpTestServer::cut_off() {
  int64_t result = 0;
  call([&result](HttpServer& server) { result = server.cut_off(); });
  return result;
}

std::shared_ptr<HttpExchange> HttpTestServer::waiting(size_t index) {
  std::shared_ptr<HttpExchange> found;
  eventually([&] {
    const std::lock_guard lock(mutex_);
    if (index < waiting_.size()) {
      found = waiting_[index];
    }
    return found != nullptr;
  });
  if (!found) {
    throw std::runtime_error("no request came to be handled");
  }
  return found;
}

void HttpTestServer::forget_waiting() {
  const std::lock_guard lock(mutex_);
  waiting_.clear();
}

int64_t HttpTestServer::gone() {
  const std::lock_guard lock(mutex_);
  return gone_;
}

int64_t HttpTestServer::handled() {
  const std::lock_guard lock(mutex_);
  return handled_;
}

std::vector<std::string> HttpTestServer::failures() {
  const std::lock_guard lock(mutex_);
  return failures_;
}

void HttpTestServer::handle(const std::shared_ptr<HttpExchange>& exchange) {
  {
    const std::lock_guard lock(mutex_);
    ++handled_;
  }
  const std::string_view path = exchange->head().path();
  if (path == "/echo") {
    exchange->respond({.content_type = "text/plain", .body = exchange->body()});
  } else if (path == "/stream") {
    const std::string body = exchange->body();
    exchange->begin_stream({.content_type = "text/plain"});
    exchange->write(body);
    exchange->end();
  } else if (path == "/empty") {
    exchange->respond({.status = 204, .content_type = ""});
  } else if (path == "/later") {
    exchange->on_gone = [this] {
      const std::lock_guard lock(mutex_);
      ++gone_;
    };
    const std::lock_guard lock(mutex_);
    waiting_.push_back(exchange);
  } else if (path == "/throws") {
    throw std::runtime_error("of handle");
  } else if (path == "/throws-late") {
    exchange->begin_stream({.body = "a part"});
    throw 7;
  } else {
    exchange->respond({.status = 404});
  }
}

HttpTestClient::HttpTestClient(HttpTestServer& server, Transport transport, int receive_buffer)
    : HttpTestClient(Socket{transport == Transport::tcp ? connected(server.port(), receive_buffer)
                                                        : adopted(server)}) {}

HttpTestClient::HttpTestClient(uint16_t port) : HttpTestClient(Socket{connected(port, 0)}) {}

HttpTestClient::HttpTestClient(Socket socket) : socket_(socket.number) {
  const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

HttpTestClient::~HttpTestClient() { close(); }

bool HttpTestClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

void HttpTestClient::end_sending() { ::shutdown(socket_, SHUT_WR); }

void HttpTestClient::close() {
  if (socket_ >= 0) {
    ::close(std::exchange(socket_, -1));
  }
}

void HttpTestClient::reset() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

bool HttpTestClient::receive_more() {
  std::array<char, 65536> block;
  const ssize_t count = ::recv(socket_, block.data(), block.size(), 0);
  if (count > 0) {
    received_.append(block.data(), static_cast<size_t>(count));
  }
  return count > 0;
}

bool HttpTestClient::receive_until(size_t bytes) {
  while (received_.size() < bytes) {
    if (!receive_more()) {
      return false;
    }
  }
  return true;
}

std::string HttpTestClient::take_line() {
  size_t end = received_.find("\r\n");
  while (end == std::string::npos) {
    if (!receive_more()) {
      return {};
    }
    end = received_.find("\r\n");
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 2);
  return line;
}

HttpTestClient::Reply HttpTestClient::receive(Method method) {
  const std::string start = take_line();
  if (!start.starts_with("HTTP/1.1 ")) {
    return {};
  }
  Reply reply{.status = std::atoi(start.c_str() + 9)};
  for (std::string line = take_line(); !line.empty(); line = take_line()) {
    const size_t colon = line.find(": ");
    reply.headers[line.substr(0, colon)] = line.substr(colon + 2);
  }
  if (method == Method::head || reply.status < 200 || reply.status == 204) {
    return reply;
  }
  if (reply.headers.contains("Content-Length")) {
    const size_t bytes = std::strtoul(reply.headers["Content-Length"].c_str(), nullptr, 10);
    if (!receive_until(bytes)) {
      return {};
    }
    reply.body = received_.substr(0, bytes);
    received_.erase(0, bytes);
    return reply;
  }
  if (!reply.headers.contains("Transfer-Encoding")) {
    reply.body = receive_rest();
    return reply;
  }
  for (;;) {
    const std::string size = take_line();
    const size_t bytes = std::strtoul(size.c_str(), nullptr, 16);
    if (size.empty() || !receive_until(bytes + 2)) {
      return {};
    }
    reply.body += received_.substr(0, bytes);
    received_.erase(0, bytes + 2);
    if (bytes == 0) {
      return reply;
    }
  }
}

std::string HttpTestClient::receive_rest() {
  while (receive_more()) {
  }
  return std::exchange(received_, {});
}

bool HttpTestClient::ended() {
  if (!received_.empty()) {
    return false;
  }
  char byte = 0;
  const ssize_t count = ::recv(socket_, &byte, 1, MSG_PEEK);
  return count == 0 || (count < 0 && errno == ECONNRESET);
}

bool HttpTestClient::has_bytes(std::chrono::milliseconds time) {
  pollfd socket{.fd = socket_, .events = POLLIN, .revents = 0};
  return !received_.empty() || ::poll(&socket, 1, static_cast<int>(time.count())) == 1;
}

std::string get_text(std::string_view path) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
}

std::string post_of(std::string_view path, std::string_view body) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", path,
                     body.size(), body);
}

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace sparsellm::testing
