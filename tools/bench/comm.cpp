#include "tools/bench/comm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/comm_cuda.h"
#include "kernels/base/comm_threads.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/cuda_graph.h"
#include "kernels/base/error.h"
#include "tools/bench/requests.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/statistics.h"

namespace sparsellm {
namespace {

constexpr int64_t kWarmUp = 3;         // replays
constexpr int64_t kVerifiedCalls = 3;  // of a graph: an odd number

// The parts of all ranks and their sum, the same on all ranks.
class CommOperands {
 public:
  CommOperands(const CommBenchOptions& options, int64_t bytes)
      : dtype_(options.dtype), count_(bytes / size_of(options.dtype)) {
    BenchRandom random(options.seed);
    visit_float(dtype_, [&]<class T>(T) {
      std::vector<float> sums(static_cast<size_t>(count_));
      magnitudes_.resize(sums.size());
      for (size_t rank = 0; rank < options.devices.size(); ++rank) {
        std::vector<T> part(sums.size());
        for (size_t i = 0; i < part.size(); ++i) {
          part[i] = from_float<T>(static_cast<float>(2.0 * random.uniform() - 1.0));
          const float value = to_float(part[i]);
          sums[i] = rank == 0 ? value : sums[i] + value;
          magnitudes_[i] += std::abs(value);
        }
        parts_.push_back(bytes_of(part));
      }
      std::vector<T> rounded(sums.size());
      std::transform(sums.begin(), sums.end(), rounded.begin(), from_float<T>);
      sum_ = bytes_of(rounded);
    });
  }

  const std::vector<std::byte>& part(int rank) const { return parts_[static_cast<size_t>(rank)]; }

  // Throws Error for a wrong one. exact: of own kernels, bit by bit; NCCL's may be rounded at each
  // rank, in any order.
  void verify(const std::vector<std::byte>& found, bool exact, const std::string& what) const {
    if (found == sum_) {
      return;
    }
    require(!exact, "{}: wrong sum: other bits than in f32 in the order of the ranks", what);
    visit_float(dtype_, [&]<class T>(T) {
      const double epsilon = std::ldexp(1.0, sizeof(T) == 4 ? -23 : -7);
      for (size_t i = 0; i < magnitudes_.size(); ++i) {
        T value{};
        T right{};
        std::memcpy(&value, found.data() + i * sizeof(T), sizeof(T));
        std::memcpy(&right, sum_.data() + i * sizeof(T), sizeof(T));
        const double error = std::abs(double{to_float(value)} - double{to_float(right)});
        const double tolerance =
            epsilon * static_cast<double>(parts_.size()) * static_cast<double>(magnitudes_[i]);
        require(error <= tolerance, "{}: wrong sum: element {} is {} instead of {}", what, i,
                to_float(value), to_float(right));
      }
    });
  }

 private:
  template <class T>
  static std::vector<std::byte> bytes_of(const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }

  DType dtype_;
  int64_t count_;
  std::vector<std::vector<std::byte>> parts_;
  std::vector<std::byte> sum_;
  std::vector<float> magnitudes_;  // sums of absolute values
};

// One rank, in its thread. All memory is there from the beginning: to allocate and to free may wait
// for kernels of others, which wait for this rank. So ranks meet before and after all that may.
class CommBenchRank {
 public:
  CommBenchRank(const CommBenchOptions& options, Device device, std::unique_ptr<Communicator> host)
      : options_(options),
        device_(device),
        largest_(*std::max_element(options.bytes.begin(), options.bytes.end())),
        memory_(device, largest_, "the operands"),
        cuda_(device),
        workspace_(device, 1),
        threads_(1),
        host_(std::move(host)),
        comm_(make_cuda_communicator(*host_, cuda_, comm_options(options))),
        ctx_{.device = device, .workspace = workspace_, .threads = threads_, .cuda = &cuda_} {
    ctx_.comm = comm_.get();
  }

  // on_result: on rank 0.
  void bench(const std::function<void(const CommResult&)>& on_result) {
    for (const int64_t bytes : options_.bytes) {
      const CommOperands operands(options_, bytes);
      for (const CommBenchWay& way : options_.ways) {
        if (comm_->rank() == 0) {
          throw_if_interrupted();
        }
        const CommResult result = measure(bytes, way, operands);
        if (comm_->rank() == 0) {
          on_result(result);
        }
      }
    }
  }

  void abort(std::string_view reason) noexcept { comm_->abort(reason); }

 private:
  static CudaCommOptions comm_options(const CommBenchOptions& options) {
    const bool nccl = std::find(options.ways.begin(), options.ways.end(),
                                CommBenchWay(CommWay::nccl)) != options.ways.end();
    return {.nccl = nccl ? CudaCommOptions::Nccl::also : CudaCommOptions::Nccl::if_needed};
  }

  CommResult measure(int64_t bytes, const CommBenchWay& way, const CommOperands& operands) {
    CommResult result{.bytes = bytes, .way = name_of(way)};
    if (way && !comm_->has(*way)) {
      result.note = *way == CommWay::nccl ? comm_->why_no_nccl() : comm_->why_no_own_kernels();
      return result;
    }
    comm_->use_only(way);
    const CommWay taken = comm_->way_of(bytes);
    result.taken = name_of(taken);
    const Tensor y(memory_.data(), options_.dtype, {1, bytes / size_of(options_.dtype)}, device_);
    const std::string what = fmt::format("all-reduce of {} bytes, {}", bytes, name_of(taken));
    verify(y, operands, taken, what);
    meet();
    std::vector<double> seconds;
    {
      const CudaGraph chain(cuda_, [&] { all_reduce(y, options_.calls); });
      meet();
      fill(y, std::vector<std::byte>(static_cast<size_t>(bytes)));  // zeros stay zeros
      seconds = replay(chain);
      meet();
    }
    verify(y, operands, taken, what);
    meet();
    result.us = slowest(seconds);
    result.measured = true;
    return result;
  }

  void all_reduce(const Tensor& y, int64_t calls) {
    for (int64_t i = 0; i < calls; ++i) {
      comm_->all_reduce_sum(y, ctx_);
    }
  }

  // After what was enqueued.
  void meet() {
    cuda_.synchronize();
    comm_->check();
    comm_->agree({});
  }

  void fill(const Tensor& y, const std::vector<std::byte>& bytes) {
    cuda_.copy(y.raw(), bytes.data(), y.bytes());
  }

  void verify(const Tensor& y, const CommOperands& operands, CommWay taken,
              const std::string& what) {
    for (int64_t i = 0; i < kVerifiedCalls; ++i) {
      fill(y, operands.part(comm_->rank()));
      all_reduce(y, 1);
      std::vector<std::byte> found(static_cast<size_t>(y.bytes()));
      cuda_.copy(found.data(), y.raw(), y.bytes());
      comm_->check();
      operands.verify(found, taken != CommWay::nccl, what);
    }
  }

  // Seconds of a call in each replay; a replay is counted from the end of the one before.
  std::vector<double> replay(const CudaGraph& chain) {
    std::vector<CudaEvent> ends;
    for (int64_t i = 0; i <= options_.repeat; ++i) {
      ends.emplace_back(cuda_, CudaEvent::Timing::yes);
    }
    meet();
    for (int64_t i = 0; i < kWarmUp; ++i) {
      chain.launch();
    }
    ends.front().record();
    for (size_t i = 1; i < ends.size(); ++i) {
      chain.launch();
      ends[i].record();
    }
    ends.back().synchronize();
    comm_->check();
    std::vector<double> seconds;
    for (size_t i = 1; i < ends.size(); ++i) {
      seconds.push_back(ends[i].seconds_since(ends[i - 1]) / static_cast<double>(options_.calls));
    }
    return seconds;
  }

  // On rank 0.
  Spread slowest(const std::vector<double>& seconds) {
    const auto all = comm_->gather_bytes(std::as_bytes(std::span(seconds)));
    if (all.empty()) {
      return {};
    }
    std::vector<double> most(seconds.size());
    for (const std::vector<std::byte>& one : all) {
      std::vector<double> theirs(seconds.size());
      std::memcpy(theirs.data(), one.data(), theirs.size() * sizeof(double));
      for (size_t i = 0; i < most.size(); ++i) {
        most[i] = std::max(most[i], theirs[i]);
      }
    }
    return scaled(spread_of(most), kMicroseconds);
  }

  const CommBenchOptions& options_;
  Device device_;
  int64_t largest_;
  Buffer memory_;
  CudaContext cuda_;
  Workspace workspace_;
  ThreadPool threads_;
  std::unique_ptr<Communicator> host_;
  std::unique_ptr<CudaCommunicator> comm_;
  ExecContext ctx_;
};

// What the first rank threw that threw anything.
class FirstError {
 public:
  void set(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) {
      error_ = std::move(error);
    }
  }
  void rethrow() const {
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

std::vector<CommBenchWay> all_comm_ways() {
  std::vector<CommBenchWay> ways(kCommWays.begin(), kCommWays.end());
  ways.emplace_back();
  return ways;
}

std::string name_of(const CommBenchWay& way) { return way ? std::string(name_of(*way)) : "chosen"; }

void check_options(const CommBenchOptions& options) {
  require(is_floating(options.dtype), "ranks do not add up {}", name_of(options.dtype));
  require(options.repeat > 0 && options.calls > 0, "{} replays of {} calls have no median",
          options.repeat, options.calls);
  require(!options.bytes.empty() && !options.ways.empty(), "there is nothing to measure");
  for (const int64_t bytes : options.bytes) {
    require(bytes > 0 && bytes % size_of(options.dtype) == 0,
            "{} bytes are no whole number of elements in {}", bytes, name_of(options.dtype));
  }
}

void check_comm_devices(const CommBenchOptions& options) {
  const int ranks = static_cast<int>(options.devices.size());
  const int gpus = cuda_device_count();
  require(gpus >= ranks, "{} ranks need {} GPUs, there {} {}", ranks, ranks,
          gpus == 1 ? "is" : "are", gpus);
  std::set<int> seen;
  for (const Device device : options.devices) {
    require(device.is_cuda(), "ranks need GPUs, and {} is none", to_string(device));
    check_device(device);
    require(seen.insert(device.index).second, "{} is there for two ranks", to_string(device));
  }
}

void bench_comm(const CommBenchOptions& options,
                const std::function<void(const CommResult&)>& on_result) {
  check_options(options);
  check_comm_devices(options);
  std::vector<std::string> names;
  for (const Device device : options.devices) {
    names.push_back(to_string(device));
  }
  auto hosts = make_thread_communicators(static_cast<int>(names.size()), {.devices = names});
  FirstError first;
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < hosts.size(); ++i) {
    ranks.emplace_back([&, i] {
      std::unique_ptr<CommBenchRank> rank;
      try {
        rank = std::make_unique<CommBenchRank>(options, options.devices[i], std::move(hosts[i]));
        rank->bench(on_result);
      } catch (const std::exception& error) {
        first.set(std::current_exception());
        if (rank != nullptr) {
          rank->abort(error.what());
        }
      } catch (...) {
        first.set(std::current_exception());
        if (rank != nullptr) {
          rank->abort("interrupted");
        }
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  first.rethrow();
}

std::vector<Column> comm_columns() {
  using Kind = Column::Kind;
  return {
      {.key = "ranks", .title = "ranks"},
      {.key = "bytes", .title = "message", .unit = "bytes"},
      {.key = "way", .title = "way", .kind = Kind::text},
      {.key = "taken", .title = "taken", .kind = Kind::text},
      {.key = "time_us", .title = "time", .unit = "us", .kind = Kind::spread, .decimals = 2},
      {.key = "gb_per_s", .title = "message/time", .unit = "GB/s", .decimals = 1},
      {.key = "note", .title = "note", .kind = Kind::text},
  };
}

Row comm_row(const CommResult& result, int ranks) {
  constexpr double kGbPerMicrosecond = 1e-3;  // bytes in a microsecond
  return {int64_t{ranks},
          result.bytes,
          result.way,
          result.taken,
          result.measured ? Cell(result.us) : Cell(),
          result.measured
              ? known_cell(static_cast<double>(result.bytes) / result.us.median * kGbPerMicrosecond)
              : Cell(),
          result.note};
}

void report_comm(const CommBenchOptions& options, ReportWriter& report) {
  report.begin_table("comm", comm_columns());
  const int ranks = static_cast<int>(options.devices.size());
  bench_comm(options, [&](const CommResult& result) { report.add_row(comm_row(result, ranks)); });
}

}  // namespace sparsellm
