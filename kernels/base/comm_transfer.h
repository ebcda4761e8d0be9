#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/comm_messages.h"
#include "kernels/base/file_descriptor.h"

namespace sparsellm {

// Messages over sockets that never block: who has to wait does so in wait_for().

using Deadline = std::chrono::steady_clock::time_point;
inline constexpr Deadline kNever = Deadline::max();
Deadline deadline_in(std::chrono::milliseconds time);

// Sleeps until one of the descriptors is ready, which their revents tell, or the deadline is over.
void wait_for(std::span<pollfd> descriptors, Deadline deadline);

// Readable once it has been set, for ever: wakes those who wait for other descriptors, too.
class StickyEvent {
 public:
  StickyEvent();
  void set() noexcept;
  bool is_set() const;
  int fd() const { return event_.get(); }

 private:
  FileDescriptor event_;
};

// What errno says.
std::string socket_error_text(int error);

// How far a transfer has come.
enum class Progress : uint8_t {
  waits,   // the socket takes, or has, nothing more for now
  done,    // a whole message
  closed,  // by the other side
};

// A message that is being sent. The body is not copied.
class OutgoingMessage {
 public:
  OutgoingMessage() = default;
  OutgoingMessage(const MessageHeader& header, std::span<const std::byte> body)
      : header_(header_bytes(header)), body_(body) {}

  Progress advance(int socket);

 private:
  std::array<std::byte, kHeaderBytes> header_{};
  std::span<const std::byte> body_;
  size_t sent_ = 0;
};

// Messages that are received one after the other.
class IncomingMessage {
 public:
  // Throws for a header that is not expected; called before memory is allocated for the body.
  using Check = std::function<void(const MessageHeader&)>;

  // Throws Error where parse_header() or `check` do. done: header() and body() are a message, and
  // the next call begins with the next one.
  Progress advance(int socket, const Check& check);

  const MessageHeader& header() const { return header_; }
  const std::vector<std::byte>& body() const { return body_; }
  std::vector<std::byte> take_body() { return std::move(body_); }
  // The bytes of the header that have come so far.
  std::span<const std::byte> begun() const {
    return std::span(raw_header_).first(std::min(received_, kHeaderBytes));
  }

 private:
  std::array<std::byte, kHeaderBytes> raw_header_{};
  MessageHeader header_;
  std::vector<std::byte> body_;
  size_t received_ = 0;  // of header and body
  bool complete_ = false;
};

// What the socket takes at once, without waiting: for short messages on connections that were idle.
// Whether that was all.
bool send_now(int socket, std::span<const std::byte> bytes) noexcept;

// Reads away what has come, so that closing the socket does not cut off what was sent last.
void discard_received(int socket) noexcept;

}  // namespace sparsellm
