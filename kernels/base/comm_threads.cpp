#include "kernels/base/comm_threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/base/comm_op.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

using std::chrono::steady_clock;

// What a rank shows the others during an operation; they read it, and the tensor's memory, between
// Meeting::begin() and Meeting::finish().
struct Shown {
  Tensor tensor = {};
  std::span<const std::byte> bytes = {};
};

// Where the ranks of a process wait for each other.
class Meeting {
 public:
  Meeting(std::vector<std::string> devices, std::chrono::milliseconds timeout)
      : devices_(std::move(devices)),
        timeout_(timeout),
        ranks_(devices_.size()),
        begun_(ranks_, false),
        left_(ranks_, false),
        ops_(ranks_),
        shown_(ranks_),
        met_(ranks_) {}

  const std::vector<std::string>& devices() const { return devices_; }
  size_t ranks() const { return ranks_; }

  // All ranks have come, with the same operation; their `shown` can be read. Throws if it came to
  // nothing: then no rank reads anything.
  void begin(size_t rank, const CommOp& op, const Shown& shown, Patience patience) {
    std::unique_lock lock(mutex_);
    throw_if_ended();
    begun_[rank] = true;
    ops_[rank] = op;
    shown_[rank] = shown;
    for (size_t other = 0; other < ranks_; ++other) {
      if (left_[other]) {
        end_locked(other, "has left");
        throw_if_ended();
      }
    }
    if (++begun_count_ == ranks_) {
      compare_ops();
      begun_count_ = 0;
      std::fill(begun_.begin(), begun_.end(), false);
      inside_ = ranks_;
      changed_.notify_all();
      return;
    }
    const auto done = [&] { return !begun_[rank] || ended(); };
    if (patience == Patience::while_alive) {
      changed_.wait(lock, done);
    } else if (!changed_.wait_until(lock, steady_clock::now() + timeout_, done)) {
      const auto missing = std::find(begun_.begin(), begun_.end(), false);
      end_locked(static_cast<size_t>(missing - begun_.begin()),
                 "did not come within " + seconds_text(timeout_));
    }
    if (begun_[rank]) {  // else all have come, and count on each other, whatever has ended since
      throw_if_ended();
    }
  }

  // All ranks are done with what the others have shown. There is no way out of here: who began only
  // computes, and comes.
  void finish(size_t rank) {
    std::unique_lock lock(mutex_);
    if (--inside_ == 0) {
      changed_.notify_all();
    } else {
      changed_.wait(lock, [this] { return inside_ == 0; });
    }
    shown_[rank] = {};
  }

  const Shown& shown(size_t rank) const { return shown_[rank]; }

  // Returns when all ranks have called this as often as this one.
  void meet(size_t rank) {
    const uint64_t turn = met_[rank].fetch_add(1, std::memory_order_acq_rel) + 1;
    std::optional<steady_clock::time_point> deadline;
    for (size_t other = 0; other < ranks_; ++other) {
      for (uint32_t polls = 1; met_[other].load(std::memory_order_acquire) < turn; ++polls) {
        constexpr uint32_t kPolls = 1024;  // some microseconds
        if (polls % kPolls == 0) {
          const auto now = steady_clock::now();
          deadline = deadline.value_or(now + timeout_);
          look(other, now > *deadline);
          std::this_thread::yield();
        }
      }
    }
  }

  void end(size_t culprit, std::string_view reason) noexcept {
    const std::lock_guard lock(mutex_);
    end_locked(culprit, reason);
  }

  std::optional<std::string> reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

  void leave(size_t rank) noexcept {
    const std::lock_guard lock(mutex_);
    left_[rank] = true;
    if (begun_count_ > 0) {
      end_locked(rank, "has left");
    }
  }

 private:
  // Throws if this rank will not come, or is late.
  void look(size_t other, bool late) {
    const std::lock_guard lock(mutex_);
    if (left_[other]) {
      end_locked(other, "has left");
    } else if (late) {
      end_locked(other, "did not come within " + seconds_text(timeout_));
    }
    throw_if_ended();
  }

  bool ended() const { return reason_.has_value(); }

  void throw_if_ended() const {
    if (ended()) {
      throw Error(*reason_);
    }
  }

  void end_locked(size_t culprit, std::string_view reason) noexcept {
    if (!ended()) {
      reason_ = reason_text(names_[culprit], reason);
      changed_.notify_all();
    }
  }

  void compare_ops() {
    for (size_t rank = 1; rank < ranks_; ++rank) {
      if (ops_[rank] != ops_[0]) {
        end_locked(rank, fmt::format("is at {}, while rank 0 is at {}", to_string(ops_[rank]),
                                     to_string(ops_[0])));
        throw_if_ended();
      }
    }
  }

  static std::vector<std::string> names_of(const std::vector<std::string>& devices) {
    std::vector<std::string> names;
    names.reserve(devices.size());
    for (const std::string& device : devices) {
      names.push_back(name_of_rank(static_cast<int>(names.size()), device));
    }
    return names;
  }

  const std::vector<std::string> devices_;
  const std::vector<std::string> names_ = names_of(devices_);  // "rank 0 (cpu)"
  const std::chrono::milliseconds timeout_;
  const size_t ranks_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> reason_;  // why all has ended
  std::vector<bool> begun_;            // who waits for the others
  std::vector<bool> left_;
  size_t begun_count_ = 0;
  size_t inside_ = 0;  // ranks between begin() and finish()
  std::vector<CommOp> ops_;
  std::vector<Shown> shown_;
  std::vector<std::atomic<uint64_t>> met_;  // how often each rank has called meet()
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(int rank, std::shared_ptr<Meeting> meeting)
      : Communicator(rank, meeting->devices()), meeting_(std::move(meeting)) {}
  ~ThreadCommunicator() override { meeting_->leave(own()); }

  void abort_by(int culprit, std::string_view reason) noexcept override {
    meeting_->end(static_cast<size_t>(culprit), reason);
  }
  std::optional<std::string> abort_reason() const override { return meeting_->reason(); }
  void meet() override { meeting_->meet(own()); }

 private:
  size_t own() const { return static_cast<size_t>(rank()); }
  Tensor tensor_of(size_t rank) const { return meeting_->shown(rank).tensor; }

  // `body` sees what all ranks show.
  template <class Body>
  void together(const CommOp& op, const Shown& shown, Patience patience, Body&& body) {
    meeting_->begin(own(), op, shown, patience);
    try {
      body();
    } catch (const std::exception& error) {
      abort(error.what());
      meeting_->finish(own());
      throw;
    }
    meeting_->finish(own());
  }

  // This rank adds up its share of the elements and writes the sum to the tensors of all.
  void all_reduce_sum_checked(Tensor y, ExecContext&) override {
    std::vector<const float*> parts(meeting_->ranks());
    const auto add_share = [&] {
      const int64_t columns = y.row_size();
      const int64_t elements = y.element_count();
      const int64_t end = elements * (rank() + 1) / size();
      for (int64_t at = elements * rank() / size(); at < end;) {
        const int64_t row = at / columns;
        const int64_t column = at % columns;
        const int64_t count = std::min(columns - column, end - at);
        for (size_t i = 0; i < parts.size(); ++i) {
          parts[i] = tensor_of(i).row<float>(row) + column;
        }
        float* const sum = y.row<float>(row) + column;
        sum_in_rank_order(parts, count, sum);
        for (size_t i = 0; i < parts.size(); ++i) {
          if (i != own()) {
            std::copy_n(sum, count, tensor_of(i).row<float>(row) + column);
          }
        }
        at += count;
      }
    };
    together(op_of(CommKind::all_reduce_sum, y), {.tensor = y}, Patience::timeout, add_share);
  }

  void all_gather_checked(const Tensor& part, std::span<const int64_t> borders, Tensor whole,
                          ExecContext&) override {
    together(op_of(CommKind::all_gather, whole), {.tensor = part}, Patience::timeout, [&] {
      for (size_t i = 0; i < meeting_->ranks(); ++i) {
        const int64_t columns = borders[i + 1] - borders[i];
        const Tensor from = tensor_of(i);
        require(from.size(1) == columns, "all_gather: {} has {} columns, and borders of {} to {}",
                name(static_cast<int>(i)), from.size(1), borders[i], borders[i + 1]);
        copy_rows(from, whole.columns(borders[i], columns));
      }
    });
  }

  void broadcast_checked(Tensor y, int root, ExecContext&) override {
    together(op_of(CommKind::broadcast, y, root), {.tensor = y}, Patience::timeout, [&] {
      copy_rows(tensor_of(static_cast<size_t>(root)), y);  // nothing to do on the root
    });
  }

  void broadcast_bytes_checked(std::vector<std::byte>& bytes, int root,
                               Patience patience) override {
    together({CommKind::broadcast_bytes, root}, {.bytes = bytes}, patience, [&] {
      if (rank() != root) {
        const std::span<const std::byte> from = meeting_->shown(static_cast<size_t>(root)).bytes;
        bytes.assign(from.begin(), from.end());
      }
    });
  }

  std::vector<std::vector<std::byte>> gather_bytes_checked(std::span<const std::byte> bytes,
                                                           Patience patience) override {
    std::vector<std::vector<std::byte>> all;
    together({CommKind::gather_bytes}, {.bytes = bytes}, patience, [&] {
      for (size_t i = 0; i < meeting_->ranks() && rank() == 0; ++i) {
        const std::span<const std::byte> from = meeting_->shown(i).bytes;
        all.emplace_back(from.begin(), from.end());
      }
    });
    return all;
  }

  const std::shared_ptr<Meeting> meeting_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int ranks,
                                                                     ThreadCommOptions options) {
  require(ranks > 0, "{} ranks", ranks);
  if (options.devices.empty()) {
    options.devices.assign(static_cast<size_t>(ranks), "cpu");
  }
  require(std::ssize(options.devices) == ranks, "{} names of devices for {} ranks",
          std::ssize(options.devices), ranks);
  const auto meeting = std::make_shared<Meeting>(std::move(options.devices), options.timeout);
  std::vector<std::unique_ptr<Communicator>> communicators;
  communicators.reserve(meeting->ranks());
  for (int rank = 0; rank < ranks; ++rank) {
    communicators.push_back(std::make_unique<ThreadCommunicator>(rank, meeting));
  }
  return communicators;
}

}  // namespace sparsellm
