#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sparsellm::testing {

// A server that says what a test wants it to, of HTTP or not. One request after the other, each on
// a connection of its own, which it closes after the answer.
class CannedServer {
 public:
  // What to write, in parts that are sent one by one, to the request of this number, from 0.
  using Answer = std::function<std::vector<std::string>(int number)>;

  explicit CannedServer(Answer answer);
  ~CannedServer();
  CannedServer(const CannedServer&) = delete;
  CannedServer& operator=(const CannedServer&) = delete;

  std::string url() const;
  std::vector<std::string> requests() const;  // until now, with their bodies

 private:
  void serve();

  Answer answer_;
  int listener_;
  uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

}  // namespace sparsellm::testing
