#include "kernels/base/comm_tcp.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/comm_messages.h"
#include "kernels/base/comm_op.h"
#include "kernels/base/comm_transfer.h"
#include "kernels/base/comm_watch.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

using std::chrono::milliseconds;

// For what the watch, here or on rank 0, is about to find out: why a connection has closed, who is
// late.
constexpr milliseconds kForReason{1000};

using Bytes = std::vector<std::byte>;

struct Peer {
  int rank = 0;
  FileDescriptor socket;
  IncomingMessage incoming;
  OutgoingMessage outgoing;
  bool waits = false;  // for the rest of a message
};

class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(int rank, RankConnections connections, milliseconds timeout)
      : Communicator(rank, connections.devices),
        timeout_(timeout),
        peers_(peers_of(connections)),
        watch_(rank, names(), watched(connections), timeout) {}

  void abort_by(int culprit, std::string_view reason) noexcept override {
    watch_.end(culprit, reason);
  }
  std::optional<std::string> abort_reason() const override { return watch_.reason(); }

 private:
  static std::vector<Peer> peers_of(RankConnections& connections) {
    std::vector<Peer> peers;
    for (RankConnection& one : connections.peers) {
      Peer peer;
      peer.rank = one.rank;
      peer.socket = std::move(one.data);
      peers.push_back(std::move(peer));
    }
    return peers;
  }
  static std::vector<CommWatch::Peer> watched(RankConnections& connections) {
    std::vector<CommWatch::Peer> peers;
    for (RankConnection& one : connections.peers) {
      CommWatch::Peer peer;
      peer.rank = one.rank;
      peer.control = std::move(one.control);
      peers.push_back(std::move(peer));
    }
    return peers;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    names.reserve(static_cast<size_t>(size()));
    for (int rank = 0; rank < size(); ++rank) {
      names.push_back(name(rank));
    }
    return names;
  }

  [[noreturn]] void end(int culprit, std::string_view reason) {
    abort_by(culprit, reason);
    throw Error(watch_.reason().value());
  }

  // Sleeps at most that long until everything has ended, and throws the reason.
  void wait_for_reason(milliseconds time) {
    pollfd descriptor{.fd = watch_.ended_fd(), .events = POLLIN, .revents = 0};
    wait_for({&descriptor, 1}, deadline_in(time));
    check();
  }

  [[noreturn]] void end_closed(int rank) {
    constexpr int kSlices = 100;
    for (int i = 0; i < kSlices && !watch_.has_left(rank); ++i) {
      wait_for_reason(kForReason / kSlices);
    }
    end(rank, watch_.has_left(rank) ? "has left" : "connection closed");
  }

  [[noreturn]] void end_late(int awaited) {
    if (rank() != 0) {
      watch_.ask_who_is_late();
      wait_for_reason(kForReason);
    }
    end(awaited, "did not come within " + seconds_text(timeout_));
  }

  // Advances the messages of `peers` until all are done. `advance` is called with a peer whose
  // socket is ready for `events`, and may throw Error for a message that is not expected.
  template <class Advance>
  void transfer(std::span<Peer> peers, short events, Patience patience, Advance&& advance) {
    check();
    for (Peer& peer : peers) {
      peer.waits = true;
    }
    const Deadline deadline = patience == Patience::timeout ? deadline_in(timeout_) : kNever;
    std::vector<pollfd> descriptors(peers.size() + 1);
    while (true) {
      int awaited = -1;
      for (size_t i = 0; i < peers.size(); ++i) {
        Peer& peer = peers[i];
        if (peer.waits) {
          peer.waits = !advance_one(peer, advance);
        }
        if (peer.waits && awaited < 0) {
          awaited = peer.rank;
        }
        descriptors[i] = {
            .fd = peer.waits ? peer.socket.get() : -1, .events = events, .revents = 0};
      }
      watch_.set_awaited(awaited);
      if (awaited < 0) {
        return;
      }
      descriptors.back() = {.fd = watch_.ended_fd(), .events = POLLIN, .revents = 0};
      wait_for(descriptors, deadline);
      check();
      if (std::chrono::steady_clock::now() >= deadline) {
        end_late(awaited);
      }
    }
  }

  // Whether the message is done.
  template <class Advance>
  bool advance_one(Peer& peer, Advance&& advance) {
    Progress progress = Progress::waits;
    try {
      progress = advance(peer);
    } catch (const Error& error) {
      end(peer.rank, error.what());
    }
    if (progress == Progress::closed) {
      end_closed(peer.rank);
    }
    return progress == Progress::done;
  }

  // The next message of each peer is of this operation, and its body as long as `expected` says;
  // -1: any length.
  template <class Expected>
  void receive(std::span<Peer> peers, const CommOp& op, Patience patience, Expected&& expected) {
    transfer(peers, POLLIN, patience, [&](Peer& peer) {
      return peer.incoming.advance(peer.socket.get(), [&](const MessageHeader& header) {
        require(header.kind == MessageKind::data, "sent something that belongs to no operation");
        require(header.op == op, "is at {}, while {} is at {}", to_string(header.op), name(rank()),
                to_string(op));
        const int64_t bytes = expected(peer.rank);
        require(bytes < 0 || header.bytes == static_cast<uint64_t>(bytes),
                "sent {} bytes for {}, not {}", header.bytes, to_string(op), bytes);
      });
    });
  }

  void send(std::span<Peer> peers, const CommOp& op, std::span<const std::byte> body,
            Patience patience) {
    for (Peer& peer : peers) {
      peer.outgoing =
          OutgoingMessage({.kind = MessageKind::data, .op = op, .bytes = body.size()}, body);
    }
    transfer(peers, POLLOUT, patience,
             [](Peer& peer) { return peer.outgoing.advance(peer.socket.get()); });
  }

  Peer& host() { return peers_.front(); }  // of ranks that are not 0
  static std::span<Peer> only(Peer& peer) { return {&peer, 1}; }
  Peer& peer_of(int rank) { return peers_[static_cast<size_t>(rank - 1)]; }  // on rank 0

  static int64_t bytes_of(const CommOp& op) { return op.rows * op.row_bytes; }

  // The rows of a tensor, one after the other, and back.
  std::span<std::byte> pack(const Tensor& tensor) {
    packed_.resize(static_cast<size_t>(tensor.bytes()));
    copy_rows(tensor, packed_as(tensor));
    return packed_;
  }
  Tensor packed_as(const Tensor& tensor) {
    return {packed_.data(), tensor.dtype(), {tensor.size(0), tensor.row_size()}, tensor.device()};
  }
  static Tensor view(const Bytes& bytes, const Tensor& like) {
    return {const_cast<std::byte*>(bytes.data()),
            like.dtype(),
            {like.size(0), like.row_size()},
            like.device()};
  }

  void all_reduce_sum_checked(Tensor y, ExecContext&) override {
    const CommOp op = op_of(CommKind::all_reduce_sum, y);
    const auto whole = [&](int) { return bytes_of(op); };
    if (rank() != 0) {
      send(only(host()), op, pack(y), Patience::timeout);
      receive(only(host()), op, Patience::timeout, whole);
      copy_rows(view(host().incoming.body(), y), y);
      return;
    }
    receive(peers_, op, Patience::timeout, whole);
    auto* const sum = reinterpret_cast<float*>(pack(y).data());
    std::vector<const float*> parts{sum};
    for (const Peer& peer : peers_) {
      parts.push_back(reinterpret_cast<const float*>(peer.incoming.body().data()));
    }
    sum_in_rank_order(parts, y.element_count(), sum);
    send(peers_, op, packed_, Patience::timeout);
    copy_rows(packed_as(y), y);
  }

  void all_gather_checked(const Tensor& part, std::span<const int64_t> borders, Tensor whole,
                          ExecContext&) override {
    const CommOp op = op_of(CommKind::all_gather, whole);
    if (rank() != 0) {
      send(only(host()), op, pack(part), Patience::timeout);
      receive(only(host()), op, Patience::timeout, [&](int) { return bytes_of(op); });
      copy_rows(view(host().incoming.body(), whole), whole);
      return;
    }
    const auto columns = [&](int of) {
      return borders[static_cast<size_t>(of) + 1] - borders[static_cast<size_t>(of)];
    };
    receive(peers_, op, Patience::timeout, [&](int of) {
      return whole.size(0) * columns(of) * static_cast<int64_t>(sizeof(float));
    });
    copy_rows(part, whole.columns(0, columns(0)));
    for (const Peer& peer : peers_) {
      const Tensor place =
          whole.columns(borders[static_cast<size_t>(peer.rank)], columns(peer.rank));
      copy_rows(view(peer.incoming.body(), place), place);
    }
    send(peers_, op, pack(whole), Patience::timeout);
  }

  void broadcast_checked(Tensor y, int root, ExecContext&) override {
    const CommOp op = op_of(CommKind::broadcast, y, root);
    if (rank() == root) {
      pack(y);
    }
    spread(op, packed_, Patience::timeout);
    if (rank() != root) {
      copy_rows(packed_as(y), y);
    }
  }

  void broadcast_bytes_checked(Bytes& bytes, int root, Patience patience) override {
    spread({.kind = CommKind::broadcast_bytes, .root = root}, bytes, patience);
  }

  // `bytes` of all become those of the root.
  void spread(const CommOp& op, Bytes& bytes, Patience patience) {
    const auto expected = [&](int) { return op.rows > 0 ? bytes_of(op) : -1; };
    if (rank() == op.root) {
      send(rank() == 0 ? std::span(peers_) : only(host()), op, bytes, patience);
      return;
    }
    Peer& from = rank() == 0 ? peer_of(op.root) : host();
    receive(only(from), op, patience, expected);
    bytes = from.incoming.take_body();
    if (rank() == 0) {
      const auto before = std::span(peers_).first(static_cast<size_t>(op.root - 1));
      const auto after = std::span(peers_).subspan(static_cast<size_t>(op.root));
      send(before, op, bytes, patience);
      send(after, op, bytes, patience);
    }
  }

  std::vector<Bytes> gather_bytes_checked(std::span<const std::byte> bytes,
                                          Patience patience) override {
    const CommOp op{.kind = CommKind::gather_bytes};
    if (rank() != 0) {
      send(only(host()), op, bytes, patience);
      return {};
    }
    receive(peers_, op, patience, [](int) { return -1; });
    std::vector<Bytes> all{Bytes(bytes.begin(), bytes.end())};
    for (Peer& peer : peers_) {
      all.push_back(peer.incoming.take_body());
    }
    return all;
  }

  const milliseconds timeout_;
  std::vector<Peer> peers_;  // of rank 0: all others, in order; of others: rank 0
  Bytes packed_;             // rows of this rank's tensor, kept from op to op
  CommWatch watch_;
};

}  // namespace

std::unique_ptr<Communicator> make_tcp_communicator(const RendezvousOptions& options) {
  return std::make_unique<TcpCommunicator>(options.rank, meet(options), options.timeout);
}

}  // namespace sparsellm
