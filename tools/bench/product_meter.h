#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/cuda_context.h"
#include "kernels/base/exec.h"
#include "kernels/base/tune_cache.h"
#include "tools/bench/contender.h"
#include "tools/bench/device_rest.h"
#include "tools/bench/product_operands.h"
#include "tools/bench/timed_work.h"
#include "tools/bench/turns.h"
#include "tools/cli/statistics.h"

namespace sparsellm {

// A product as it was measured. Without `verified` there are no times.
struct MeasuredProduct {
  bool verified = false;
  Spread us;                         // with ordinary launches
  std::optional<Spread> overlapped;  // us as the engine launches it, where that may differ
  // Of the same times and of an opponent's, if there was one for such launches.
  std::optional<Turns> turns;
  std::optional<Turns> overlapped_turns;
  std::string algorithm;             // the fastest of a contender's
  std::string overlapped_algorithm;  // as it is then launched, likewise
  double worst_error = 0.0;          // in units of the tolerance; infinite for NaN
  std::string note;  // why it is not verified, or which algorithms had to be left out
};

// What a product takes turns with for each kind of launches, its first kernel; nullptr: nothing.
struct Opponents {
  Contender* ordinary = nullptr;
  Contender* overlapping = nullptr;
  std::string problem = {};  // why there is none, where there should be one
};

// Measures products on one device: on CUDA as replays of a graph, each kernel's on a device that
// has rested, on the CPU by the clock.
class ProductMeter {
 public:
  // Of `repeat` replays the median is taken. Throws Error.
  // `threads` of the CPU device; 0: usable_cores().
  ProductMeter(Device device, int64_t repeat, Sums sums = Sums::fastest, int threads = 0);

  // Whether measure() ends, on CUDA, with an ordinary launch of the kernel in profile_cuda().
  void set_profile(bool profile) { profile_ = profile; }

  ExecContext& context() { return ctx_; }
  TuneCache& tune_cache() { return tune_cache_; }  // in memory
  ContenderInput input(const ProductOperands& operands, int64_t rotation_bytes) {
    return {.weight = operands.weight(),
            .rotation_bytes = rotation_bytes,
            .max_tokens = operands.max_tokens(),
            .ctx = ctx_,
            .tune_cache = tune_cache_};
  }

  // The fastest of a contender's kernels that are right. A kernel is verified on every copy of the
  // weight before it is timed, with either kind of launches, and after the last replay. What fails,
  // for want of memory too, is not verified, with a note. Replays take turns with an opponent's, of
  // which the last is verified; where that fails there are no turns, and a note.
  MeasuredProduct measure(Contender& contender, const ProductOperands& operands, int64_t tokens,
                          const Opponents& opponents = {});

  // The times of a kernel whose result is not looked at: worst_error stays 0, and `verified` false.
  MeasuredProduct time_unverified(Contender& contender, const ProductOperands& operands,
                                  int64_t tokens);

  // Of any work on this device: the seconds of a piece by work, `repeat` times each, by turns, on a
  // device that has rested (time_replays_by_turns(), on the CPU time_calls_by_turns()).
  std::vector<std::vector<double>> time_by_turns(std::span<const TimedWork> works, int64_t repeat);

  // Waits for all that was enqueued, without errors: before memory goes that it may use.
  void wait() const noexcept;

  // Bytes per second: measure_read_bandwidth() of this many bytes, on the CPU of many times a
  // cache.
  double read_ceiling(int64_t bytes);

 private:
  void measure_kernels(Contender& contender, const ProductOperands& operands, int64_t tokens,
                       const Opponents& opponents, MeasuredProduct& product);
  std::unique_ptr<BoundKernel> bind_opponent(Contender& opponent, const ProductOperands& operands,
                                             int64_t tokens, Launches launches);
  std::unique_ptr<BoundKernel> fastest_kernel(Contender& contender, const ProductOperands& operands,
                                              int64_t tokens, MeasuredProduct& product);
  double verify(const Contender& contender, BoundKernel& kernel, const ProductOperands& operands,
                int64_t tokens, Launches launches);
  Spread time_kernel(const Contender& contender, BoundKernel& kernel, Launches launches,
                     int64_t repeat);

  int64_t repeat_;
  bool profile_ = false;
  std::unique_ptr<CudaContext> cuda_;  // on CUDA
  Workspace workspace_;
  ThreadPool threads_;
  ExecContext ctx_;
  TuneCache tune_cache_;
  std::map<int64_t, double> read_ceilings_;
  DeviceRest rest_;
};

}  // namespace sparsellm
