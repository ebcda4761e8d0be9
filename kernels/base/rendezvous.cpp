#include "kernels/base/rendezvous.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "kernels/base/comm_messages.h"
#include "kernels/base/comm_socket.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxStrangers = 64;  // connections that have not said yet what they are
constexpr milliseconds kForLatecomers{2000};

void expect_hello(const MessageHeader& header) {
  require(header.kind == MessageKind::hello, "it did not begin with a hello");
}

// Rank 0.
class Host {
 public:
  explicit Host(const RendezvousOptions& options)
      : options_(options), listener_(parse_rendezvous(options.address)) {
    RankConnections& all = connections_;
    all.devices.assign(static_cast<size_t>(options.size), "");
    all.devices[0] = options.device;
    for (int rank = 1; rank < options.size; ++rank) {
      all.peers.push_back({.rank = rank, .data = FileDescriptor(), .control = FileDescriptor()});
    }
  }

  RankConnections run() {
    const Deadline deadline = deadline_in(options_.timeout);
    try {
      while (const RankConnection* missing = first_missing()) {
        wait(deadline, missing->rank);
      }
    } catch (const Error& error) {
      refusal_ = error.what();
      refuse_all(std::min(deadline, deadline_in(kForLatecomers)));
      throw;
    }
    const auto welcome = message(MessageKind::welcome, welcome_body(connections_.devices));
    for (const RankConnection& peer : connections_.peers) {
      // Whoever does not get it is gone, which the first operation notices.
      (void)send_now(peer.data.get(), welcome);
    }
    return std::move(connections_);
  }

 private:
  struct Stranger {
    Listener::Connection connection;
    IncomingMessage hello;
  };

  const RankConnection* first_missing() const {
    const auto found = std::find_if(
        connections_.peers.begin(), connections_.peers.end(),
        [](const RankConnection& peer) { return peer.data.get() < 0 || peer.control.get() < 0; });
    return found == connections_.peers.end() ? nullptr : &*found;
  }

  void wait(Deadline deadline, int missing) {
    std::vector<pollfd> descriptors{{.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    for (const Stranger& stranger : strangers_) {
      descriptors.push_back(
          {.fd = stranger.connection.socket.get(), .events = POLLIN, .revents = 0});
    }
    for (const RankConnection& peer : connections_.peers) {  // -1 is not looked at
      descriptors.push_back({.fd = peer.data.get(), .events = POLLIN, .revents = 0});
      descriptors.push_back({.fd = peer.control.get(), .events = POLLIN, .revents = 0});
    }
    wait_for(descriptors, deadline);
    if (std::chrono::steady_clock::now() >= deadline) {
      fail("rank {} has not come to {} within {}{}", missing, options_.address,
           seconds_text(options_.timeout),
           refused_.empty() ? "" : "; what came from " + refused_ + " is no rank of SparseLLM");
    }
    // A rank has nothing to say before it is welcome: it is gone.
    const auto peers = std::span(descriptors).subspan(1 + strangers_.size());
    for (size_t i = 0; i < peers.size(); ++i) {
      const auto rank = static_cast<size_t>(connections_.peers[i / 2].rank);
      require(peers[i].revents == 0, "{}: connection closed before all ranks had come",
              name_of_rank(static_cast<int>(rank), connections_.devices[rank]));
    }
    const bool somebody_new = descriptors[0].revents != 0;
    listen_to_strangers(std::span(descriptors).subspan(1, strangers_.size()));
    if (somebody_new) {
      accept();
    }
  }

  void accept() {
    if (std::optional<Listener::Connection> connection = listener_.accept()) {
      if (strangers_.size() == kMaxStrangers) {
        send_away(0);
      }
      strangers_.push_back({std::move(*connection), {}});
    }
  }

  // Those that are through with their hello, or are none of ours, are strangers no more.
  void listen_to_strangers(std::span<const pollfd> ready) {
    for (size_t i = ready.size(); i-- > 0;) {
      if (ready[i].revents == 0) {
        continue;
      }
      Stranger& stranger = strangers_[i];
      Progress progress = Progress::closed;
      std::optional<Hello> hello;
      try {
        progress = stranger.hello.advance(stranger.connection.socket.get(), expect_hello);
        if (progress == Progress::done) {
          hello = parse_hello(stranger.hello.body());
        }
      } catch (const Error& error) {
        if (is_ours(stranger.hello.begun()) && refusal_.empty()) {
          fail("what came from {} cannot be a rank: {}", stranger.connection.from, error.what());
        }
      }
      if (hello) {
        admit(i, *hello);
      } else if (progress == Progress::closed || !is_ours(stranger.hello.begun())) {
        send_away(i);
      }
    }
  }

  void admit(size_t stranger, const Hello& hello) {
    heard_.insert(hello.rank);
    expected_ = std::max(expected_, hello.size);
    if (!refusal_.empty()) {
      refuse(strangers_[stranger].connection.socket, refusal_);
      forget(stranger);
      return;
    }
    const std::string name = name_of_rank(hello.rank, hello.device);
    require(hello.size == options_.size, "{} is of {} ranks, rank 0 of {}", name, hello.size,
            options_.size);
    require(hello.model == options_.model, "{} has another model than rank 0: '{}', not '{}'", name,
            hello.model, options_.model);
    require(hello.rank < options_.size, "a process says that it is rank {} of {}", hello.rank,
            options_.size);
    require(hello.rank > 0, "two processes say that they are rank 0");
    RankConnection& peer = connections_.peers[static_cast<size_t>(hello.rank - 1)];
    FileDescriptor& socket = hello.channel == Channel::data ? peer.data : peer.control;
    require(socket.get() < 0, "two processes say that they are rank {}", hello.rank);
    connections_.devices[static_cast<size_t>(hello.rank)] = hello.device;
    socket = std::move(strangers_[stranger].connection.socket);
    forget(stranger);
  }

  void send_away(size_t stranger) {
    refused_ = strangers_[stranger].connection.from;
    refuse(strangers_[stranger].connection.socket, "this is no rank of SparseLLM");
    forget(stranger);
  }

  void forget(size_t stranger) {
    strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(stranger));
  }

  static void refuse(const FileDescriptor& socket, std::string_view reason) {
    if (socket.get() >= 0) {
      discard_received(socket.get());
      (void)send_now(socket.get(),
                     message(MessageKind::refusal,
                             std::as_bytes(std::span(reason.substr(0, kMaxReasonBytes)))));
    }
  }

  // Those that have come, and then those that come until `deadline`, who would try to connect for
  // the whole of their timeout if nobody told them.
  void refuse_all(Deadline deadline) {
    for (RankConnection& peer : connections_.peers) {
      refuse(peer.data, refusal_);
      peer.data = FileDescriptor();
      peer.control = FileDescriptor();
    }
    for (size_t i = strangers_.size(); i-- > 0;) {
      if (strangers_[i].hello.begun().size() == kHeaderBytes) {
        refuse(strangers_[i].connection.socket, refusal_);
        forget(i);
      }
    }
    try {
      while (std::ssize(heard_) < expected_ - 1) {
        wait(deadline, 0);
      }
    } catch (const Error&) {  // the time is over
    }
    while (const std::optional<Listener::Connection> waiting = listener_.accept()) {
      refuse(waiting->socket, refusal_);
    }
    for (const Stranger& stranger : strangers_) {
      refuse(stranger.connection.socket, refusal_);
    }
  }

  const RendezvousOptions& options_;
  Listener listener_;
  std::vector<Stranger> strangers_;
  RankConnections connections_;
  std::string refused_;           // where the last that was sent away came from
  std::string refusal_;           // why all are refused; empty: they are not
  std::set<int> heard_;           // ranks that have said hello, whether they fit or not
  int expected_ = options_.size;  // ranks that there are, if one of them is right
};

void greet(const RendezvousOptions& options, const FileDescriptor& socket, Channel channel) {
  const auto hello = hello_body({.rank = options.rank,
                                 .size = options.size,
                                 .channel = channel,
                                 .device = options.device,
                                 .model = options.model});
  // Where this fails rank 0 is gone, or has said why it refuses, which is read next.
  (void)send_now(socket.get(), message(MessageKind::hello, hello));
}

// All other ranks.
RankConnections visit(const RendezvousOptions& options) {
  const RendezvousAddress address = parse_rendezvous(options.address);
  const Deadline deadline = deadline_in(options.timeout);
  RankConnection host{.rank = 0, .data = FileDescriptor(), .control = FileDescriptor()};
  host.data = connect_to(address, deadline);
  greet(options, host.data, Channel::data);
  host.control = connect_to(address, deadline, host.data.get());
  greet(options, host.control, Channel::control);

  // Rank 0 was listening, so that its own time is over before this, and it says who is missing.
  const Deadline answered = deadline_in(options.timeout + milliseconds(2000));
  IncomingMessage answer;
  while (true) {
    pollfd descriptor{.fd = host.data.get(), .events = POLLIN, .revents = 0};
    wait_for({&descriptor, 1}, answered);
    require(descriptor.revents != 0, "rank 0 did not answer at {} within {}", options.address,
            seconds_text(options.timeout));
    Progress progress = Progress::waits;
    try {
      progress = answer.advance(host.data.get(), [](const MessageHeader& header) {
        require(header.kind == MessageKind::welcome || header.kind == MessageKind::refusal,
                "its answer is neither a welcome nor a refusal");
      });
    } catch (const Error& error) {
      fail("what listens at {} cannot be rank 0: {}", options.address, error.what());
    }
    require(progress != Progress::closed, "what listens at {} closed the connection",
            options.address);
    if (progress == Progress::done) {
      break;
    }
  }
  if (answer.header().kind == MessageKind::refusal) {
    throw Error(parse_reason(answer.body()));
  }
  RankConnections result;
  result.devices = parse_welcome(answer.body());
  require(std::ssize(result.devices) == options.size, "rank 0 welcomes {} ranks, not {}",
          std::ssize(result.devices), options.size);
  result.peers.push_back(std::move(host));
  return result;
}

}  // namespace

RankConnections meet(const RendezvousOptions& options) {
  check_hello({.rank = options.rank,
               .size = options.size,
               .channel = Channel::data,
               .device = options.device,
               .model = options.model});
  if (options.size == 1) {
    return {.peers = {}, .devices = {options.device}};
  }
  return options.rank == 0 ? Host(options).run() : visit(options);
}

}  // namespace sparsellm
