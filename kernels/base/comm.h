#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// How long an operation of the host waits for the other ranks.
enum class Patience : uint8_t {
  timeout,      // as long as the communicator was made for (--comm-timeout)
  while_alive,  // until all have come, or one dies or aborts: for what takes one rank minutes and
                // another none (loading, tuning)
};

// How the ranks of a model that is split over several devices talk to each other (tensor parallel).
// Rank r of size() has one device; its thread, or process, has this object, and the others have
// theirs.
//
// All ranks call the same operations in the same order, with the same sizes. Where an
// implementation sees that they did not, all throw an Error that says which rank is where. Only one
// thread of a rank calls operations at a time; abort() and abort_reason() may be called by any
// thread at any time.
//
// Operations on tensors are ops: on CUDA they are enqueued in the queue of the context, can be
// captured in a graph, and wait for nothing on the host, unless ranks meet there (meet()). On the
// CPU they are complete on return. With one rank they do nothing but what all_gather copies.
// Operations of the host block.
//
// Failure: whatever goes wrong on one rank (an exception and abort(), a process that ends, a
// connection that closes, a rank that does not come in time) ends the communicator for all of them:
// who waits, and who comes later, throws an Error of one line that begins with the rank where it
// began: "rank 1 (cuda:1): out of memory". On CUDA an op that is enqueued may then end without a
// result: callers look at check() after they waited for the device and before they use what it
// computed. There is no way on from there but to destroy the object. Only agree() may throw and
// leave everything in order.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(devices_.size()); }
  // "rank 1 (cuda:1)", for messages.
  std::string name(int rank) const;
  const std::vector<std::string>& devices() const { return devices_; }

  // y becomes the sum of the y of all ranks, in place: in f32 and in the order of the ranks,
  // ((y_0 + y_1) + y_2) + ..., then rounded once to the dtype of y, to the same bits on every rank.
  //   y  f32, f16 or bf16, any shape, rows may be strided; on the CPU f32
  void all_reduce_sum(Tensor y, ExecContext& ctx);

  // Deferred sums, which overlap with other work. While a Deferral lives, all_reduce_sum() only
  // begins a sum, and finish_sum() of the same tensor completes it. Sums are completed in the order
  // in which they began. At most two have begun and are not yet complete, and none when the
  // Deferral ends. The tensor is not read or written between the two calls. Deferring a sum does
  // not change its bits. With nullptr nothing is deferred.
  class Deferral {
   public:
    explicit Deferral(Communicator* comm) : comm_(comm) { set(true); }
    ~Deferral() { set(false); }
    Deferral(const Deferral&) = delete;
    Deferral& operator=(const Deferral&) = delete;

   private:
    void set(bool defers) {
      if (comm_ != nullptr) {
        comm_->defers_sums_ = defers;
      }
    }
    Communicator* comm_;
  };
  // Whether sums of tensors of this shape may be deferred; the same on all ranks. False while a
  // graph is captured.
  virtual bool can_defer(const Tensor& y, const ExecContext& ctx) const;
  bool defers_sums() const { return defers_sums_; }
  void finish_sum(Tensor y, ExecContext& ctx);

  // For measurements: sums are left out from now on, and what would be y stays as it is. On all
  // ranks.
  void leave_out_sums() { leaves_out_sums_ = true; }

  // Joins the columns that the ranks have, for example their shares of the logits:
  //   part     f32 [tokens, borders[rank + 1] - borders[rank]], of this rank, rows may be strided
  //   borders  size() + 1 of them, from 0 to `columns`, ascending: rank r has the columns
  //            [borders[r], borders[r + 1]), as many as it likes, or none; the same on all ranks
  //   whole    f32 [tokens, columns], complete on every rank afterwards, rows may be strided
  // `part` may be the columns of `whole` where it belongs; else they do not overlap.
  void all_gather(const Tensor& part, std::span<const int64_t> borders, Tensor whole,
                  ExecContext& ctx);

  // y of all ranks becomes that of `root`. Any dtype and shape, rows may be strided.
  void broadcast(Tensor y, int root, ExecContext& ctx);

  // `bytes` of all ranks becomes what `root` has, of which alone the size matters before; at most
  // kMaxBytes.
  static constexpr int64_t kMaxBytes = int64_t{1} << 28;
  void broadcast_bytes(std::vector<std::byte>& bytes, int root,
                       Patience patience = Patience::timeout);

  // On rank 0 the bytes of all ranks, in their order; elsewhere nothing. Each has any number up to
  // kMaxBytes.
  std::vector<std::vector<std::byte>> gather_bytes(std::span<const std::byte> bytes,
                                                   Patience patience = Patience::timeout);

  // All ranks meet, each with what went wrong there, or with nothing. If something did, all throw
  // the same Error with the name and the cause of the first such rank: "rank 1 (cuda:1): ...".
  // Afterwards the ranks are still in step, and may go on.
  void agree(std::string_view error, Patience patience = Patience::timeout);

  // For ranks that are threads of one process: waits, spinning, until all ranks have called it. For
  // processes it returns at once.
  //
  // Such threads share locks inside of CUDA. A call that loads a kernel or allocates memory may
  // wait until devices are idle, and other threads cannot enqueue anything until it returns. If one
  // of these devices waits for a sum that another thread was about to enqueue, the call never
  // returns. With a meeting before and after each op, all ranks have enqueued an op before any of
  // them makes such a call (CudaCommOptions::hosts_meet).
  virtual void meet() {}

  // Ends everything, for all ranks: "rank R (DEVICE): `reason`". Does not wait. Only the first
  // reason counts, of which at most 1,500 bytes.
  void abort(std::string_view reason) noexcept { abort_by(rank_, reason); }
  // The same where `reason` is about another rank, which did not come, or whose connection closed.
  virtual void abort_by(int culprit, std::string_view reason) noexcept = 0;

  // Why everything has ended, with the name of the rank, if it has. Costs next to nothing: a thread
  // that watches may ask many times a second.
  virtual std::optional<std::string> abort_reason() const = 0;
  // Throws that reason.
  void check() const;

 protected:
  // devices: the name of the device of each rank, "cuda:1" or, of several hosts, "host7 cuda:1".
  Communicator(int rank, std::vector<std::string> devices);

 private:
  // The same after the checks of the arguments; size() may be 1.
  virtual void all_reduce_sum_checked(Tensor y, ExecContext& ctx) = 0;
  // Where can_defer() is not always false.
  virtual void begin_sum(const Tensor& y, ExecContext& ctx);
  virtual void end_sum(const Tensor& y, ExecContext& ctx);
  virtual void all_gather_checked(const Tensor& part, std::span<const int64_t> borders,
                                  Tensor whole, ExecContext& ctx) = 0;
  virtual void broadcast_checked(Tensor y, int root, ExecContext& ctx) = 0;
  virtual void broadcast_bytes_checked(std::vector<std::byte>& bytes, int root,
                                       Patience patience) = 0;
  virtual std::vector<std::vector<std::byte>> gather_bytes_checked(std::span<const std::byte> bytes,
                                                                   Patience patience) = 0;

  int rank_;
  bool leaves_out_sums_ = false;
  bool defers_sums_ = false;
  std::vector<std::string> devices_;
};

}  // namespace sparsellm
