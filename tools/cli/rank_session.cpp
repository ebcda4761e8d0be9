#include "tools/cli/rank_session.h"

#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include "kernels/base/comm_tcp.h"
#include "kernels/base/error.h"
#include "tools/cli/session_message.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenLooks{100};
constexpr milliseconds kForOthers{1000};

}  // namespace

RendezvousOptions engine_rendezvous(RendezvousOptions session, int engine) {
  session.model += fmt::format(", engine {}", engine);
  return session;
}

RankSession::RankSession(std::string tool, RendezvousOptions options)
    : tool_(std::move(tool)),
      options_(std::move(options)),
      comm_(make_tcp_communicator(options_)),
      watch_([this] { watch(); }) {}

RankSession::~RankSession() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  watch_.join();
}

std::unique_ptr<Communicator> RankSession::start_engine(int model,
                                                        const std::string& rank_options) {
  std::vector<std::byte> bytes = session_message_bytes(
      {.engine = ++engines_, .model = model, .options = rank_options, .status = 0});
  comm_->broadcast_bytes(bytes, 0);
  return make_tcp_communicator(engine_rendezvous(options_, engines_));
}

void RankSession::end(int status) {
  std::vector<std::byte> bytes =
      session_message_bytes({.engine = 0, .model = 0, .options = {}, .status = status});
  comm_->broadcast_bytes(bytes, 0);
}

void RankSession::fail(std::string_view reason) {
  for (int rank = 0; rank < comm_->size(); ++rank) {
    const std::string name = comm_->name(rank) + ": ";
    if (reason.starts_with(name)) {
      return comm_->abort_by(rank, reason.substr(name.size()));
    }
  }
  comm_->abort(reason);
}

void RankSession::watch() {
  std::unique_lock lock(mutex_);
  const auto ends_within = [&](milliseconds time) {
    return changed_.wait_for(lock, time, [this] { return ended_; });
  };
  while (!ends_within(kBetweenLooks)) {
    if (const std::optional<std::string> reason = comm_->abort_reason()) {
      if (!ends_within(kForOthers)) {
        report_error(tool_, *reason);
        std::_Exit(EXIT_FAILURE);  // nothing is waited for: it may never come
      }
      return;
    }
  }
}

}  // namespace sparsellm
