#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace sparsellm::testing {

// A connection to a server at the socket file `path`, by POSIX alone.
class PlainConnection {
 public:
  // Waits some seconds for a server that is starting.
  explicit PlainConnection(const std::filesystem::path& path);
  ~PlainConnection();
  PlainConnection(const PlainConnection&) = delete;
  PlainConnection& operator=(const PlainConnection&) = delete;

  void send(std::string_view bytes);

  struct Reply {
    int status = 0;  // 0: the connection ended before a whole reply
    std::string head;
    std::string body;  // of chunks, joined
  };
  Reply receive();
  bool wait_for_reply();  // until its first bytes are there; false if there are none

  // "GET /health", with the headers that it takes.
  Reply get(std::string_view path);
  Reply post(std::string_view path, std::string_view json);

 private:
  bool receive_more();  // false at the end

  int socket_;
  std::string received_;
};

// A POST with a body of JSON.
std::string post_text(std::string_view path, std::string_view json);

}  // namespace sparsellm::testing
