#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/comm.h"
#include "kernels/base/rendezvous.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::testing {

// How the ranks of a test are connected; those over sockets are in threads of the test, too.
enum class Wires : uint8_t { threads, path, port };
std::string to_string(Wires wires);

using RankBody = std::function<void(Communicator& comm, ExecContext& ctx)>;

struct RankTimes {
  std::chrono::milliseconds timeout{20000};
};

// Runs `body` as each of the ranks, whose devices are "d0", "d1", ..., each in a thread; returns
// what they threw, "" for nothing.
std::vector<std::string> run_ranks(Wires wires, int ranks, const RankBody& body,
                                   RankTimes times = {});

// Expects that of each.
void expect_all(const std::vector<std::string>& thrown, const std::string& text);

// HOST:PORT that nobody listens at.
std::string free_port();

RendezvousOptions rank_options(const std::string& address, int rank, int size,
                               RankTimes times = {});

// A process that says when it is ready, and what `body` threw in the end.
class RankProcess {
 public:
  using Body = std::function<void(const std::function<void()>& ready)>;
  explicit RankProcess(const Body& body);
  ~RankProcess();
  RankProcess(RankProcess&& other) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;

  pid_t pid() const { return pid_; }
  void wait_until_ready();
  // Waits until it ends.
  std::string thrown();

 private:
  // The next bytes that it has to say; empty at the end.
  std::string read_some();

  pid_t pid_ = 0;
  FileDescriptor output_;
  std::string said_;  // after that it is ready
};

}  // namespace sparsellm::testing
