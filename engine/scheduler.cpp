#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/paged_kv.h"

namespace sparsellm {

int64_t Scheduler::pages_needed(const Sequence& sequence) { return pages_for(sequence.max_length); }

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  require(pages_needed(*sequence) <= pages_.total_pages(),
          "a request of up to {} tokens does not fit the KV cache of {} tokens",
          sequence->max_length, pages_.total_pages() * kPageSize);
  waiting_.push_back(std::move(sequence));
}

void Scheduler::admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < limits_.max_requests) {
    Sequence& next = *waiting_.front();
    if (pages_needed(next) > pages_.free_pages()) {
      return;  // in order: nobody overtakes, so nobody waits forever
    }
    next.pages = pages_.take(pages_needed(next));
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

Scheduler::Plan Scheduler::plan() {
  admit();
  Plan plan;
  int64_t budget = limits_.step_tokens;
  for (bool decode : {true, false}) {
    for (const auto& sequence : running_) {
      const int64_t count = std::min(budget, sequence->length() - sequence->computed);
      if (sequence->in_decode() == decode && count > 0) {
        plan.push_back({.sequence = sequence.get(), .count = count});
        budget -= count;
      }
    }
  }
  return plan;
}

void Scheduler::retire_finished() {
  const auto retire = [this](const std::unique_ptr<Sequence>& sequence) {
    if (!sequence->finish) {
      return false;
    }
    pages_.give_back(sequence->pages);
    return true;
  };
  std::erase_if(running_, retire);
  std::erase_if(waiting_, retire);
}

Sequence* Scheduler::find(int64_t id) const {
  const auto has_id = [id](const std::unique_ptr<Sequence>& sequence) {
    return sequence->id == id;
  };
  if (const auto it = std::find_if(running_.begin(), running_.end(), has_id);
      it != running_.end()) {
    return it->get();
  }
  const auto it = std::find_if(waiting_.begin(), waiting_.end(), has_id);
  return it != waiting_.end() ? it->get() : nullptr;
}

}  // namespace sparsellm
