#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "engine/page_allocator.h"
#include "engine/sequence.h"

namespace sparsellm {

struct SchedulerLimits {
  int64_t step_tokens = 0;   // rows of one step; at least max_requests
  int64_t max_requests = 0;  // sequences in one step
};

// Decides which tokens of which sequences the next step computes: continuous batching (Yu et al.
// 2022, iteration-level scheduling) over paged keys and values (Kwon et al. 2023).
//
// The order of arrival is the order of everything. A sequence is admitted when all that are older
// are and there are pages for its tokens, with one to spare for each running sequence that still
// grows. It takes further pages as it grows; when none is free, the youngest running sequence gives
// all of its own back and is computed again later. So the oldest sequence always makes progress,
// and no sequence waits for ever. All running sequences are older than all that wait.
//
// Where attention has a window, pages that no later row sees are given back while the sequence
// runs. One that is computed again takes all of its pages again.
//
// plan() may be called while earlier steps are in flight, if the device executes steps in order:
// pages that change hands are written by the new holder after the old one's last access.
class Scheduler {
 public:
  // Positions [first, first + count) of a sequence: all of them generated (Request::decode_from),
  // or none.
  struct Chunk {
    Sequence* sequence = nullptr;
    int64_t first = 0;
    int64_t count = 0;
    // Where the step before this one chooses the chunk's last token, if it is not known yet.
    std::optional<int64_t> token_from;
    // Where this step chooses the token after the chunk, if it does.
    std::optional<int64_t> choice;
    bool decode = false;  // a generated row that is not recomputed; such chunks have one row

    bool generated() const { return first >= sequence->first_generated(); }
  };
  struct Plan {
    // Within limits.step_tokens rows, one chunk for a sequence: decode rows, then generated rows
    // that are recomputed, then prompts.
    std::vector<Chunk> chunks;
    int64_t choices = 0;     // tokens that the step chooses
    int64_t recomputed = 0;  // rows that were computed before a preemption
    int64_t shared = 0;      // positions that newly admitted sequences found in others' pages
    std::vector<const Sequence*> preempted;

    bool empty() const { return chunks.empty(); }
  };

  // window: AttentionParams::window, of all layers; 0: rows see everything.
  Scheduler(SchedulerLimits limits, int64_t pages, int64_t window = 0)
      : limits_(limits), window_(window), pages_(pages) {}

  using Sequences = std::list<std::unique_ptr<Sequence>>;  // which change lists without allocating

  // In ascending `order`, also to those that came before. None may need more pages than there are.
  void add(Sequences sequences);

  // Takes the rows that it plans for done: the caller has to enqueue the step. Preemption may
  // leave a plan without chunks only while steps are in flight. If it throws (out of memory), no
  // row is planned.
  Plan plan();

  // The step of this plan has come to its end, or failed.
  void end_step(const Plan& plan);

  // Takes the sequences that have `finish` set out and frees their pages. Returns those that no
  // step has rows of any more: when they are destroyed, what their callbacks hold may call back.
  [[nodiscard]] Sequences retire_finished() noexcept;

  // The oldest sequence of a submission that has not finished; nullptr if there is none.
  Sequence* find(int64_t submission) const;
  const PageAllocator& pages() const { return pages_; }
  int64_t running() const { return std::ssize(running_); }
  int64_t waiting() const { return std::ssize(waiting_); }

 private:
  int64_t first_seen(int64_t position) const;
  void release_unseen(Sequence& sequence);
  void give_back_pages(Sequence& sequence);
  void plan_rows(Sequence& sequence, int64_t budget, Plan& plan);
  bool grow(Sequence& sequence, Plan& plan);
  void preempt_youngest(Plan& plan);
  bool admit_next(int64_t& spare_pages, Plan& plan);

  SchedulerLimits limits_;
  int64_t window_;
  PageAllocator pages_;
  Sequences waiting_;  // ascending order
  Sequences running_;  // ascending order, all below those that wait
  Sequences leaving_;  // finished, with rows in flight
};

}  // namespace sparsellm
