#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"

namespace sparsellm {

// What the loop needs of an engine, so that tests can have another one; Engine says what each does.
class ServedEngine {
 public:
  virtual ~ServedEngine() = default;
  virtual int64_t submit(Request request, OnToken on_token) = 0;
  virtual void cancel(int64_t id) = 0;
  virtual bool step() = 0;
  virtual const std::optional<std::string>& failed() const = 0;

  struct Status {
    EngineStats stats;
    int64_t free_pages = 0;
    int64_t total_pages = 0;
  };
  virtual Status status() const = 0;
};
std::unique_ptr<ServedEngine> served(Engine& engine);  // which outlives it

// Requests that were submitted together, as the body of one HTTP request has them.
using Ticket = uint64_t;

// What a step has brought, of all tickets; texts and log-probabilities lie together, so that a
// token costs no allocation.
struct LoopEvents {
  enum class Kind : uint8_t {
    accepted,  // all requests of the ticket are in the engine
    refused,   // none of them is, and nothing more comes: `error` says what is wrong with them
    failed,    // the same, for a reason that is not theirs
    started,   // the first of them is being computed
    token,     // a TokenEvent
  };
  struct Event {
    Ticket ticket = 0;
    Kind kind = Kind::token;
    int32_t request = 0;  // of the ticket
    int32_t sample = 0;
    std::optional<int32_t> token = {};
    uint32_t text_begin = 0;  // in `text`
    uint32_t text_end = 0;
    int32_t log_probs = -1;         // in `log_probs`; -1: none
    int32_t prompt_log_probs = -1;  // the first of those of the prompt
    int32_t prompt_log_probs_count = 0;
    std::optional<FinishReason> finish = {};
    int32_t error = -1;  // in `errors`
  };

  std::vector<Event> events;
  std::string text;
  std::vector<TokenLogProbs> log_probs;
  std::vector<std::string> errors;
  bool lost = false;  // the engine's device: what failed is nobody's fault

  std::string_view text_of(const Event& event) const;
  std::string_view error_of(const Event& event) const;
};

// Runs an engine on one thread for requests that come from another.
class EngineLoop {
 public:
  // Called by run() once after each step that has brought something, on its thread.
  using Deliver = std::function<void(std::unique_ptr<LoopEvents> events)>;

  explicit EngineLoop(Deliver deliver) : deliver_(std::move(deliver)) {}

  // From any thread. Unknown tickets, and those that have ended, are passed over by cancel().
  void submit(Ticket ticket, std::vector<Request> requests);
  void cancel(Ticket ticket);
  void stop();  // run() returns after the step that it is in

  // At most a fraction of a second old, and current while the engine has nothing to do.
  ServedEngine::Status status() const;

  // Until stop(), or until the engine's device is lost (ServedEngine::failed()). Tickets that have
  // not ended by then get no more events. `log` is told about steps that fail.
  void run(ServedEngine& engine, const std::function<void(std::string_view)>& log);

 private:
  struct Command {
    Ticket ticket = 0;
    std::optional<std::vector<Request>> requests;  // absent: cancel
  };
  struct Live {
    std::vector<int64_t> ids;
    int64_t open = 0;  // samples that have not ended
  };

  void take_commands(ServedEngine& engine, bool wait);
  void submit_now(ServedEngine& engine, Command& command);
  void add_token(Ticket ticket, int32_t request, const TokenEvent& event);
  void refuse(Ticket ticket, LoopEvents::Kind kind, std::string_view why);
  void abandon(ServedEngine& engine, Ticket ticket);
  void hand_over(bool lost);
  void publish(const ServedEngine& engine);

  Deliver deliver_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Command> commands_;
  bool stops_ = false;
  ServedEngine::Status status_;

  // Of run() alone.
  std::unordered_map<Ticket, Live> live_;
  std::unique_ptr<LoopEvents> events_ = std::make_unique<LoopEvents>();
};

}  // namespace sparsellm
