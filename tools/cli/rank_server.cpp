#include "tools/cli/rank_server.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>

#include "kernels/base/comm_tcp.h"
#include "kernels/base/error.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/rank_session.h"
#include "tools/cli/session_message.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

constexpr int kInterrupted = 128 + SIGINT;
constexpr std::chrono::milliseconds kForEngines{1000};

// What goes wrong ends the communicator of the engine, or is that there is none: then rank 0 has
// met nobody either, and says so.
void serve_engine(const RendezvousOptions& options, const RankModel& model,
                  const std::string& rank_options) {
  const std::unique_ptr<Communicator> comm = make_tcp_communicator(options);
  try {
    model.run(rank_options, *comm);
  } catch (const std::exception& error) {
    comm->abort(error.what());
  }
}

// Returns the exit code that rank 0 has said. Engines get a thread each: those of a comparison
// compute in turn.
int serve_session(Communicator& comm, const RendezvousOptions& options,
                  const std::vector<RankModel>& models, std::vector<std::future<void>>& engines) {
  std::vector<std::byte> bytes;
  while (true) {
    comm.broadcast_bytes(bytes, 0, Patience::while_alive);
    const SessionMessage message = parse_session_message(bytes, static_cast<int>(models.size()));
    if (message.engine == 0) {
      return message.status;
    }
    engines.push_back(
        std::async(std::launch::async, serve_engine, engine_rendezvous(options, message.engine),
                   std::cref(models[static_cast<size_t>(message.model)]), message.options));
  }
}

bool all_end_in_time(const std::vector<std::future<void>>& engines) {
  const auto deadline = std::chrono::steady_clock::now() + kForEngines;
  return std::all_of(engines.begin(), engines.end(), [&](const std::future<void>& engine) {
    return engine.wait_until(deadline) == std::future_status::ready;
  });
}

}  // namespace

void serve_rank(const std::string& tool, const RendezvousOptions& options,
                const std::vector<RankModel>& models) {
  const std::unique_ptr<Communicator> comm = make_tcp_communicator(options);
  ::signal(SIGINT, SIG_IGN);
  std::vector<std::future<void>> engines;
  int status = EXIT_SUCCESS;
  std::string reason;
  try {
    status = serve_session(*comm, options, models, engines);
  } catch (const std::exception& error) {
    comm->abort(error.what());
    reason = comm->abort_reason().value();
  }
  if (!all_end_in_time(engines)) {
    // One that loads, or computes a long step, has not looked whether there is still a rank 0.
    if (!reason.empty()) {
      report_error(tool, reason);
    }
    std::_Exit(reason.empty() ? status : EXIT_FAILURE);
  }
  require(reason.empty(), "{}", reason);
  if (status == kInterrupted) {
    throw Interrupted{};
  }
  require(status == EXIT_SUCCESS, "rank 0 has ended with the exit code {}", status);
}

}  // namespace sparsellm
