#include "kernels/base/comm_transfer.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

bool is_only_not_now(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

std::string socket_error_text(int error) { return std::generic_category().message(error); }

Deadline deadline_in(milliseconds time) { return steady_clock::now() + time; }

void wait_for(std::span<pollfd> descriptors, Deadline deadline) {
  while (true) {
    int timeout_ms = -1;
    if (deadline != kNever) {
      const auto left =
          std::chrono::ceil<milliseconds>(std::max(deadline - steady_clock::now(), {}));
      timeout_ms = static_cast<int>(std::min<int64_t>(left.count(), 3'600'000));
    }
    const int ready = ::poll(descriptors.data(), descriptors.size(), timeout_ms);
    if (ready < 0 && errno != EINTR) {
      fail("cannot wait for a connection: {}", socket_error_text(errno));
    }
    if (ready > 0 || (deadline != kNever && steady_clock::now() >= deadline)) {
      return;
    }
  }
}

StickyEvent::StickyEvent() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_.get() < 0) {
    fail("cannot make an event: {}", socket_error_text(errno));
  }
}

void StickyEvent::set() noexcept {
  const uint64_t one = 1;
  (void)!::write(event_.get(), &one, sizeof(one));
}

bool StickyEvent::is_set() const {
  pollfd descriptor{.fd = event_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&descriptor, 1, 0) > 0;
}

Progress OutgoingMessage::advance(int socket) {
  const size_t total = kHeaderBytes + body_.size();
  while (sent_ < total) {
    std::array<iovec, 2> parts{};
    size_t count = 0;
    if (sent_ < kHeaderBytes) {
      parts[count++] = {header_.data() + sent_, kHeaderBytes - sent_};
    }
    const size_t body_sent = sent_ - std::min(sent_, kHeaderBytes);
    if (body_sent < body_.size()) {
      parts[count++] = {const_cast<std::byte*>(body_.data()) + body_sent, body_.size() - body_sent};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t bytes = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (bytes < 0) {
      return is_only_not_now(errno) ? Progress::waits : Progress::closed;
    }
    sent_ += static_cast<size_t>(bytes);
  }
  return Progress::done;
}

Progress IncomingMessage::advance(int socket, const Check& check) {
  if (std::exchange(complete_, false)) {
    received_ = 0;
  }
  while (true) {
    const bool in_header = received_ < kHeaderBytes;
    const size_t body_received = received_ - std::min(received_, kHeaderBytes);
    const std::span<std::byte> rest = in_header ? std::span(raw_header_).subspan(received_)
                                                : std::span(body_).subspan(body_received);
    const ssize_t bytes = ::recv(socket, rest.data(), rest.size(), MSG_DONTWAIT);
    if (bytes <= 0) {
      return bytes < 0 && is_only_not_now(errno) ? Progress::waits : Progress::closed;
    }
    received_ += static_cast<size_t>(bytes);
    if (received_ == kHeaderBytes) {
      header_ = parse_header(raw_header_);
      check(header_);
      body_.resize(header_.bytes);
    }
    if (received_ >= kHeaderBytes && received_ == kHeaderBytes + body_.size()) {
      complete_ = true;
      return Progress::done;
    }
  }
}

bool send_now(int socket, std::span<const std::byte> bytes) noexcept {
  return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

void discard_received(int socket) noexcept {
  std::array<std::byte, 4096> scratch;
  while (::recv(socket, scratch.data(), scratch.size(), MSG_DONTWAIT) > 0) {
  }
}

}  // namespace sparsellm
