#include "kernels/base/comm_peers.h"

#include <algorithm>
#include <utility>

namespace sparsellm {
namespace {

// body(begin, bytes) for one piece after the other.
template <class Body>
void in_pieces(int64_t bytes, int64_t most, Body&& body) {
  for (int64_t at = 0; at < bytes; at += most) {
    body(at, std::min(most, bytes - at));
  }
}

// What there is of a tensor in a piece.
CommStream piece_of(const Tensor& tensor, int64_t at, int64_t bytes) {
  const int64_t begin = std::min(at, tensor.bytes());
  return CommStream::of(tensor, begin, std::min(bytes, tensor.bytes() - begin));
}

}  // namespace

std::unique_ptr<CommPeers> CommPeers::make(Communicator& host, Device device,
                                           const uint32_t* abort_word, int max_blocks,
                                           std::string& why_not) {
  std::unique_ptr<CommArea> area = CommArea::make(host, device, why_not);
  if (area == nullptr) {
    return nullptr;
  }
  return std::unique_ptr<CommPeers>(new CommPeers(std::move(area), abort_word, max_blocks));
}

CommPeers::CommPeers(std::unique_ptr<CommArea> area, const uint32_t* abort_word, int max_blocks)
    : area_(std::move(area)),
      world_(area_->world()),
      max_blocks_(std::clamp(max_blocks, 1, area_->max_blocks())) {
  world_.abort_word = abort_word;
}

void CommPeers::all_reduce_sum(CommWay way, const Tensor& y, const ExecContext& ctx) const {
  in_pieces(
      y.bytes(), bytes_of_call(way, world_.layout, world_.ranks), [&](int64_t at, int64_t bytes) {
        comm_all_reduce(way, y.dtype(), CommStream::of(y, at, bytes), world_, max_blocks_, ctx);
      });
}

void CommPeers::all_gather(Form form, const Tensor& part, std::span<const Tensor> places,
                           const ExecContext& ctx) const {
  int64_t most = 0;
  for (const Tensor& place : places) {
    most = std::max(most, place.bytes());
  }
  const bool packets = form == Form::packets;
  const CommWay way = packets ? CommWay::one_shot_packets : CommWay::one_shot_tiles;
  in_pieces(most, bytes_of_call(way, world_.layout, world_.ranks), [&](int64_t at, int64_t bytes) {
    CommExchange call;
    call.part = piece_of(part, at, bytes);
    for (size_t i = 0; i < places.size(); ++i) {
      call.whole[i] = piece_of(places[i], at, bytes);
    }
    call.copies_own = part.raw() != places[static_cast<size_t>(world_.rank)].raw();
    comm_exchange(packets, call, world_, max_blocks_, ctx);
  });
}

void CommPeers::broadcast(Form form, const Tensor& y, int root, const ExecContext& ctx) const {
  const Tensor nothing(y.raw(), y.dtype(), {0, 1}, y.device());
  std::vector<Tensor> places(static_cast<size_t>(world_.ranks), nothing);
  places[static_cast<size_t>(root)] = y;
  all_gather(form, world_.rank == root ? y : nothing, places, ctx);
}

}  // namespace sparsellm
