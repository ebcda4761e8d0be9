#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/rank.h"
#include "engine/rank_message.h"
#include "engine/rank_worker.h"
#include "kernels/base/comm.h"
#include "models/neuron_counts.h"

namespace sparsellm {

// The ranks of a model, as rank 0 sees them: it computes steps itself, and tells the others to do
// the same (engine/rank_worker.h). What is said of steps is StepRunner's.
//
// With several ranks whatever goes wrong on one of them ends all, and with them all steps in
// flight: the call that meets it, and every later one, throws DeviceLost with one line that begins
// with the rank where it began: "rank 1 (cpu): out of memory".
class RankGroup {
 public:
  // One rank, without any communication.
  explicit RankGroup(std::unique_ptr<Rank> rank);
  // As many as the communicators have; of these the first is rank 0's, on the thread that calls
  // this, and the others, if any, are of ranks that run as threads of this process. Throws Error
  // when a rank cannot be started, SharesDoNotFit if that is why, or what `load` has thrown for
  // rank 0, if that is none.
  RankGroup(std::vector<std::unique_ptr<Communicator>> comms, const LoadRank& load);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int launch(const RankStep& step);
  std::optional<Tensor> next_logits();
  // With several ranks this is the end of all, for this reason.
  void give_up(std::string_view reason) noexcept;
  // Throws also if a rank chose other tokens than rank 0.
  std::span<const int32_t> finish(int number);
  std::span<const LogProbs> log_probs() const { return rank_->log_probs(); }

  // Of each layer, summed over the ranks, which each have some of the neurons. Several ranks, while
  // they launch a step, tell what they told the last time.
  std::vector<NeuronCounts> neuron_counts();

  // Rank 0.
  Rank& first() { return *rank_; }
  const Rank& first() const { return *rank_; }

 private:
  template <class Body>
  auto guarded(Body&& body);
  void send(RankMessage::Kind kind, int64_t step);
  void compare_tokens(int64_t step, const std::vector<std::vector<std::byte>>& all);
  void join();

  std::vector<std::unique_ptr<Communicator>> comms_;  // none: there is one rank
  Communicator* comm_ = nullptr;                      // of rank 0; nullptr: there is one rank
  std::unique_ptr<Rank> rank_;
  std::vector<std::thread> workers_;
  bool launching_ = false;
  int64_t steps_ = 0;  // that were launched
  StepsInFlight in_flight_;
  std::vector<std::byte> bytes_;  // of a message
  std::vector<int32_t> chosen_;   // of a step
  std::vector<NeuronCounts> counts_;
};

}  // namespace sparsellm
