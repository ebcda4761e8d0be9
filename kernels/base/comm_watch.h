#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/base/comm_messages.h"
#include "kernels/base/comm_transfer.h"
#include "kernels/base/file_descriptor.h"

namespace sparsellm {

// The control connections of a rank in a process of its own, and a thread that sleeps until
// something comes over them: so a rank learns that another has failed, or is gone, also while it
// computes, and rank 0 tells all others. All functions may be called by any thread.
class CommWatch {
 public:
  struct Peer {
    int rank = 0;
    FileDescriptor control;
    IncomingMessage incoming;
    bool left = false;  // has said goodbye; written under the mutex
  };

  // names: "rank 0 (cpu)", ... `timeout` is what ranks wait for each other, for messages.
  CommWatch(int rank, std::vector<std::string> names, std::vector<Peer> peers,
            std::chrono::milliseconds timeout);
  ~CommWatch();  // says goodbye, unless everything has ended
  CommWatch(const CommWatch&) = delete;
  CommWatch& operator=(const CommWatch&) = delete;

  // The first reason is kept, and sent to those that this rank is connected with.
  void end(int culprit, std::string_view reason) noexcept;
  std::optional<std::string> reason() const;
  // Whether that peer has been destroyed in good order.
  bool has_left(int rank) const;
  // Readable once everything has ended.
  int ended_fd() const { return ended_.fd(); }

  // Rank 0: for whom it waits now, so that it can tell others who wait for it; -1: for nobody.
  void set_awaited(int rank) { awaited_.store(rank, std::memory_order_relaxed); }
  // Other ranks: asks rank 0 to end everything, and say who did not come.
  void ask_who_is_late() noexcept;

 private:
  void watch();
  // Whether there is more to come from this peer.
  bool listen(Peer& peer);
  void take(Peer& peer, const MessageHeader& header, std::span<const std::byte> body);
  void end_with(std::string text) noexcept;
  void send(MessageKind kind, std::span<const std::byte> body = {}) noexcept;
  const std::string& name(int rank) const { return names_[static_cast<size_t>(rank)]; }

  const int rank_;
  const std::vector<std::string> names_;
  const std::chrono::milliseconds timeout_;
  std::vector<Peer> peers_;  // only the thread changes them
  std::atomic<int> awaited_{-1};
  StickyEvent ended_;
  StickyEvent leaving_;
  mutable std::mutex mutex_;  // also of what is written to the connections
  std::optional<std::string> reason_;
  std::thread thread_;
};

}  // namespace sparsellm
