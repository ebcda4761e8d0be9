#include "tests/tools/serve/plain_http.h"

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace sparsellm::testing {
namespace {

constexpr std::chrono::seconds kPatience{20};
constexpr std::chrono::milliseconds kPause{20};

int connect_to(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.string().size() >= sizeof address.sun_path) {
    throw std::runtime_error("the path of the socket is too long");
  }
  std::strcpy(address.sun_path, path.c_str());
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    const int file = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      return file;
    }
    ::close(file);
    std::this_thread::sleep_for(kPause);
  }
  throw std::runtime_error("no server listens at " + path.string());
}

}  // namespace

PlainConnection::PlainConnection(const std::filesystem::path& path) : socket_(connect_to(path)) {
  const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

PlainConnection::~PlainConnection() { ::close(socket_); }

void PlainConnection::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ASSERT_GT(count, 0) << "the server does not take " << bytes.size() << " bytes";
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

bool PlainConnection::receive_more() {
  std::array<char, 4096> block;
  const ssize_t count = ::recv(socket_, block.data(), block.size(), 0);
  received_.append(block.data(), static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return count > 0;
}

bool PlainConnection::wait_for_reply() { return !received_.empty() || receive_more(); }

PlainConnection::Reply PlainConnection::receive() {
  const auto until = [this](std::string_view end, size_t from) {
    size_t at = received_.find(end, from);
    while (at == std::string::npos && receive_more()) {
      at = received_.find(end, from);
    }
    return at;
  };
  const size_t head_end = until("\r\n\r\n", 0);
  if (head_end == std::string::npos) {
    return {};
  }
  Reply reply{.status = std::atoi(received_.c_str() + 9),
              .head = received_.substr(0, head_end + 2),
              .body = {}};
  received_.erase(0, head_end + 4);
  constexpr std::string_view kLength = "Content-Length: ";
  if (const size_t at = reply.head.find(kLength); at != std::string::npos) {
    const size_t bytes = std::strtoul(reply.head.c_str() + at + kLength.size(), nullptr, 10);
    while (received_.size() < bytes && receive_more()) {
    }
    reply.body = received_.substr(0, bytes);
    received_.erase(0, reply.body.size());
    return reply;
  }
  for (;;) {
    const size_t line = until("\r\n", 0);
    if (line == std::string::npos) {
      return {};
    }
    const size_t bytes = std::strtoul(received_.c_str(), nullptr, 16);
    received_.erase(0, line + 2);
    while (received_.size() < bytes + 2) {
      if (!receive_more()) {
        return {};
      }
    }
    reply.body += received_.substr(0, bytes);
    received_.erase(0, bytes + 2);
    if (bytes == 0) {
      return reply;
    }
  }
}

PlainConnection::Reply PlainConnection::get(std::string_view path) {
  send(fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path));
  return receive();
}

PlainConnection::Reply PlainConnection::post(std::string_view path, std::string_view json) {
  send(post_text(path, json));
  return receive();
}

std::string post_text(std::string_view path, std::string_view json) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      path, json.size(), json);
}

}  // namespace sparsellm::testing
