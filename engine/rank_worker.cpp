#include "engine/rank_worker.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "engine/delivery.h"
#include "engine/rank_message.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// Of all ranks, the fewest.
int64_t least_pages(int64_t pages, Communicator& comm) {
  const auto all = comm.gather_bytes(std::as_bytes(std::span(&pages, 1)), Patience::while_alive);
  int64_t least = pages;
  for (const std::vector<std::byte>& one : all) {
    int64_t others = 0;
    require(one.size() == sizeof(others), "a number of pages of {} bytes", one.size());
    std::memcpy(&others, one.data(), sizeof(others));
    least = std::min(least, others);
  }
  std::vector<std::byte> bytes(sizeof(least));
  std::memcpy(bytes.data(), &least, sizeof(least));
  comm.broadcast_bytes(bytes, 0);
  require(bytes.size() == sizeof(least), "a number of pages of {} bytes", bytes.size());
  std::memcpy(&least, bytes.data(), sizeof(least));
  require(least >= 1 && least <= pages, "{} pages of the KV cache, of at most {}", least, pages);
  return least;
}

// Until the message `stop`.
void replay(Rank& rank, Communicator& comm) {
  const RankLimits limits = rank.limits();
  RankMessage message;
  StepsInFlight steps;
  std::vector<std::byte> bytes;
  std::vector<int32_t> chosen;
  for (;;) {
    comm.broadcast_bytes(bytes, 0, Patience::while_alive);  // rank 0 may have nothing to do
    parse_message(bytes, limits, message);
    switch (message.kind) {
      case RankMessage::Kind::launch: {
        const int number = rank.launch(message.launch);
        while (rank.next_logits()) {
        }
        steps.add(message.step, number, message.launch);
        break;
      }
      case RankMessage::Kind::finish: {
        const StepsInFlight::Step& oldest = steps.oldest();
        require(oldest.step == message.step, "step {} is to be finished, the oldest is {}",
                message.step, oldest.step);
        steps.choose(rank.finish(oldest.number), chosen);
        steps.remove_oldest();
        comm.gather_bytes(std::as_bytes(std::span(chosen)));
        break;
      }
      case RankMessage::Kind::counts: {
        const std::vector<NeuronCounts> counts = rank.neuron_counts();
        comm.gather_bytes(std::as_bytes(std::span(counts)));
        break;
      }
      case RankMessage::Kind::stop:
        return;
    }
  }
}

}  // namespace

std::unique_ptr<Rank> start_rank(const LoadRank& load, Communicator& comm) {
  // The communicator ends before the rank does, which may wait for what others were to send.
  std::unique_ptr<Rank> rank;
  try {
    rank = load(comm);
    rank->prepare();
    rank->start(least_pages(rank->fitting_pages(), comm));
    comm.agree({}, Patience::while_alive);
  } catch (...) {
    comm.abort(current_error());
    throw;
  }
  return rank;
}

void run_rank_worker(const LoadRank& load, Communicator& comm) noexcept {
  std::unique_ptr<Rank> rank;  // ends after the communicator, as above
  try {
    rank = start_rank(load, comm);
    replay(*rank, comm);
  } catch (...) {
    comm.abort(current_error());
  }
}

void StepsInFlight::add(int64_t step, int number, const RankStep& launch) {
  Step& added = steps_.emplace_back(Step{.step = step, .number = number, .slots = {}});
  for (const RankStep::Part* part : {&launch.decode, &launch.prefill}) {
    for (const SampleRow& row : part->samples) {
      if (row.slot >= 0) {
        added.slots.push_back(row.slot);
      }
    }
  }
}

const StepsInFlight::Step& StepsInFlight::oldest() const {
  require(!steps_.empty(), "no step is in flight");
  return steps_.front();
}

void StepsInFlight::choose(std::span<const int32_t> tokens, std::vector<int32_t>& chosen) const {
  chosen.clear();
  for (const int32_t slot : oldest().slots) {
    require(slot < std::ssize(tokens), "token {} of a step that chose {}", slot, tokens.size());
    chosen.push_back(tokens[static_cast<size_t>(slot)]);
  }
}

void StepsInFlight::remove_oldest() { steps_.erase(steps_.begin()); }

}  // namespace sparsellm
