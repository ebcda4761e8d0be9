#include "engine/scheduler.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <new>
#include <span>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/paged_kv.h"

namespace sparsellm {
namespace {

int64_t page_count(const Sequence& sequence) { return static_cast<int64_t>(sequence.pages.size()); }

// The whole pages in front of the last token that is not generated, which every sample computes for
// itself.
int64_t shareable_pages(const Sequence& sequence) {
  return (sequence.first_generated() - 1) / kPageSize;
}

bool grows(const Sequence& sequence) {
  return page_count(sequence) < pages_for(sequence.max_length);
}

// Rows that can be planned now: those of the prompt, or generated ones, of which several only where
// they are recomputed.
int64_t rows_left(const Sequence& sequence) {
  if (sequence.pending > 0 && !sequence.looks_ahead) {
    return 0;
  }
  const int64_t prompt_end = sequence.first_generated();
  const int64_t end = sequence.planned < prompt_end
                          ? prompt_end
                          : std::max(sequence.planned_before, sequence.planned + 1);
  return std::min(end, sequence.goal()) - sequence.planned;
}

}  // namespace

void Scheduler::add(Sequences sequences) { waiting_.splice(waiting_.end(), sequences); }

int64_t Scheduler::first_seen(int64_t position) const {
  return window_ > 0 ? std::max<int64_t>(position - window_ + 1, 0) : 0;
}

// Gives back the pages that no row after `planned` sees. Steps in flight still read them, and do so
// before a later step, of another sequence, writes to them. A kernel may load keys before a window
// together with the first ones in it, and gives them the weight 0. So the entries of released pages
// name the oldest page that is left, all of whose values were computed.
void Scheduler::release_unseen(Sequence& sequence) {
  const int64_t complete = sequence.planned / kPageSize;
  const int64_t unseen = std::min(first_seen(sequence.planned) / kPageSize, complete - 1);
  if (unseen <= sequence.released) {
    return;
  }
  const auto pages = std::span(sequence.pages).first(static_cast<size_t>(unseen) + 1);
  pages_.give_back(pages.subspan(static_cast<size_t>(sequence.released))
                       .first(static_cast<size_t>(unseen - sequence.released)));
  std::ranges::fill(pages, pages.back());
  sequence.released = unseen;
}

void Scheduler::give_back_pages(Sequence& sequence) {
  pages_.give_back(std::span(sequence.pages).subspan(static_cast<size_t>(sequence.released)));
  sequence.pages.clear();
  sequence.released = 0;
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
  give_back_pages(youngest);
  youngest.planned = 0;
  plan.preempted.push_back(&youngest);
  waiting_.splice(waiting_.begin(), running_, std::prev(running_.end()));
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
  pages_.take(1, sequence.pages);
  return true;
}

bool Scheduler::admit_next(int64_t& spare_pages, Plan& plan) {
  if (waiting_.empty() || std::ssize(running_) == limits_.max_requests) {
    return false;
  }
  Sequence& next = *waiting_.front();
  if (next.steps_in_flight > 0) {
    return false;  // preempted a moment ago: its last token is not known yet
  }
  // The samples of a request follow each other. An older one that runs has been planned before, at
  // least as far as its pages can be shared: else it had used up the step's rows.
  const Sequence* sibling = running_.empty() ? nullptr : running_.back().get();
  if (sibling != nullptr && sibling->submission != next.submission) {
    sibling = nullptr;
  }
  int64_t shared = sibling != nullptr ? shareable_pages(next) : 0;
  if (shared > 0 &&
      sibling->released > std::min(first_seen(shared * kPageSize) / kPageSize, shared - 1)) {
    shared = 0;  // the sibling is so far ahead that it has given back what the next row sees
  }
  assert(shared == 0 || sibling->planned >= shared * kPageSize);
  const int64_t own = pages_for(next.known_length()) - shared;
  if (own + spare_pages > pages_.free_pages()) {
    return false;
  }
  // What allocates comes before what changes.
  next.pages.reserve(static_cast<size_t>(pages_for(next.max_length)));
  if (next.tokens.empty()) {
    next.tokens = next.request().prompt;
  }
  if (shared > 0) {
    next.pages.assign(sibling->pages.begin(), sibling->pages.begin() + shared);
    next.released = sibling->released;
    pages_.share(std::span(next.pages).subspan(static_cast<size_t>(next.released)));
    next.planned = shared * kPageSize;
    plan.shared += next.planned;
  }
  pages_.take(own, next.pages);
  spare_pages += grows(next) ? 1 : 0;
  running_.splice(running_.end(), waiting_, waiting_.begin());
  return true;
}

Scheduler::Plan Scheduler::plan() {
  Plan plan;
  plan.chunks.reserve(static_cast<size_t>(limits_.max_requests));
  plan.preempted.reserve(running_.size());
  for (const auto& sequence : running_) {
    release_unseen(*sequence);
  }
  for (auto it = running_.begin(); it != running_.end();) {
    Sequence& sequence = **it;
    const bool wants_row = sequence.in_decode() && rows_left(sequence) > 0;
    if (wants_row && !grow(sequence, plan)) {
      break;  // it was the youngest, and is not in the list any more
    }
    if (wants_row) {
      plan_rows(sequence, 1, plan);
    }
    ++it;
  }
  int64_t budget = limits_.step_tokens - std::ssize(plan.chunks);
  const auto prefill = [&](Sequence& sequence) {
    const int64_t first = sequence.planned;
    plan_rows(sequence, budget, plan);
    budget -= sequence.planned - first;
  };
  // In order of arrival, so generated rows come before prompts: no sequence was through its prompt
  // before all older ones were.
  for (const auto& sequence : running_) {
    if (!sequence->in_decode()) {
      prefill(*sequence);
    }
  }
  // One for each running sequence that still grows: without it the newly admitted would be
  // preempted again soon.
  int64_t spare_pages = std::count_if(running_.begin(), running_.end(),
                                      [](const auto& sequence) { return grows(*sequence); });
  try {
    while (budget > 0 && admit_next(spare_pages, plan)) {
      prefill(*running_.back());
    }
  } catch (const std::bad_alloc&) {
    if (plan.empty()) {
      throw;
    }
    // The rows that are planned go on; another time there may be memory for one more sequence.
  }
  return plan;
}

void Scheduler::end_step(const Plan& plan) {
  for (const Chunk& chunk : plan.chunks) {
    --chunk.sequence->steps_in_flight;
    chunk.sequence->pending -= chunk.choice ? 1 : 0;
  }
}

Scheduler::Sequences Scheduler::retire_finished() noexcept {
  Sequences done;
  for (Sequences* sequences : {&running_, &waiting_, &leaving_}) {
    for (auto it = sequences->begin(); it != sequences->end();) {
      const auto current = it++;
      Sequence& sequence = **current;
      if (!sequence.finish) {
        continue;
      }
      give_back_pages(sequence);
      Sequences& to = sequence.steps_in_flight > 0 ? leaving_ : done;
      if (&to != sequences) {
        to.splice(to.end(), *sequences, current);
      }
    }
  }
  return done;
}

Sequence* Scheduler::find(int64_t submission) const {
  for (const Sequences* sequences : {&running_, &waiting_}) {
    for (const auto& sequence : *sequences) {
      if (sequence->submission->id == submission && !sequence->finish) {
        return sequence.get();
      }
    }
  }
  return nullptr;
}

}  // namespace sparsellm
