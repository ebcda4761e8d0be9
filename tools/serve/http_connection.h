#pragma once

// Of Asio, for http_server.cpp and http_connection.cpp alone.

#include <boost/asio/generic/stream_protocol.hpp>
#include <cstdint>
#include <memory>
#include <string_view>

#include "tools/serve/http_server.h"

namespace sparsellm {

// The connections of a server; all calls are on its thread. It outlives the io_context of their
// sockets, in which they are, and is outlived by what it is made of.
class HttpConnections {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  HttpConnections(const HttpServerOptions& options, const HttpHandlers& handlers);
  ~HttpConnections();

  // Serves the client of this socket, or answers 503 above HttpServerOptions::max_connections.
  void add(Socket socket);
  // Ends those that are late. To be called every kHttpTick.
  void tick();
  // As HttpServer has them.
  void drain();
  void refuse_unread(int status, std::string_view why);
  int64_t size() const;
  int64_t cut_off() const;
  bool sending() const;

  // HttpHandlers::failed, of the exception that is being handled.
  void report_failure() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
