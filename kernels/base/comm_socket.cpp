#include "kernels/base/comm_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kSocketFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr milliseconds kRetryAfter{50};

std::string shown(const RendezvousAddress& address) {
  if (!address.path.empty()) {
    return address.path;
  }
  const bool ipv6 = address.host.find(':') != std::string::npos;
  return (ipv6 ? "[" + address.host + "]" : address.host) + ":" + address.port;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList resolve(const RendezvousAddress& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &list);
  require(error == 0, "cannot find the host {}: {}", address.host, ::gai_strerror(error));
  return {list, &::freeaddrinfo};
}

sockaddr_un path_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  require(path.size() < sizeof(address.sun_path),
          "{}: the path of a socket has at most {} bytes, this has {}", path,
          sizeof(address.sun_path) - 1, path.size());
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

void set_option(int socket, int level, int option, int value) {
  (void)::setsockopt(socket, level, option, &value, sizeof(value));  // does without, where it must
}

// Messages are short and answered at once; a host that is lost without a word is noticed.
void set_tcp_options(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

FileDescriptor listen_at_path(const std::string& path) {
  const sockaddr_un address = path_address(path);
  const auto* const raw = reinterpret_cast<const sockaddr*>(&address);
  struct stat found {};
  if (::lstat(path.c_str(), &found) == 0) {
    require(S_ISSOCK(found.st_mode), "{} exists and is no socket", path);
    const FileDescriptor probe(::socket(AF_UNIX, kSocketFlags, 0));
    const bool left_behind =
        ::connect(probe.get(), raw, sizeof(address)) != 0 && errno == ECONNREFUSED;
    require(left_behind, "{}: another process is listening there", path);
    (void)::unlink(path.c_str());
  }
  FileDescriptor socket(::socket(AF_UNIX, kSocketFlags, 0));
  // Nobody can connect between bind() and listen(), when the path has its permissions.
  if (socket.get() < 0 || ::bind(socket.get(), raw, sizeof(address)) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    fail("cannot listen at {}: {}", path, socket_error_text(errno));
  }
  return socket;
}

FileDescriptor listen_at_port(const RendezvousAddress& where) {
  const AddressList list = resolve(where);
  int error = 0;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    FileDescriptor socket(::socket(one->ai_family, kSocketFlags, 0));
    if (socket.get() >= 0) {
      set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (::bind(socket.get(), one->ai_addr, one->ai_addrlen) == 0 &&
          ::listen(socket.get(), SOMAXCONN) == 0) {
        return socket;
      }
    }
    error = errno;
  }
  fail("cannot listen at {}: {}", shown(where), socket_error_text(error));
}

// While nobody listens at a port that the system also gives to those who connect, a socket may be
// given that very port and connect to itself.
bool is_connected_to_itself(int socket) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_bytes = sizeof(own);
  socklen_t peer_bytes = sizeof(peer);
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_bytes) == 0 &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) == 0 &&
         own_bytes == peer_bytes && std::memcmp(&own, &peer, own_bytes) == 0;
}

// 0, or the error.
int try_to_connect(int socket, const sockaddr* address, socklen_t bytes, Deadline deadline) {
  if (::connect(socket, address, bytes) == 0) {
    return 0;
  }
  if (errno != EINPROGRESS) {
    return errno;
  }
  pollfd descriptor{.fd = socket, .events = POLLOUT, .revents = 0};
  wait_for({&descriptor, 1}, deadline);
  if (descriptor.revents == 0) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t error_bytes = sizeof(error);
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
  return error;
}

struct Attempt {
  FileDescriptor socket;
  int error = 0;
};

Attempt connect_to_path(const std::string& path, Deadline deadline) {
  const sockaddr_un address = path_address(path);
  FileDescriptor socket(::socket(AF_UNIX, kSocketFlags, 0));
  const int error = try_to_connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                                   sizeof(address), deadline);
  return {std::move(socket), error};
}

Attempt connect_to_port(const RendezvousAddress& where, Deadline deadline) {
  const AddressList list = resolve(where);
  int error = 0;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    FileDescriptor socket(::socket(one->ai_family, kSocketFlags, 0));
    error = try_to_connect(socket.get(), one->ai_addr, one->ai_addrlen, deadline);
    if (error == 0 && !is_connected_to_itself(socket.get())) {
      set_tcp_options(socket.get());
      return {std::move(socket), 0};
    }
    error = error == 0 ? ECONNREFUSED : error;
  }
  return {FileDescriptor(), error};
}

}  // namespace

RendezvousAddress parse_rendezvous(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (text.find('/') != std::string_view::npos || colon == std::string_view::npos) {
    require(!text.empty() && text.back() != '/', "'{}' is neither HOST:PORT nor a path", text);
    (void)path_address(std::string(text));
    return {.path = std::string(text), .host = {}, .port = {}};
  }
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else {
    require(host.find_first_of(":[]") == std::string_view::npos,
            "'{}': an address of IPv6 is written [::1]:PORT", text);
  }
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  require(!host.empty() && error == std::errc() && end == port.data() + port.size() && number > 0,
          "'{}' is neither HOST:PORT, with a port from 1 to 65535, nor a path", text);
  return {.path = {}, .host = std::string(host), .port = std::to_string(number)};
}

Listener::Listener(const RendezvousAddress& address)
    : socket_(address.path.empty() ? listen_at_port(address) : listen_at_path(address.path)),
      path_(address.path) {}

Listener::~Listener() {
  if (!path_.empty()) {
    (void)::unlink(path_.c_str());
  }
}

std::optional<Listener::Connection> Listener::accept() {
  sockaddr_storage from{};
  socklen_t bytes = sizeof(from);
  auto* const raw = reinterpret_cast<sockaddr*>(&from);
  FileDescriptor socket(::accept4(fd(), raw, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.get() < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      fail("cannot accept a connection: {}", socket_error_text(errno));
    }
    return std::nullopt;  // whoever it was is gone
  }
  if (!path_.empty()) {
    return Connection{std::move(socket), path_};
  }
  set_tcp_options(socket.get());
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(raw, bytes, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return Connection{std::move(socket), "somewhere"};
  }
  return Connection{std::move(socket),
                    shown({.path = {}, .host = host.data(), .port = port.data()})};
}

FileDescriptor connect_to(const RendezvousAddress& address, Deadline deadline, int unless) {
  while (true) {
    Attempt attempt = address.path.empty() ? connect_to_port(address, deadline)
                                           : connect_to_path(address.path, deadline);
    if (attempt.error == 0) {
      return std::move(attempt.socket);
    }
    require(steady_clock::now() < deadline, "rank 0 does not listen at {}: {}", shown(address),
            socket_error_text(attempt.error));
    pollfd descriptor{.fd = unless, .events = POLLIN, .revents = 0};
    wait_for({&descriptor, 1}, std::min(deadline, deadline_in(kRetryAfter)));
    if (descriptor.revents != 0) {
      return FileDescriptor();
    }
  }
}

}  // namespace sparsellm
