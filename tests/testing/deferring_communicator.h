#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/comm.h"
#include "kernels/base/error.h"
#include "tests/testing/tensor_values.h"

namespace sparsellm::testing {

// A communicator of the CPU that defers sums: it makes them when they end, and looks whether what
// is summed has stayed as it was.
class DeferringCommunicator : public Communicator {
 public:
  explicit DeferringCommunicator(Communicator& other)
      : Communicator(other.rank(), other.devices()), other_(other) {}

  int64_t deferred() const { return deferred_; }

  bool can_defer(const Tensor&, const ExecContext&) const override { return true; }
  void abort_by(int culprit, std::string_view reason) noexcept override {
    other_.abort_by(culprit, reason);
  }
  std::optional<std::string> abort_reason() const override { return other_.abort_reason(); }

 private:
  struct Sum {
    const void* y;
    std::vector<double> values;
  };

  void begin_sum(const Tensor& y, ExecContext&) override {
    require(under_way_.size() < 2, "more than two sums are under way");
    under_way_.push_back({y.raw(), values_of(y)});
    ++deferred_;
  }
  void end_sum(const Tensor& y, ExecContext& ctx) override {
    require(!under_way_.empty() && under_way_.front().y == y.raw(), "another sum is under way");
    require(under_way_.front().values == values_of(y), "a part of a sum under way has changed");
    under_way_.pop_front();
    other_.all_reduce_sum(y, ctx);
  }
  void all_reduce_sum_checked(Tensor y, ExecContext& ctx) override {
    require(under_way_.empty(), "a sum is under way");
    other_.all_reduce_sum(y, ctx);
  }
  void all_gather_checked(const Tensor& part, std::span<const int64_t> borders, Tensor whole,
                          ExecContext& ctx) override {
    require(under_way_.empty(), "a sum is under way");
    other_.all_gather(part, borders, whole, ctx);
  }
  void broadcast_checked(Tensor y, int root, ExecContext& ctx) override {
    other_.broadcast(y, root, ctx);
  }
  void broadcast_bytes_checked(std::vector<std::byte>& bytes, int root,
                               Patience patience) override {
    other_.broadcast_bytes(bytes, root, patience);
  }
  std::vector<std::vector<std::byte>> gather_bytes_checked(std::span<const std::byte> bytes,
                                                           Patience patience) override {
    return other_.gather_bytes(bytes, patience);
  }

  Communicator& other_;
  std::deque<Sum> under_way_;
  int64_t deferred_ = 0;
};

}  // namespace sparsellm::testing
