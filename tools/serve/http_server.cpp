#include "tools/serve/http_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
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
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <utility>

#include "kernels/base/error.h"
#include "tools/serve/http_connection.h"

namespace sparsellm {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using boost::system::error_code;
using Protocol = asio::generic::stream_protocol;

constexpr std::chrono::milliseconds kAcceptPause{100};  // after want of file descriptors

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
    try {
      connections.add(std::move(socket));
    } catch (...) {  // want of memory
      connections.report_failure();
    }
  }

  void tick() {
    timer.expires_after(kHttpTick);
    timer.async_wait([this](error_code error) {
      if (error) {
        return;
      }
      tick();
      connections.tick();
      if (handlers.tick) {
        handlers.tick();
      }
    });
  }

  HttpServerOptions options;
  HttpHandlers handlers;
  HttpConnections connections{options, handlers};
  asio::io_context io{1};
  asio::basic_socket_acceptor<Protocol> acceptor{io};
  asio::steady_timer timer{io};
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
  for (;;) {
    try {
      state_->io.run();
      return;
    } catch (...) {  // of a handler or a task
      state_->connections.report_failure();
    }
  }
}

void HttpServer::post(std::function<void()> task) { asio::post(state_->io, std::move(task)); }

void HttpServer::adopt(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  Protocol::socket adopted(state_->io);
  error_code error;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    adopted.assign(Protocol(address.ss_family, 0), socket, error);
  } else {
    error.assign(errno, boost::system::system_category());
  }
  require(!error, "cannot serve file descriptor {}: {}", socket, error.message());
  state_->admit(std::move(adopted));
}

void HttpServer::stop_accepting() {
  error_code ignored;
  state_->acceptor.close(ignored);
  state_->connections.drain();
}

void HttpServer::refuse_unread(int status, std::string_view why) {
  state_->connections.refuse_unread(status, why);
}

void HttpServer::stop() { state_->io.stop(); }

int64_t HttpServer::connections() const { return state_->connections.size(); }

int64_t HttpServer::cut_off() const { return state_->connections.cut_off(); }

bool HttpServer::sending() const { return state_->connections.sending(); }

}  // namespace sparsellm
