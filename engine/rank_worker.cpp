#include "engine/rank_worker.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

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

template <class Make>
auto if_all_have_memory(Communicator& comm, Make&& make) {
  std::string problem;
  std::invoke_result_t<Make> made{};
  try {
    made = make();
  } catch (const OutOfMemory& error) {
    problem = error.what();
  }
  try {
    comm.agree(problem, Patience::while_alive);
  } catch (const Error& error) {
    comm.check();
    throw SharesDoNotFit(error.what());
  }
  return made;
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
        const StepsInFlight::Step step = steps.take(message.step);
        choose_sampled(step, rank.finish(step.number), chosen);
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
    rank = if_all_have_memory(comm, [&] { return load(comm); });
    rank->prepare();
    const int64_t pages = if_all_have_memory(comm, [&] { return rank->fitting_pages(); });
    rank->start(least_pages(pages, comm));
    comm.agree({}, Patience::while_alive);
  } catch (const SharesDoNotFit&) {
    throw;  // all ranks do, and some have yet to hear of it
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
  } catch (const SharesDoNotFit&) {  // rank 0 tells its caller
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

int64_t StepsInFlight::step_of(int number) const {
  const auto step = std::find_if(steps_.rbegin(), steps_.rend(),
                                 [&](const Step& s) { return s.number == number; });
  require(step != steps_.rend(), "no step with the number {} is in flight", number);
  return step->step;
}

StepsInFlight::Step StepsInFlight::take(int64_t step) {
  const auto at =
      std::find_if(steps_.begin(), steps_.end(), [&](const Step& s) { return s.step == step; });
  require(at != steps_.end(), "step {} is not in flight", step);
  Step taken = std::move(*at);
  steps_.erase(steps_.begin(), at + 1);
  return taken;
}

void choose_sampled(const StepsInFlight::Step& step, std::span<const int32_t> tokens,
                    std::vector<int32_t>& chosen) {
  chosen.clear();
  for (const int32_t slot : step.slots) {
    require(slot < std::ssize(tokens), "token {} of a step that chose {}", slot, tokens.size());
    chosen.push_back(tokens[static_cast<size_t>(slot)]);
  }
}

}  // namespace sparsellm
