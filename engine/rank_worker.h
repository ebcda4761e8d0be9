#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/rank.h"
#include "kernels/base/comm.h"
#include "kernels/base/error.h"

namespace sparsellm {

// How a rank gets its weights: Rank's constructor, with options of its device.
using LoadRank = std::function<std::unique_ptr<Rank>(Communicator& comm)>;

// All ranks throw it, still in step, if one of them lacks memory for its share; a caller may try
// with less.
class SharesDoNotFit : public OutOfMemory {
 public:
  using OutOfMemory::OutOfMemory;
};

// A rank that can compute steps. All ranks call this, each in its own thread or process, and wait
// for each other: all have as many pages as the poorest can. What it throws has ended the
// communicator, so that the others throw, too; but SharesDoNotFit all throw by themselves.
std::unique_ptr<Rank> start_rank(const LoadRank& load, Communicator& comm);

// What all ranks but the first do: start_rank(), and then what rank 0 says (engine/rank_message.h),
// in its order, until that is to stop. Nothing is thrown: what goes wrong ends the communicator.
void run_rank_worker(const LoadRank& load, Communicator& comm) noexcept;

// Steps that a rank has launched and not finished.
class StepsInFlight {
 public:
  struct Step {
    int64_t step = 0;            // RankMessage::step
    int number = 0;              // Rank's
    std::vector<int32_t> slots;  // of the tokens that the device chooses
  };

  void add(int64_t step, int number, const RankStep& launch);
  // Of the latest with this number. Throws Error if there is none.
  int64_t step_of(int number) const;
  // Takes the step out, and those before it, which will not be finished. Throws Error if it is
  // not in flight.
  Step take(int64_t step);

 private:
  std::vector<Step> steps_;  // oldest first
};

// Of what Rank::finish() has returned for a step, the tokens that the device chose.
void choose_sampled(const StepsInFlight::Step& step, std::span<const int32_t> tokens,
                    std::vector<int32_t>& chosen);

}  // namespace sparsellm
