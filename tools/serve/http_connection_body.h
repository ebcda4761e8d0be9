#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace sparsellm {

// The memory of all bodies of requests.
struct BodyMemory {
  explicit BodyMemory(int64_t the_limit) : limit(the_limit) {}

  const int64_t limit;  // bytes
  std::atomic<int64_t> taken = 0;
};

// What one of them takes of it. It may be dropped on any thread, and after the server.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<BodyMemory> memory) : memory_(std::move(memory)) {}
  ~BodyShare() {
    if (memory_) {
      resize(0);
    }
  }
  BodyShare(BodyShare&& other) noexcept
      : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyShare& operator=(BodyShare&&) = delete;

  // False: there is not so much left, and nothing changes.
  bool resize(int64_t bytes) {
    const int64_t more = bytes - bytes_;
    if (memory_->taken.fetch_add(more) > memory_->limit - more && more > 0) {
      memory_->taken -= more;
      return false;
    }
    bytes_ = bytes;
    return true;
  }

 private:
  std::shared_ptr<BodyMemory> memory_;
  int64_t bytes_ = 0;
};

}  // namespace sparsellm
