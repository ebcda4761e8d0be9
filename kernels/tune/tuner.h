#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/error.h"
#include "kernels/base/exec.h"
#include "kernels/base/tune_cache.h"
#include "kernels/tune/tunable.h"
#include "kernels/tune/tune_meter.h"

namespace sparsellm {

template <class Plan>
struct Tuned {
  Plan plan;
  double seconds = 0.0;   // of one call; 0 if no measurement was possible
  bool measured = false;  // now, and not found in the cache
};

// Whether a result of dtype `y` is right, by what it differs from the reference. Both are rounded
// to that dtype: what they may differ by is a part of the largest element. NaN is never right.
bool is_right_result(const TuneMeter::Largest& largest, DType y);

// Chooses plans by measuring them, or takes what was chosen from a cache, where plan and seconds
// are kept under the Tunable's key and the meter's. Before a plan is timed its result, in memory
// that was NaN, is compared with the reference. While it measures it takes memory for that; it
// synchronises.
class Tuner {
 public:
  // All outlive the tuner; saving the cache is the caller's.
  Tuner(TuneMeter& meter, TuneCache& cache, ExecContext& ctx)
      : meter_(meter), cache_(cache), ctx_(ctx) {}

  // The fastest candidate that is right. While plans are measured one after the other the clocks of
  // a device fall by more than the best of them differ: those are measured again, by turns.
  template <class Plan>
  Tuned<Plan> fastest(Tunable<Plan>& what);

  // The first candidate that is right, whatever its time: every run with the same libraries on the
  // same device finds the same.
  template <class Plan>
  Tuned<Plan> first_right(Tunable<Plan>& what);

 private:
  static constexpr double kAnyTime = std::numeric_limits<double>::infinity();
  static constexpr size_t kFinalists = 4;
  static constexpr int kFinalTurns = 3;

  struct Entry {
    std::string plan;
    double seconds;
  };

  // Runs the plans of one call.
  template <class Plan>
  class Trial;

  template <class Plan>
  std::optional<Tuned<Plan>> find(const Tunable<Plan>& what) const;
  // What was found, which is kept in the cache, or the fallback, which is not.
  template <class Plan>
  Tuned<Plan> keep(const Tunable<Plan>& what, const std::optional<Tuned<Plan>>& found);

  std::optional<Entry> find_entry(const std::string& key) const;
  void put_entry(const std::string& key, const Entry& entry);
  std::string full_key(const std::string& key) const;

  TuneMeter& meter_;
  TuneCache& cache_;
  ExecContext& ctx_;
};

template <class Plan>
class Tuner::Trial {
 public:
  Trial(Tunable<Plan>& what, TuneMeter& meter, ExecContext& ctx) : what_(what), meter_(meter) {
    const Tensor y = what.result();
    expected_ = allocate_scratch(ctx, y.dtype(), {y.size(0), y.size(1)}, "tuning");
    what.run_reference(expected_.view);
  }

  bool is_right(const Plan& plan) {
    const Tensor y = what_.result();
    if (!what_.fits_all(plan)) {
      return false;
    }
    meter_.poison(y);
    try {
      what_.run(plan, 0);
    } catch (const OutOfMemory&) {
      throw;
    } catch (const DeviceLost&) {
      throw;
    } catch (const Error&) {
      return false;  // a launch that the device or its driver does not take
    }
    return is_right_result(meter_.compare(expected_.view, y), y.dtype());
  }

  std::optional<double> seconds(const Plan& plan, double best) {
    return meter_.seconds({.enqueue = [&] { what_.run(plan, turn_++); },
                           .tokens = what_.result().size(0),
                           .bytes_in_turn = what_.bytes_in_turn()},
                          best);
  }

 private:
  Tunable<Plan>& what_;
  TuneMeter& meter_;
  OwnedTensor expected_;
  int64_t turn_ = 0;
};

template <class Plan>
Tuned<Plan> Tuner::fastest(Tunable<Plan>& what) {
  if (std::optional<Tuned<Plan>> known = find(what)) {
    return *std::move(known);
  }
  Trial<Plan> trial(what, meter_, ctx_);
  std::vector<Tuned<Plan>> timed;
  double best = kAnyTime;
  for (Plan& plan : what.candidates()) {
    const double limit = what.times_slow_ones() ? kAnyTime : best;
    const std::optional<double> seconds =
        trial.is_right(plan) ? trial.seconds(plan, limit) : std::nullopt;
    if (seconds) {
      best = std::min(best, *seconds);
      what.timed(plan, *seconds);
      timed.push_back({.plan = std::move(plan), .seconds = *seconds});
    }
  }
  const auto faster = [](const Tuned<Plan>& a, const Tuned<Plan>& b) {
    return a.seconds < b.seconds;
  };
  std::stable_sort(timed.begin(), timed.end(), faster);
  timed.erase(timed.begin() + static_cast<int64_t>(std::min(timed.size(), kFinalists)),
              timed.end());
  if (timed.size() > 1) {
    for (Tuned<Plan>& each : timed) {
      each.seconds = 0.0;
    }
    for (int turn = 0; turn < kFinalTurns; ++turn) {
      for (Tuned<Plan>& each : timed) {
        each.seconds += trial.seconds(each.plan, kAnyTime).value() / kFinalTurns;
      }
    }
  }
  const auto winner = std::min_element(timed.begin(), timed.end(), faster);
  return keep(what, winner == timed.end() ? std::nullopt : std::optional(*winner));
}

template <class Plan>
Tuned<Plan> Tuner::first_right(Tunable<Plan>& what) {
  if (std::optional<Tuned<Plan>> known = find(what)) {
    return *std::move(known);
  }
  Trial<Plan> trial(what, meter_, ctx_);
  for (Plan& plan : what.candidates()) {
    const std::optional<double> seconds =
        trial.is_right(plan) ? trial.seconds(plan, kAnyTime) : std::nullopt;
    if (seconds) {
      return keep(what, std::optional(Tuned<Plan>{.plan = std::move(plan), .seconds = *seconds}));
    }
  }
  return keep(what, std::optional<Tuned<Plan>>());
}

template <class Plan>
std::optional<Tuned<Plan>> Tuner::find(const Tunable<Plan>& what) const {
  const std::optional<Entry> entry = find_entry(what.key());
  std::optional<Plan> plan = entry ? what.plan_from(entry->plan) : std::nullopt;
  if (!plan || !what.fits_all(*plan)) {
    return std::nullopt;  // of other weights, if it is a plan at all
  }
  return Tuned<Plan>{.plan = *std::move(plan), .seconds = entry->seconds};
}

template <class Plan>
Tuned<Plan> Tuner::keep(const Tunable<Plan>& what, const std::optional<Tuned<Plan>>& found) {
  if (!found) {
    return {.plan = what.fallback(), .seconds = 0.0, .measured = true};
  }
  put_entry(what.key(), {.plan = what.to_text(found->plan), .seconds = found->seconds});
  return {.plan = found->plan, .seconds = found->seconds, .measured = true};
}

}  // namespace sparsellm
