#include "tests/tools/bench/canned_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <utility>

#include "kernels/base/error.h"

namespace sparsellm::testing {
namespace {

int64_t length_of_body(std::string_view head) {
  constexpr std::string_view kLength = "Content-Length: ";
  const size_t at = head.find(kLength);
  int64_t length = 0;
  if (at != std::string_view::npos) {
    const std::string_view number = head.substr(at + kLength.size());
    std::from_chars(number.data(), number.data() + number.size(), length);
  }
  return length;
}

std::string read_request(int connection) {
  std::string text;
  std::array<char, 4096> part;
  while (true) {
    const size_t end = text.find("\r\n\r\n");
    if (end != std::string::npos &&
        std::ssize(text) >= static_cast<int64_t>(end) + 4 + length_of_body(text.substr(0, end))) {
      return text;
    }
    const ssize_t bytes = ::recv(connection, part.data(), part.size(), 0);
    if (bytes <= 0) {
      return text;
    }
    text.append(part.data(), static_cast<size_t>(bytes));
  }
}

}  // namespace

CannedServer::CannedServer(Answer answer)
    : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const general = reinterpret_cast<sockaddr*>(&address);
  require(::bind(listener_, general, size) == 0 && ::listen(listener_, 64) == 0 &&
              ::getsockname(listener_, general, &size) == 0,
          "the test's server cannot listen");
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

CannedServer::~CannedServer() {
  ::shutdown(listener_, SHUT_RDWR);
  thread_.join();
  ::close(listener_);
}

std::string CannedServer::url() const { return fmt::format("http://127.0.0.1:{}", port_); }

std::vector<std::string> CannedServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void CannedServer::serve() {
  for (int number = 0;; ++number) {
    const int connection = ::accept(listener_, nullptr, nullptr);
    if (connection < 0) {
      return;
    }
    std::string request = read_request(connection);
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(std::move(request));
    }
    for (const std::string& part : answer_(number)) {
      ::send(connection, part.data(), part.size(), MSG_NOSIGNAL);
    }
    ::close(connection);
  }
}

}  // namespace sparsellm::testing
