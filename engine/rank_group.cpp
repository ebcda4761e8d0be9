#include "engine/rank_group.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "engine/delivery.h"
#include "engine/rank_message.h"
#include "kernels/base/error.h"

namespace sparsellm {

RankGroup::RankGroup(std::unique_ptr<Rank> rank) : rank_(std::move(rank)) {}

RankGroup::RankGroup(std::vector<std::unique_ptr<Communicator>> comms, const LoadRank& load)
    : comms_(std::move(comms)), comm_(comms_.front().get()) {
  try {
    for (size_t i = 1; i < comms_.size(); ++i) {
      workers_.emplace_back([load, &comm = *comms_[i]] { run_rank_worker(load, comm); });
    }
    rank_ = start_rank(load, *comm_);
  } catch (const SharesDoNotFit&) {
    join();
    throw;
  } catch (const Error& error) {
    comm_->abort(error.what());
    join();
    comm_->check();
    throw;
  } catch (...) {
    comm_->abort(current_error());
    join();
    throw;
  }
}

RankGroup::~RankGroup() {
  if (comm_ == nullptr) {
    return;
  }
  try {
    send(RankMessage::Kind::stop, 0);
  } catch (...) {
    comm_->abort(current_error());
  }
  rank_.reset();
  join();
}

void RankGroup::join() {
  for (std::thread& worker : workers_) {
    worker.join();
  }
  workers_.clear();
}

// A call that ends all ranks if it throws.
template <class Body>
auto RankGroup::guarded(Body&& body) {
  if (comm_ == nullptr) {
    return body();
  }
  try {
    return body();
  } catch (...) {
    launching_ = false;
    comm_->abort(current_error());
    throw DeviceLost(comm_->abort_reason().value());
  }
}

void RankGroup::send(RankMessage::Kind kind, int64_t step) {
  write_message(kind, step, bytes_);
  comm_->broadcast_bytes(bytes_, 0);
}

int RankGroup::launch(const RankStep& step) {
  return guarded([&] {
    if (comm_ == nullptr) {
      return rank_->launch(step);
    }
    launching_ = true;
    write_launch(++steps_, step, bytes_);
    comm_->broadcast_bytes(bytes_, 0);
    const int number = rank_->launch(step);
    in_flight_.add(steps_, number, step);
    return number;
  });
}

std::optional<Tensor> RankGroup::next_logits() {
  return guarded([&] {
    std::optional<Tensor> logits = rank_->next_logits();
    launching_ = logits.has_value();
    return logits;
  });
}

void RankGroup::give_up(std::string_view reason) noexcept {
  // The others compute the whole step, and would wait for rank 0's part.
  if (comm_ != nullptr && launching_) {
    comm_->abort(reason);
  }
  rank_->give_up();
}

std::span<const int32_t> RankGroup::finish(int number) {
  return guarded([&] {
    if (comm_ == nullptr) {
      return rank_->finish(number);
    }
    const StepsInFlight::Step step = in_flight_.take(in_flight_.step_of(number));
    send(RankMessage::Kind::finish, step.step);
    const std::span<const int32_t> tokens = rank_->finish(number);
    comm_->check();
    choose_sampled(step, tokens, chosen_);
    compare_tokens(step.step, comm_->gather_bytes(std::as_bytes(std::span(chosen_))));
    return tokens;
  });
}

// `all`: of each rank, what the device chose.
void RankGroup::compare_tokens(int64_t step, const std::vector<std::vector<std::byte>>& all) {
  const auto differs = [this](int rank, const std::string& reason) {
    comm_->abort_by(rank, reason);
    comm_->check();
  };
  std::vector<int32_t> tokens(chosen_.size());
  for (size_t i = 1; i < all.size(); ++i) {
    const auto rank = static_cast<int>(i);
    if (all[i].size() != chosen_.size() * sizeof(int32_t)) {
      differs(rank, fmt::format("step {}: {} bytes of tokens, where rank 0 chose {} tokens", step,
                                all[i].size(), chosen_.size()));
    }
    if (!tokens.empty()) {
      std::memcpy(tokens.data(), all[i].data(), all[i].size());
    }
    const auto [other, own] = std::ranges::mismatch(tokens, chosen_);
    if (other != tokens.end()) {
      differs(rank, fmt::format("step {}: token {} where rank 0 chose {}", step, *other, *own));
    }
  }
}

std::vector<NeuronCounts> RankGroup::neuron_counts() {
  if (comm_ == nullptr) {
    return rank_->neuron_counts();
  }
  if (launching_) {
    return counts_;
  }
  return guarded([&] {
    std::vector<NeuronCounts> sums = rank_->neuron_counts();
    send(RankMessage::Kind::counts, 0);
    const auto all = comm_->gather_bytes(std::as_bytes(std::span(sums)));
    std::vector<NeuronCounts> counts(sums.size());
    for (size_t i = 1; i < all.size(); ++i) {
      require(all[i].size() == sums.size() * sizeof(NeuronCounts),
              "rank {} has counts of {} bytes for {} layers", i, all[i].size(), sums.size());
      std::memcpy(counts.data(), all[i].data(), all[i].size());
      for (size_t layer = 0; layer < sums.size(); ++layer) {
        counts[layer].rows = 0;  // all ranks have seen the same
        sums[layer] += counts[layer];
      }
    }
    counts_ = sums;
    return sums;
  });
}

}  // namespace sparsellm
