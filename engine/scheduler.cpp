#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/paged_kv.h"

namespace sparsellm {
namespace {

int64_t page_count(const Sequence& sequence) { return static_cast<int64_t>(sequence.pages.size()); }

// The whole pages in front of the prompt's last token, which every sample computes for itself.
int64_t shareable_pages(const Sequence& sequence) {
  return (sequence.prompt_length() - 1) / kPageSize;
}

// Rows that can be planned now.
int64_t rows_left(const Sequence& sequence) {
  if (sequence.pending > 0 && !sequence.looks_ahead) {
    return 0;
  }
  return sequence.goal() - sequence.planned;
}

}  // namespace

void Scheduler::check_fits(int64_t max_length) const {
  require(pages_for(max_length) <= pages_.total_pages(),
          "a request of up to {} tokens does not fit the KV cache of {} tokens", max_length,
          pages_.total_pages() * kPageSize);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  check_fits(sequence->max_length);
  waiting_.push_back(std::move(sequence));
}

void Scheduler::plan_rows(Sequence& sequence, int64_t budget, Plan& plan) {
  const int64_t count = std::min(budget, rows_left(sequence));
  if (count <= 0) {
    return;
  }
  Chunk chunk{.sequence = &sequence,
              .first = sequence.planned,
              .count = count,
              .token_from = {},
              .choice = {},
              .decode = sequence.in_decode()};
  const int64_t end = chunk.first + count;
  plan.recomputed += std::clamp<int64_t>(sequence.planned_before - chunk.first, 0, count);
  if (end > sequence.known_length()) {
    chunk.token_from = sequence.choice;
  }
  if (end == sequence.length() && end < sequence.max_length) {
    chunk.choice = plan.choices++;
    sequence.choice = *chunk.choice;
    ++sequence.pending;
  }
  sequence.planned = end;
  sequence.planned_before = std::max(sequence.planned_before, end);
  ++sequence.steps_in_flight;
  plan.chunks.push_back(chunk);
}

void Scheduler::preempt_youngest(Plan& plan) {
  Sequence& youngest = *running_.back();
  pages_.give_back(youngest.pages);
  youngest.planned = 0;
  plan.preempted.push_back(&youngest);
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
}

// Makes room for the next position. False if the sequence itself had to go.
bool Scheduler::grow(Sequence& sequence, Plan& plan) {
  if (pages_for(sequence.planned + 1) <= page_count(sequence)) {
    return true;
  }
  while (pages_.free_pages() == 0) {
    const bool itself = running_.back().get() == &sequence;
    preempt_youngest(plan);
    if (itself) {
      return false;
    }
  }
  sequence.pages.push_back(pages_.take(1).front());
  return true;
}

// A page for each running sequence that still grows: without it the newly admitted would be
// preempted again soon.
int64_t Scheduler::spare_pages() const {
  return std::count_if(running_.begin(), running_.end(), [](const auto& sequence) {
    return page_count(*sequence) < pages_for(sequence->max_length);
  });
}

const Sequence* Scheduler::running_sibling(const Sequence& sequence) const {
  const auto it = std::find_if(running_.begin(), running_.end(), [&](const auto& other) {
    return other->submission == sequence.submission;
  });
  return it != running_.end() ? it->get() : nullptr;
}

bool Scheduler::admit_next(Plan& plan) {
  if (waiting_.empty() || std::ssize(running_) == limits_.max_requests) {
    return false;
  }
  Sequence& next = *waiting_.front();
  if (next.steps_in_flight > 0) {
    return false;  // preempted a moment ago: its last token is not known yet
  }
  int64_t shared = 0;
  const Sequence* sibling = running_sibling(next);
  if (sibling != nullptr && !next.wants_prompt_logits()) {
    shared = shareable_pages(next);
    if (sibling->planned < shared * kPageSize) {
      return false;  // the sibling is about to compute them
    }
  }
  const int64_t own = pages_for(next.known_length()) - shared;
  if (own + spare_pages() > pages_.free_pages()) {
    return false;
  }
  if (shared > 0) {
    next.pages.assign(sibling->pages.begin(), sibling->pages.begin() + shared);
    pages_.share(next.pages);
    next.planned = shared * kPageSize;
    plan.shared += next.planned;
  }
  const std::vector<int32_t> taken = pages_.take(own);
  next.pages.insert(next.pages.end(), taken.begin(), taken.end());
  running_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  return true;
}

Scheduler::Plan Scheduler::plan() {
  Plan plan;
  for (size_t i = 0; i < running_.size(); ++i) {  // which gets shorter when pages run out
    Sequence& sequence = *running_[i];
    if (sequence.in_decode() && rows_left(sequence) > 0 && grow(sequence, plan)) {
      plan_rows(sequence, 1, plan);
    }
  }
  int64_t budget = limits_.step_tokens - std::ssize(plan.chunks);
  const auto prefill = [&](Sequence& sequence) {
    const int64_t first = sequence.planned;
    plan_rows(sequence, budget, plan);
    budget -= sequence.planned - first;
  };
  for (const auto& sequence : running_) {
    if (!sequence->in_decode()) {
      prefill(*sequence);
    }
  }
  while (budget > 0 && admit_next(plan)) {
    prefill(*running_.back());
  }
  return plan;
}

void Scheduler::end_step(const Plan& plan) {
  for (const Chunk& chunk : plan.chunks) {
    --chunk.sequence->steps_in_flight;
    chunk.sequence->pending -= chunk.choice ? 1 : 0;
  }
}

void Scheduler::retire_finished() {
  std::erase_if(leaving_, [](const auto& sequence) { return sequence->steps_in_flight == 0; });
  const auto retire_from = [this](auto& sequences) {
    size_t kept = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& sequence = *sequences[i];
      if (!sequence.finish) {
        std::swap(sequences[kept++], sequences[i]);
        continue;
      }
      pages_.give_back(sequence.pages);
      if (sequence.steps_in_flight > 0) {
        leaving_.push_back(std::move(sequences[i]));
      }
    }
    sequences.resize(kept);
  };
  retire_from(running_);
  retire_from(waiting_);
}

std::vector<Sequence*> Scheduler::find(int64_t submission) const {
  std::vector<Sequence*> found;
  const auto look_in = [&](const auto& sequences) {
    for (const auto& sequence : sequences) {
      if (sequence->submission->id == submission && !sequence->finish) {
        found.push_back(sequence.get());
      }
    }
  };
  look_in(running_);
  look_in(waiting_);
  return found;
}

}  // namespace sparsellm
