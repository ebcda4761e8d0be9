#include "tools/bench/product_meter.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tools/bench/call_timer.h"
#include "tools/bench/profile_device.h"
#include "tools/bench/read_bandwidth.h"
#include "tools/bench/read_bandwidth_device.h"
#include "tools/bench/replay_timer.h"
#include "tools/bench/verify_product.h"

namespace sparsellm {
namespace {

constexpr int64_t kChoiceRepeat = 5;  // enough to tell one algorithm from another
constexpr int64_t kCpuReadBytes = int64_t{256} << 20;
constexpr double kMicro = 1e6;

void require_right(double worst_error, const Contender& contender) {
  require(worst_error <= contender.error_limit(),
          "wrong result: the worst error is {:.3g} times the tolerance", worst_error);
}

void add_note(const std::string& note, MeasuredProduct& product) {
  product.note += (product.note.empty() ? "" : "; ") + note;
}

std::string not_compared(std::string_view why) {
  return fmt::format("not compared with dense: {}", why);
}

TimedWork work_of(const Contender& contender, BoundKernel& kernel, Launches launches) {
  return {.pieces = contender.copies(),
          .run = [&kernel, launches](int64_t copy) { kernel.enqueue(copy, launches); }};
}

}  // namespace

ProductMeter::ProductMeter(Device device, int64_t repeat, Sums sums, int threads)
    : repeat_(repeat),
      cuda_(device.is_cuda() ? std::make_unique<CudaContext>(device) : nullptr),
      workspace_(device, 0),
      threads_(device.is_cuda() ? 1 : threads),
      ctx_{.device = device,
           .workspace = workspace_,
           .threads = threads_,
           .cuda = cuda_.get(),
           .sums = sums} {
  require(repeat > 0, "{} replays have no median", repeat);
}

MeasuredProduct ProductMeter::measure(Contender& contender, const ProductOperands& operands,
                                      int64_t tokens, const Opponents& opponents) {
  MeasuredProduct product;
  try {
    measure_kernels(contender, operands, tokens, opponents, product);
    product.verified = true;
  } catch (const DeviceLost&) {
    throw;  // nothing is measured any more
  } catch (const std::exception& error) {
    wait();
    product.note = error.what();
  }
  return product;
}

void ProductMeter::wait() const noexcept {
  if (cuda_) {
    cuda_->wait();
  }
}

void ProductMeter::measure_kernels(Contender& contender, const ProductOperands& operands,
                                   int64_t tokens, const Opponents& opponents,
                                   MeasuredProduct& product) {
  const std::unique_ptr<BoundKernel> kernel = fastest_kernel(contender, operands, tokens, product);
  const Tensor y = operands.y(tokens);
  const Tensor other_y = operands.other_y(tokens);
  // What was timed is what was verified: a replay may differ from the calls that it was captured
  // from.
  const auto error_of = [&](const BoundKernel& of, const Tensor& result, Launches launches) {
    return operands.reference().worst_error(result, ctx_, of.input_rounding(launches));
  };
  const auto take_error = [&](double worst_error) {
    product.worst_error = std::max(product.worst_error, worst_error);
    require_right(product.worst_error, contender);
  };
  const auto time_alone = [&](Launches launches) {
    poison(y, ctx_);
    const Spread seconds = time_kernel(contender, *kernel, launches, repeat_);
    take_error(error_of(*kernel, y, launches));
    return scaled(seconds, kMicro);
  };
  const auto time_turns = [&](Launches launches, Contender& opponent) -> std::optional<Turns> {
    std::vector<std::vector<double>> seconds;
    std::unique_ptr<BoundKernel> other;
    try {
      other = bind_opponent(opponent, operands, tokens, launches);
      poison(y, ctx_);
      poison(other_y, ctx_);
      const TimedWork works[] = {work_of(contender, *kernel, launches),
                                 work_of(opponent, *other, launches)};
      seconds = time_by_turns(works, repeat_);
      require_right(error_of(*other, other_y, launches), opponent);
    } catch (const DeviceLost&) {
      throw;
    } catch (const std::exception& error) {
      wait();
      add_note(not_compared(error.what()), product);
      return std::nullopt;
    }
    take_error(error_of(*kernel, y, launches));
    return scaled(compare_turns(seconds[0], seconds[1]), kMicro);
  };
  const auto time = [&](Launches launches, Contender* opponent, std::optional<Turns>& turns) {
    if (opponent != nullptr) {
      turns = time_turns(launches, *opponent);
    }
    return turns ? turns->time : time_alone(launches);
  };
  product.us = time(Launches::ordinary, opponents.ordinary, product.turns);
  product.algorithm = kernel->algorithm(Launches::ordinary);
  if (contender.overlaps_launches()) {
    // May be another kernel.
    take_error(verify(contender, *kernel, operands, tokens, Launches::overlapping));
    product.overlapped =
        time(Launches::overlapping, opponents.overlapping, product.overlapped_turns);
    product.overlapped_algorithm = kernel->algorithm(Launches::overlapping);
  }
  if (!opponents.problem.empty()) {
    add_note(not_compared(opponents.problem), product);
  }
  if (profile_ && cuda_ != nullptr) {
    profile_cuda([&] { kernel->enqueue(0, Launches::ordinary); }, ctx_);
  }
}

// Ready to be captured. It was verified where it was found to be a good opponent.
std::unique_ptr<BoundKernel> ProductMeter::bind_opponent(Contender& opponent,
                                                         const ProductOperands& operands,
                                                         int64_t tokens, Launches launches) {
  std::vector<std::unique_ptr<BoundKernel>> kernels =
      opponent.bind(operands.x(tokens), operands.other_y(tokens));
  for (int64_t copy = 0; copy < opponent.copies(); ++copy) {
    kernels.front()->enqueue(copy, launches);
  }
  return std::move(kernels.front());
}

// Throws if none is right. Sets the worst error of the one that counts, and notes down what is
// wrong with others.
std::unique_ptr<BoundKernel> ProductMeter::fastest_kernel(Contender& contender,
                                                          const ProductOperands& operands,
                                                          int64_t tokens,
                                                          MeasuredProduct& product) {
  const Tensor y = operands.y(tokens);
  std::vector<std::unique_ptr<BoundKernel>> kernels = contender.bind(operands.x(tokens), y);
  std::unique_ptr<BoundKernel> fastest;
  double fastest_seconds = std::numeric_limits<double>::infinity();
  for (std::unique_ptr<BoundKernel>& kernel : kernels) {
    try {
      const double worst_error = verify(contender, *kernel, operands, tokens, Launches::ordinary);
      if (fastest == nullptr) {
        product.worst_error = worst_error;
      }
      require_right(worst_error, contender);
      const double seconds =
          kernels.size() == 1
              ? 0.0
              : time_kernel(contender, *kernel, Launches::ordinary, kChoiceRepeat).median;
      if (seconds < fastest_seconds) {
        fastest_seconds = seconds;
        product.worst_error = worst_error;
        fastest = std::move(kernel);
      }
    } catch (const DeviceLost&) {
      throw;
    } catch (const Error& error) {
      const std::string algorithm = kernel->algorithm(Launches::ordinary);
      wait();
      add_note(fmt::format("{}{}{}", algorithm, algorithm.empty() ? "" : ": ", error.what()),
               product);
    }
    kernel.reset();  // may hold memory
  }
  require(fastest != nullptr, "{}", product.note);
  return fastest;
}

// The worst error on any copy.
double ProductMeter::verify(const Contender& contender, BoundKernel& kernel,
                            const ProductOperands& operands, int64_t tokens, Launches launches) {
  return verify_product([&](int64_t copy) { kernel.enqueue(copy, launches); }, contender.copies(),
                        operands.y(tokens), operands.reference(), ctx_,
                        kernel.input_rounding(launches));
}

MeasuredProduct ProductMeter::time_unverified(Contender& contender, const ProductOperands& operands,
                                              int64_t tokens) {
  MeasuredProduct product;
  std::vector<std::unique_ptr<BoundKernel>> kernels;
  try {
    kernels = contender.bind(operands.x(tokens), operands.y(tokens));
    for (int64_t copy = 0; copy < contender.copies(); ++copy) {
      kernels.front()->enqueue(copy, Launches::ordinary);
    }
    product.us =
        scaled(time_kernel(contender, *kernels.front(), Launches::ordinary, repeat_), kMicro);
    product.algorithm = kernels.front()->algorithm(Launches::ordinary);
  } catch (const DeviceLost&) {
    throw;  // nothing is measured any more
  } catch (const std::exception& error) {
    wait();
    product.note = error.what();
  }
  return product;
}

Spread ProductMeter::time_kernel(const Contender& contender, BoundKernel& kernel, Launches launches,
                                 int64_t repeat) {
  const TimedWork work = work_of(contender, kernel, launches);
  return spread_of(time_by_turns({&work, 1}, repeat).front());
}

std::vector<std::vector<double>> ProductMeter::time_by_turns(std::span<const TimedWork> works,
                                                             int64_t repeat) {
  if (cuda_ == nullptr) {
    return time_calls_by_turns(works, repeat);
  }
  rest_.rest();
  return time_replays_by_turns(*cuda_, works, repeat);
}

double ProductMeter::read_ceiling(int64_t bytes) {
  const int64_t read = cuda_ ? (bytes + 15) / 16 * 16 : kCpuReadBytes;
  const auto known = read_ceilings_.find(read);
  if (known != read_ceilings_.end()) {
    return known->second;
  }
  const double ceiling =
      cuda_ ? read_bandwidth_cuda(read, ctx_) : measure_read_bandwidth(ctx_.device, read);
  read_ceilings_.emplace(read, ceiling);
  return ceiling;
}

}  // namespace sparsellm
