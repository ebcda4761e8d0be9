#include "kernels/base/comm_watch.h"

#include <algorithm>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include "kernels/base/comm_messages.h"
#include "kernels/base/comm_op.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

void expect_control(const MessageHeader& header) {
  require(header.kind == MessageKind::abort || header.kind == MessageKind::late ||
              header.kind == MessageKind::goodbye,
          "sent something that is no control message");
}

}  // namespace

CommWatch::CommWatch(int rank, std::vector<std::string> names, std::vector<Peer> peers,
                     std::chrono::milliseconds timeout)
    : rank_(rank), names_(std::move(names)), timeout_(timeout), peers_(std::move(peers)) {
  try {
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {
    fail("cannot start a thread that watches the connections to other ranks");
  }
}

CommWatch::~CommWatch() {
  leaving_.set();
  thread_.join();
  if (!reason()) {
    send(MessageKind::goodbye);
  }
  for (const Peer& peer : peers_) {
    discard_received(peer.control.get());
  }
}

void CommWatch::end(int culprit, std::string_view reason) noexcept {
  end_with(reason_text(name(culprit), reason));
}

std::optional<std::string> CommWatch::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

bool CommWatch::has_left(int rank) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(peers_.begin(), peers_.end(),
                     [&](const Peer& peer) { return peer.rank == rank && peer.left; });
}

void CommWatch::ask_who_is_late() noexcept {
  const std::lock_guard lock(mutex_);
  send(MessageKind::late);
}

void CommWatch::watch() {
  try {
    while (!ended_.is_set() && !leaving_.is_set()) {
      std::vector<pollfd> descriptors{{.fd = ended_.fd(), .events = POLLIN, .revents = 0},
                                      {.fd = leaving_.fd(), .events = POLLIN, .revents = 0}};
      for (const Peer& peer : peers_) {
        descriptors.push_back(
            {.fd = peer.left ? -1 : peer.control.get(), .events = POLLIN, .revents = 0});
      }
      wait_for(descriptors, kNever);
      for (size_t i = 0; i < peers_.size(); ++i) {
        while (descriptors[i + 2].revents != 0 && listen(peers_[i])) {
        }
      }
    }
  } catch (const std::exception& error) {
    end(rank_, error.what());
  }
}

bool CommWatch::listen(Peer& peer) {
  try {
    switch (peer.incoming.advance(peer.control.get(), expect_control)) {
      case Progress::done:
        take(peer, peer.incoming.header(), peer.incoming.body());
        return !peer.left;
      case Progress::closed:
        end(peer.rank, "connection closed");
        return false;
      case Progress::waits:
        return false;
    }
  } catch (const Error& error) {
    end(peer.rank, error.what());
  }
  return false;
}

void CommWatch::take(Peer& peer, const MessageHeader& header, std::span<const std::byte> body) {
  if (header.kind == MessageKind::abort) {
    end_with(parse_reason(body));
  } else if (header.kind == MessageKind::late) {
    const int awaited = awaited_.load(std::memory_order_relaxed);
    if (awaited == peer.rank) {  // and so it waits for us: the two are at different places
      end(peer.rank, "waits for rank 0, and rank 0 for it, for " + seconds_text(timeout_));
    } else {
      end(awaited < 0 ? rank_ : awaited, "did not come within " + seconds_text(timeout_));
    }
  } else {
    const std::lock_guard lock(mutex_);
    peer.left = true;
  }
}

void CommWatch::end_with(std::string text) noexcept {
  const std::lock_guard lock(mutex_);
  if (!reason_) {
    reason_ = std::move(text);
    ended_.set();
    send(MessageKind::abort, std::as_bytes(std::span(*reason_)));
  }
}

void CommWatch::send(MessageKind kind, std::span<const std::byte> body) noexcept {
  try {
    const std::vector<std::byte> bytes = message(kind, body);
    for (const Peer& peer : peers_) {
      (void)send_now(peer.control.get(), bytes);
    }
  } catch (const std::bad_alloc&) {  // who is not told sees the connection close
  }
}

}  // namespace sparsellm
