#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/comm_cuda.h"
#include "kernels/base/comm_deferred.h"
#include "kernels/base/comm_peers.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/cuda_state.cuh"
#include "kernels/base/error.h"
#include "kernels/base/nccl_tensors.h"
#include "kernels/base/pinned_buffer.h"

namespace sparsellm {
namespace {

using Clock = std::chrono::steady_clock;

// How soon a rank's kernels hear that everything has ended.
constexpr std::chrono::milliseconds kWatch{10};

class CudaRank final : public CudaCommunicator {
 public:
  CudaRank(Communicator& host, const CudaContext& cuda, const CudaCommOptions& options)
      : CudaCommunicator(host.rank(), host.devices()),
        host_(host),
        cuda_(cuda),
        limits_(options.limits.value_or(CommLimits::of(size()))),
        timeout_(options.timeout),
        hosts_meet_(options.hosts_meet),
        exceptions_(std::uncaught_exceptions()) {
    if (size() == 1) {
      return;
    }
    connect(options);
    watch_ = std::thread([this] { watch(); });
  }

  ~CudaRank() override {
    if (!watch_.joinable()) {
      return;
    }
    if (std::uncaught_exceptions() > exceptions_) {
      abort("has left");  // its caller has said why, unless it had nothing to say
    }
    cudaSetDevice(cuda_.state().device.index);
    cuda_.wait();
    {
      const std::lock_guard lock(mutex_);
      leaves_ = true;
    }
    changed_.notify_all();
    watch_.join();
    nccl_.reset();
    deferred_.reset();
    peers_.reset();
  }

  void abort_by(int culprit, std::string_view reason) noexcept override {
    host_.abort_by(culprit, reason);
    end_kernels();
  }
  std::optional<std::string> abort_reason() const override { return host_.abort_reason(); }

  bool has(CommWay way) const override {
    return size() > 1 && (way == CommWay::nccl ? nccl_ != nullptr : peers_ != nullptr);
  }
  CommWay way_of(int64_t bytes) const override {
    if (only_) {
      return *only_;
    }
    if (peers_ == nullptr) {
      return CommWay::nccl;
    }
    const CommWay way = limits_.way(bytes);
    return has(way) ? way : without_nccl().way(bytes);
  }
  void use_only(std::optional<CommWay> way) override {
    require(!way || has(*way), "there is no {} between these ranks", name_of(*way));
    only_ = way;
  }
  bool can_defer(const Tensor& y, const ExecContext& ctx) const override {
    return deferred_ != nullptr && !only_ && DeferredCopies::takes(peers_->world(), y) &&
           !is_capturing(ctx);
  }
  std::string why_no_own_kernels() const override { return why_no_own_kernels_; }
  std::string why_no_nccl() const override { return why_no_nccl_; }
  void launch_together(const std::function<void()>& launch) override {
    check();
    between_meetings(launch);
  }

 private:
  void connect(const CudaCommOptions& options) {
    const Device device = cuda_.state().device;
    std::string problem;
    try {
      abort_word_ = PinnedBuffer(sizeof(uint32_t), "communication");
      word().store(0);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    host_.agree(problem, Patience::while_alive);
    if (options.own_kernels) {
      peers_ = CommPeers::make(host_, device, reinterpret_cast<const uint32_t*>(abort_word_.data()),
                               options.max_blocks, why_no_own_kernels_);
    } else {
      why_no_own_kernels_ = "own kernels are not wanted";
    }
    if (peers_ == nullptr || options.nccl == CudaCommOptions::Nccl::also) {
      why_no_nccl_ = first_of_ranks(host_, NcclRank::why_not());
      require(peers_ != nullptr || why_no_nccl_.empty(), "{}, and {}", why_no_own_kernels_,
              why_no_nccl_);
      if (why_no_nccl_.empty()) {
        nccl_ = std::make_unique<NcclTensors>(host_, device);
      }
    }
    if (peers_ != nullptr && peers_->world().layout.deferred_bytes > 0) {
      try {
        deferred_ = std::make_unique<DeferredCopies>(peers_->world(), cuda_);
      } catch (const std::exception& error) {
        problem = error.what();
      }
    }
    host_.agree(problem, Patience::while_alive);
  }

  std::atomic_ref<uint32_t> word() const {
    return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(abort_word_.data()));
  }

  // The reason is there already: who sees that a kernel has ended without a result finds it.
  void end_kernels() noexcept {
    if (abort_word_.data() != nullptr) {
      word().store(1, std::memory_order_release);
    }
  }

  // Hears that everything has ended, here or on another rank, and tells what runs on the device.
  void watch() {
    std::optional<Clock::time_point> ended;
    std::unique_lock lock(mutex_);
    while (!leaves_) {
      lock.unlock();
      if (!ended && look()) {
        ended = Clock::now();
      }
      if (ended && waits_for() > kGrace && Clock::now() - *ended > kGrace) {
        end_process();
      }
      lock.lock();
      changed_.wait_for(lock, kWatch, [this] { return leaves_; });
    }
  }

  // Whether everything has ended.
  bool look() noexcept {
    try {
      const std::string problem = nccl_ != nullptr ? nccl_->problem() : std::string();
      if (!problem.empty()) {
        host_.abort(problem);
      }
      if (waits_for() > timeout_) {
        host_.abort(fmt::format("has waited for its device, or for those of the others, for {} s",
                                std::chrono::duration<double>(timeout_).count()));
      }
      if (!host_.abort_reason()) {
        return false;
      }
    } catch (...) {
      return false;  // for want of memory: it looks again
    }
    end_kernels();
    if (nccl_ != nullptr) {
      nccl_->abort();
    }
    return true;
  }

  // How long the rank has been in a DeviceWait.
  Clock::duration waits_for() const {
    const Clock::rep since = waits_since_.load(std::memory_order_relaxed);
    return since == 0 ? Clock::duration::zero()
                      : Clock::now().time_since_epoch() - Clock::duration(since);
  }
  void begin_wait() noexcept override {
    waits_since_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }
  void end_wait() noexcept override { waits_since_.store(0, std::memory_order_relaxed); }

  [[noreturn]] void end_process() const {
    const std::string reason = host_.abort_reason().value_or("");
    std::fprintf(stderr, "error: %s; %s does not end what it computes\n", reason.c_str(),
                 name(rank()).c_str());
    std::_Exit(1);
  }

  CommLimits without_nccl() const {
    CommLimits limits = limits_;
    limits.nccl_from = CommLimits::kNever;
    return limits;
  }

  // Own kernels add up in the same order for all sizes, and can be captured on all GPUs of a
  // process.
  CommWay way_here(int64_t bytes, const ExecContext& ctx) const {
    const CommWay way = way_of(bytes);
    const bool own = peers_ != nullptr && !only_ && way == CommWay::nccl &&
                     (ctx.sums == Sums::batch_invariant || is_capturing(ctx));
    return own ? without_nccl().way(bytes) : way;
  }

  void begin(const ExecContext& ctx) const {
    require(ctx.cuda == &cuda_, "a communicator is used with another CUDA context");
    check();
  }

  CommPeers::Form form_of(int64_t bytes) const {
    return limits_.sends_packets(bytes) ? CommPeers::Form::packets : CommPeers::Form::tiles;
  }

  void meet() override {
    if (hosts_meet_) {
      host_.meet();
    }
  }

  template <class Enqueue>
  void between_meetings(Enqueue&& enqueue) {
    meet();
    enqueue();
    meet();
  }

  // Enqueues an op whose kernels wait for those of the other ranks.
  template <class Enqueue>
  void together(const ExecContext& ctx, Enqueue&& enqueue) {
    begin(ctx);
    if (is_capturing(ctx)) {
      enqueue();
    } else {
      between_meetings(enqueue);
    }
  }

  void all_reduce_sum_checked(Tensor y, ExecContext& ctx) override {
    together(ctx, [&] {
      const CommWay way = way_here(y.bytes(), ctx);
      if (way == CommWay::nccl) {
        nccl_->all_reduce_sum(y, ctx);
      } else {
        peers_->all_reduce_sum(way, y, ctx);
      }
    });
  }

  void begin_sum(const Tensor& y, ExecContext& ctx) override {
    begin(ctx);
    deferred_->begin(y, ctx);
  }
  void end_sum(const Tensor& y, ExecContext& ctx) override {
    begin(ctx);
    meet();  // the others have begun it
    deferred_->end(y, ctx);
  }

  void all_gather_checked(const Tensor& part, std::span<const int64_t> borders, Tensor whole,
                          ExecContext& ctx) override {
    begin(ctx);
    if (size() == 1) {
      copy_rows_cuda(part, whole, ctx);
      return;
    }
    std::vector<Tensor> places;
    int64_t most = 0;
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      places.push_back(whole.columns(borders[i], borders[i + 1] - borders[i]));
      most = std::max(most, places.back().bytes());
    }
    together(ctx, [&] {
      if (peers_ != nullptr) {
        peers_->all_gather(form_of(most), part, places, ctx);
      } else {
        nccl_->all_gather(part, places, ctx);
      }
    });
  }

  void broadcast_checked(Tensor y, int root, ExecContext& ctx) override {
    together(ctx, [&] {
      if (peers_ != nullptr) {
        peers_->broadcast(form_of(y.bytes()), y, root, ctx);
      } else {
        nccl_->broadcast(y, root, ctx);
      }
    });
  }

  void broadcast_bytes_checked(std::vector<std::byte>& bytes, int root,
                               Patience patience) override {
    host_.broadcast_bytes(bytes, root, patience);
  }
  std::vector<std::vector<std::byte>> gather_bytes_checked(std::span<const std::byte> bytes,
                                                           Patience patience) override {
    return host_.gather_bytes(bytes, patience);
  }

  Communicator& host_;
  const CudaContext& cuda_;
  CommLimits limits_;
  const std::chrono::milliseconds timeout_;
  const bool hosts_meet_;
  std::optional<CommWay> only_;
  const int exceptions_;  // that were on their way when it was made

  PinnedBuffer abort_word_;
  std::unique_ptr<CommPeers> peers_;  // none: no own kernels
  std::unique_ptr<DeferredCopies> deferred_;
  std::unique_ptr<NcclTensors> nccl_;
  std::string why_no_own_kernels_;
  std::string why_no_nccl_;

  std::atomic<Clock::rep> waits_since_{0};  // 0: it does not wait

  std::mutex mutex_;  // of leaves_
  std::condition_variable changed_;
  bool leaves_ = false;
  std::thread watch_;
};

}  // namespace

std::unique_ptr<CudaCommunicator> make_cuda_communicator(Communicator& host,
                                                         const CudaContext& cuda,
                                                         const CudaCommOptions& options) {
  cuda.make_current();
  return std::make_unique<CudaRank>(host, cuda, options);
}

}  // namespace sparsellm
