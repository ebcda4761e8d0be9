#pragma once

#include <cstdint>

namespace sparsellm::testing {

// Which allocations fail, in a program that has failing_new.cpp or failing_malloc.cpp among its
// sources: what these replace has no other way to be told. For one thread.
struct FailurePlan {
  bool armed = false;
  int64_t passing = 0;   // allocations that succeed before
  int64_t failing = 0;   // those that fail
  int64_t failures = 0;  // that have happened
};
inline constinit FailurePlan plan;

constexpr int64_t kAllAllocations = int64_t{1} << 40;

inline bool fails_now() {
  if (!plan.armed) {
    return false;
  }
  if (plan.passing > 0) {
    --plan.passing;
    return false;
  }
  if (plan.failing == 0) {
    return false;
  }
  --plan.failing;
  ++plan.failures;
  return true;
}

// Allocations may fail in its scope.
class Armed {
 public:
  Armed() { plan.armed = true; }
  ~Armed() { plan.armed = false; }
  Armed(const Armed&) = delete;
  Armed& operator=(const Armed&) = delete;
};

// Those of the test itself never do.
class Disarmed {
 public:
  Disarmed() { plan.armed = false; }
  ~Disarmed() { plan.armed = armed_before_; }
  Disarmed(const Disarmed&) = delete;
  Disarmed& operator=(const Disarmed&) = delete;

 private:
  bool armed_before_ = plan.armed;
};

}  // namespace sparsellm::testing
