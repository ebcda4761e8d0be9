#include "kernels/base/comm.h"

#include <utility>

#include "kernels/base/comm_op.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

void check_tensor(const char* op, const Tensor& y, const ExecContext& ctx) {
  require(y.rank() > 0, "{}: there is no tensor", op);
  require(y.device() == ctx.device, "{}: the tensor is on {}, the context on {}", op,
          to_string(y.device()), to_string(ctx.device));
}

}  // namespace

Communicator::Communicator(int rank, std::vector<std::string> devices)
    : rank_(rank), devices_(std::move(devices)) {
  require(rank >= 0 && rank < size(), "rank {} of {}", rank, size());
}

std::string Communicator::name(int rank) const {
  return name_of_rank(rank, devices_.at(static_cast<size_t>(rank)));
}

void Communicator::all_reduce_sum(Tensor y, ExecContext& ctx) {
  check_tensor("all_reduce_sum", y, ctx);
  require(y.dtype() == DType::f32 || (ctx.device.is_cuda() && is_floating(y.dtype())),
          "all_reduce_sum: {} on {}", name_of(y.dtype()), to_string(ctx.device));
  if (size() == 1 || y.element_count() == 0 || leaves_out_sums_) {
    return;
  }
  if (defers_sums_) {
    begin_sum(y, ctx);
  } else {
    all_reduce_sum_checked(y, ctx);
  }
}

void Communicator::finish_sum(Tensor y, ExecContext& ctx) {
  check_tensor("finish_sum", y, ctx);
  if (size() > 1 && y.element_count() > 0 && !leaves_out_sums_ && defers_sums_) {
    end_sum(y, ctx);
  }
}

bool Communicator::can_defer(const Tensor&, const ExecContext&) const { return false; }

void Communicator::begin_sum(const Tensor&, ExecContext&) {
  fail("this communicator does not defer sums");
}

void Communicator::end_sum(const Tensor&, ExecContext&) {
  fail("this communicator does not defer sums");
}

void Communicator::all_gather(const Tensor& part, std::span<const int64_t> borders, Tensor whole,
                              ExecContext& ctx) {
  check_tensor("all_gather", part, ctx);
  check_tensor("all_gather", whole, ctx);
  require(part.rank() == 2 && whole.rank() == 2 && part.size(0) == whole.size(0) &&
              part.dtype() == DType::f32 && whole.dtype() == DType::f32,
          "all_gather: from {} {} to {} {}", name_of(part.dtype()), part.shape_string(),
          name_of(whole.dtype()), whole.shape_string());
  require(std::ssize(borders) == size() + 1, "all_gather: {} borders for {} ranks",
          std::ssize(borders), size());
  require(borders.front() == 0 && borders.back() == whole.size(1),
          "all_gather: borders from {} to {} of {} columns", borders.front(), borders.back(),
          whole.size(1));
  for (size_t i = 1; i < borders.size(); ++i) {
    require(borders[i - 1] <= borders[i], "all_gather: border {} comes after {}", borders[i],
            borders[i - 1]);
  }
  const auto own = static_cast<size_t>(rank_);
  require(part.size(1) == borders[own + 1] - borders[own],
          "all_gather: {} columns, and borders of {} to {}", part.size(1), borders[own],
          borders[own + 1]);
  if (whole.element_count() > 0) {
    all_gather_checked(part, borders, whole, ctx);
  }
}

void Communicator::broadcast(Tensor y, int root, ExecContext& ctx) {
  check_tensor("broadcast", y, ctx);
  require(root >= 0 && root < size(), "broadcast: from rank {} of {}", root, size());
  if (size() > 1 && y.element_count() > 0) {
    broadcast_checked(y, root, ctx);
  }
}

void Communicator::broadcast_bytes(std::vector<std::byte>& bytes, int root, Patience patience) {
  require(root >= 0 && root < size(), "broadcast_bytes: from rank {} of {}", root, size());
  require(rank_ != root || std::ssize(bytes) <= kMaxBytes, "broadcast_bytes: {} bytes, at most {}",
          std::ssize(bytes), kMaxBytes);
  broadcast_bytes_checked(bytes, root, patience);
}

std::vector<std::vector<std::byte>> Communicator::gather_bytes(std::span<const std::byte> bytes,
                                                               Patience patience) {
  require(std::ssize(bytes) <= kMaxBytes, "gather_bytes: {} bytes, at most {}", std::ssize(bytes),
          kMaxBytes);
  return gather_bytes_checked(bytes, patience);
}

void Communicator::agree(std::string_view error, Patience patience) {
  std::string text = error.empty() ? std::string() : reason_text(name(rank_), error);
  const auto all = gather_bytes(std::as_bytes(std::span(text)), patience);
  std::vector<std::byte> first;
  for (const std::vector<std::byte>& one : all) {
    if (!one.empty()) {
      first = one;
      break;
    }
  }
  broadcast_bytes(first, 0, patience);
  require(first.empty(), "{}",
          std::string_view(reinterpret_cast<const char*>(first.data()), first.size()));
}

void Communicator::check() const {
  if (const std::optional<std::string> reason = abort_reason()) {
    throw Error(*reason);
  }
}

}  // namespace sparsellm
