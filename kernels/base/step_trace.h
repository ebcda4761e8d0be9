#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/cuda_context.h"
#include "kernels/base/exec.h"

namespace sparsellm {

// Where the time of a pass on a CUDA device goes: events in its stream divide it into parts, and
// each belongs to a group. All that comes before stop() may be captured in a graph; every launch,
// with a stop() after it, then measures anew.
class StepTrace {
 public:
  explicit StepTrace(const CudaContext& context) : context_(&context) {}

  void start(std::string_view group);  // forgets the pass before
  // What follows belongs to `group`.
  void mark(std::string_view group);
  void stop();  // the end of the pass

  // Seconds of each group in the latest pass, which is past its end.
  std::vector<std::pair<std::string, double>> seconds() const;

  const std::string& group() const { return groups_.at(used_ - 1); }

 private:
  const CudaContext* context_;
  std::vector<CudaEvent> events_;
  std::vector<std::string> groups_;  // of what follows an event
  size_t used_ = 0;                  // of both, by the latest pass
  std::optional<CudaEvent> end_;
};

// Puts the ops of a scope into a group, if the context traces: "group" or "group, kind".
class TraceScope {
 public:
  TraceScope(ExecContext& ctx, std::string_view group, std::string_view kind = {})
      : trace_(ctx.trace) {
    if (trace_ != nullptr) {
      enter(group, kind);
    }
  }
  ~TraceScope() {
    if (trace_ != nullptr) {
      leave();
    }
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  void enter(std::string_view group, std::string_view kind);
  void leave() noexcept;

  StepTrace* trace_;
  std::string outer_;
};

}  // namespace sparsellm
