#include <cuda_runtime.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/error.h"
#include "kernels/base/nccl_tensors.h"

namespace sparsellm {
namespace {

constexpr int64_t kStagingBytes = int64_t{16} << 20;

int64_t row_bytes_of(const Tensor& tensor) { return tensor.row_size() * size_of(tensor.dtype()); }

// The same rows without gaps, at another place.
Tensor packed(const Tensor& like, void* data) {
  return {data, like.dtype(), {like.size(0), like.row_size()}, like.device()};
}

// Rows of so many bytes that fit in the buffer.
int64_t staged_rows(int64_t row_bytes) {
  require(row_bytes <= kStagingBytes, "ranks exchange rows of {} bytes, at most {}", row_bytes,
          kStagingBytes);
  return kStagingBytes / row_bytes;
}

// body(first, count) for as many rows at a time.
template <class Body>
void by_rows(int64_t rows, int64_t most, Body&& body) {
  for (int64_t first = 0; first < rows; first += most) {
    body(first, std::min(most, rows - first));
  }
}

}  // namespace

NcclTensors::NcclTensors(Communicator& host, Device device) : rank_(host.rank()) {
  std::vector<std::byte> id;
  std::string problem;
  try {
    staging_ = Buffer(device, kStagingBytes, "communication");
    if (rank_ == 0) {
      id = NcclRank::make_id();
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  host.agree(problem, Patience::while_alive);
  host.broadcast_bytes(id, 0, Patience::while_alive);
  try {
    nccl_ =
        std::make_unique<NcclRank>(id, rank_, host.size(), device.index, [&host] { host.check(); });
  } catch (const std::exception& error) {
    host.abort(error.what());  // the others wait for this rank
    host.check();
  }
}

void NcclTensors::in_whole_rows(const Tensor& y, const ExecContext& ctx,
                                const std::function<void(const Tensor& contiguous)>& call) {
  if (y.contiguous()) {
    call(y);
    return;
  }
  by_rows(y.size(0), staged_rows(row_bytes_of(y)), [&](int64_t first, int64_t count) {
    const Tensor rows = y.rows(first, count);
    const Tensor staged = packed(rows, staging_.data());
    copy_rows_cuda(rows, staged, ctx);
    call(staged);
    copy_rows_cuda(staged, rows, ctx);
  });
}

void NcclTensors::all_reduce_sum(const Tensor& y, const ExecContext& ctx) {
  in_whole_rows(y, ctx, [&](const Tensor& rows) {
    nccl_->all_reduce_sum(rows.raw(), rows.element_count(), rows.dtype(), cuda_queue(ctx));
  });
}

void NcclTensors::broadcast(const Tensor& y, int root, const ExecContext& ctx) {
  in_whole_rows(y, ctx, [&](const Tensor& rows) {
    const NcclRank::Part part{.data = rows.raw(), .bytes = rows.bytes(), .root = root};
    nccl_->broadcast({&part, 1}, cuda_queue(ctx));
  });
}

void NcclTensors::all_gather(const Tensor& part, std::span<const Tensor> places,
                             const ExecContext& ctx) {
  int64_t row_bytes = 0;
  for (const Tensor& place : places) {
    row_bytes += row_bytes_of(place);
  }
  by_rows(part.size(0), staged_rows(row_bytes), [&](int64_t first, int64_t count) {
    auto* at = static_cast<std::byte*>(staging_.data());
    std::vector<Tensor> staged;
    std::vector<NcclRank::Part> parts;
    for (const Tensor& place : places) {
      staged.push_back(packed(place.rows(first, count), at));
      parts.push_back({.data = at,
                       .bytes = staged.back().bytes(),
                       .root = static_cast<int>(std::ssize(parts))});
      at += staged.back().bytes();
    }
    copy_rows_cuda(part.rows(first, count), staged[static_cast<size_t>(rank_)], ctx);
    nccl_->broadcast(parts, cuda_queue(ctx));
    for (size_t i = 0; i < places.size(); ++i) {
      copy_rows_cuda(staged[i], places[i].rows(first, count), ctx);
    }
  });
}

void copy_rows_cuda(const Tensor& from, const Tensor& to, const ExecContext& ctx) {
  if (from.raw() == to.raw() || from.element_count() == 0) {
    return;
  }
  const int64_t size = size_of(from.dtype());
  check_cuda(cudaMemcpy2DAsync(
      to.raw(), static_cast<size_t>(to.row_stride() * size), from.raw(),
      static_cast<size_t>(from.row_stride() * size), static_cast<size_t>(row_bytes_of(from)),
      static_cast<size_t>(from.size(0)), cudaMemcpyDefault, cuda_queue(ctx).stream));
}

}  // namespace sparsellm
