#include "kernels/base/step_trace.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sparsellm {

void StepTrace::start(std::string_view group) {
  used_ = 0;
  mark(group);
}

void StepTrace::mark(std::string_view group) {
  if (used_ == events_.size()) {
    events_.emplace_back(*context_, CudaEvent::Timing::yes);
    groups_.emplace_back();
  }
  events_[used_].record();
  groups_[used_] = group;
  ++used_;
}

void StepTrace::stop() {
  if (!end_) {
    end_.emplace(*context_, CudaEvent::Timing::yes);
  }
  end_->record();
}

std::vector<std::pair<std::string, double>> StepTrace::seconds() const {
  std::vector<std::pair<std::string, double>> groups;
  if (!end_) {
    return groups;  // no pass has come to its end
  }
  for (size_t i = 0; i < used_; ++i) {
    auto known = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& group) { return group.first == groups_[i]; });
    if (known == groups.end()) {
      known = groups.insert(groups.end(), {groups_[i], 0.0});
    }
    const CudaEvent& next = i + 1 < used_ ? events_[i + 1] : *end_;
    known->second += next.seconds_since(events_[i]);
  }
  return groups;
}

void TraceScope::enter(std::string_view group, std::string_view kind) {
  outer_ = trace_->group();
  trace_->mark(kind.empty() ? std::string(group) : fmt::format("{}, {}", group, kind));
}

void TraceScope::leave() noexcept {
  try {
    trace_->mark(outer_);
  } catch (const Error&) {
    // The device has failed; whoever waits for it will hear of it.
  }
}

}  // namespace sparsellm
