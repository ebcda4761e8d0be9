#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "kernels/base/comm.h"
#include "kernels/base/rendezvous.h"

namespace sparsellm {

// Of rank 0: the processes that a launcher has started for the ranks of a model, from when they
// have met until the tool ends. Each engine has a communicator of its own. One more, that of the
// session, tells the others of engines and of the end, and all of each other's failures: where one
// is gone, and this process does not end by itself within a second (it may be waiting for
// input), it says so and ends with the exit code 1.
class RankSession {
 public:
  // Throws Error if the ranks do not come, or do not fit together (meet()).
  RankSession(std::string tool, RendezvousOptions options);
  ~RankSession();
  RankSession(const RankSession&) = delete;
  RankSession& operator=(const RankSession&) = delete;

  // TensorParallel::meet of an engine with the weights of this model.
  std::unique_ptr<Communicator> start_engine(int model, const std::string& rank_options);

  // There are no more engines; the others end with this exit code. Throws Error if one has failed.
  void end(int status);
  // The others end with this line, and the exit code 1; what begins with the name of a rank is
  // taken as it is.
  void fail(std::string_view reason);

 private:
  void watch();

  std::string tool_;
  RendezvousOptions options_;
  std::unique_ptr<Communicator> comm_;
  int engines_ = 0;  // that were started
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread watch_;
};

// The same meeting for the engine with this number.
RendezvousOptions engine_rendezvous(RendezvousOptions session, int engine);

}  // namespace sparsellm
