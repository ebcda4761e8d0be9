#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/page_allocator.h"
#include "engine/sequence.h"

namespace sparsellm {

struct SchedulerLimits {
  int64_t step_tokens = 0;   // rows of one step
  int64_t max_requests = 0;  // in one batch
};

// Decides which tokens of which sequences the next step computes. Sequences are admitted in the
// order they came, when there are pages for all that they can become, so that none ever has to give
// pages back before its end.
class Scheduler {
 public:
  // The next `count` tokens of a sequence that are not computed yet.
  struct Chunk {
    Sequence* sequence = nullptr;
    int64_t count = 0;
  };
  // Decode rows first, then prefill chunks, within limits.step_tokens; empty if nothing is left to
  // do. Whoever computes a chunk adds its count to the sequence's `computed`.
  using Plan = std::vector<Chunk>;

  Scheduler(SchedulerLimits limits, int64_t pages) : limits_(limits), pages_(pages) {}

  // Throws Error if the sequence needs more pages than there are.
  void add(std::unique_ptr<Sequence> sequence);
  Plan plan();
  // Takes the sequences that have `finish` set out and frees their pages.
  void retire_finished();

  Sequence* find(int64_t id) const;  // nullptr if it is not here any more
  bool idle() const { return waiting_.empty() && running_.empty(); }
  const PageAllocator& pages() const { return pages_; }

 private:
  static int64_t pages_needed(const Sequence& sequence);
  void admit();

  SchedulerLimits limits_;
  PageAllocator pages_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
};

}  // namespace sparsellm
