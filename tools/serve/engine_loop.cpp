#include "tools/serve/engine_loop.h"

#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// The status of an engine with activation sparsity is copied from its device.
constexpr std::chrono::milliseconds kStatusInterval{200};
// After a step that has failed: what it wanted may be there again.
constexpr std::chrono::milliseconds kFailedStepPause{10};

class RealEngine final : public ServedEngine {
 public:
  explicit RealEngine(Engine& engine) : engine_(engine) {}

  int64_t submit(Request request, OnToken on_token) override {
    return engine_.submit(std::move(request), std::move(on_token));
  }
  void cancel(int64_t id) override { engine_.cancel(id); }
  bool step() override { return engine_.step(); }
  const std::optional<std::string>& failed() const override { return engine_.failed(); }
  Status status() const override {
    return {.stats = engine_.stats(),
            .free_pages = engine_.free_pages(),
            .total_pages = engine_.total_pages()};
  }

 private:
  Engine& engine_;
};

}  // namespace

std::unique_ptr<ServedEngine> served(Engine& engine) {
  return std::make_unique<RealEngine>(engine);
}

std::string_view LoopEvents::text_of(const Event& event) const {
  return std::string_view(text).substr(event.text_begin, event.text_end - event.text_begin);
}

std::string_view LoopEvents::error_of(const Event& event) const {
  return event.error < 0 ? std::string_view()
                         : std::string_view(errors[static_cast<size_t>(event.error)]);
}

void EngineLoop::submit(Ticket ticket, std::vector<Request> requests) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({.ticket = ticket, .requests = std::move(requests)});
  }
  changed_.notify_one();
}

void EngineLoop::cancel(Ticket ticket) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({.ticket = ticket, .requests = {}});
  }
  changed_.notify_one();
}

void EngineLoop::stop() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_one();
}

ServedEngine::Status EngineLoop::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void EngineLoop::run(ServedEngine& engine, const std::function<void(std::string_view)>& log) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point published = {};
  bool busy = false;
  for (;;) {
    if (!busy) {
      publish(engine);
      published = Clock::now();
    }
    take_commands(engine, /*wait=*/!busy);
    {
      const std::lock_guard lock(mutex_);
      if (stops_) {
        break;
      }
    }
    try {
      busy = engine.step();
    } catch (const std::exception& error) {
      log(error.what());
      busy = true;
      std::this_thread::sleep_for(kFailedStepPause);
    }
    hand_over(engine.failed().has_value());
    if (engine.failed()) {
      break;
    }
    if (Clock::now() - published > kStatusInterval) {
      publish(engine);
      published = Clock::now();
    }
  }
  // What is left has no step any more.
  for (const auto& [ticket, live] : std::exchange(live_, {})) {
    if (!engine.failed()) {
      for (const int64_t id : live.ids) {
        engine.cancel(id);
      }
    }
  }
  hand_over(engine.failed().has_value());
  publish(engine);
}

void EngineLoop::take_commands(ServedEngine& engine, bool wait) {
  std::vector<Command> commands;
  {
    std::unique_lock lock(mutex_);
    if (wait) {
      changed_.wait(lock, [this] { return stops_ || !commands_.empty(); });
    }
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    if (command.requests) {
      submit_now(engine, command);
    } else if (live_.find(command.ticket) != live_.end()) {
      abandon(engine, command.ticket);
    }
  }
}

void EngineLoop::submit_now(ServedEngine& engine, Command& command) {
  const Ticket ticket = command.ticket;
  Live live;
  for (const Request& request : *command.requests) {
    live.open += request.samples;
  }
  const size_t count = command.requests->size();
  Live& entry = live_.emplace(ticket, std::move(live)).first->second;
  try {
    entry.ids.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      Request& request = (*command.requests)[i];
      if (i == 0) {
        request.on_start = [this, ticket] {
          events_->events.push_back({.ticket = ticket, .kind = LoopEvents::Kind::started});
        };
      }
      const auto index = static_cast<int32_t>(i);
      entry.ids.push_back(engine.submit(
          std::move(request),
          [this, ticket, index](const TokenEvent& event) { add_token(ticket, index, event); }));
    }
    events_->events.push_back({.ticket = ticket, .kind = LoopEvents::Kind::accepted});
  } catch (const DeviceLost& error) {
    abandon(engine, ticket);
    refuse(ticket, LoopEvents::Kind::failed, error.what());
  } catch (const Error& error) {
    abandon(engine, ticket);
    refuse(ticket, LoopEvents::Kind::refused, error.what());
  } catch (const std::bad_alloc&) {
    abandon(engine, ticket);
    refuse(ticket, LoopEvents::Kind::failed, "out of memory");
  } catch (const std::exception& error) {
    abandon(engine, ticket);
    refuse(ticket, LoopEvents::Kind::failed, error.what());
  }
}

// Ends what a ticket has in the engine. The last events of its requests have no ticket any more.
void EngineLoop::abandon(ServedEngine& engine, Ticket ticket) {
  const auto found = live_.find(ticket);
  const std::vector<int64_t> ids = std::move(found->second.ids);
  live_.erase(found);
  for (const int64_t id : ids) {
    engine.cancel(id);
  }
}

void EngineLoop::add_token(Ticket ticket, int32_t request, const TokenEvent& event) {
  const auto found = live_.find(ticket);
  if (found == live_.end()) {
    return;
  }
  LoopEvents& to = *events_;
  LoopEvents::Event added{.ticket = ticket,
                          .request = request,
                          .sample = event.sample,
                          .token = event.token,
                          .finish = event.finish};
  added.text_begin = static_cast<uint32_t>(to.text.size());
  to.text += event.text;
  added.text_end = static_cast<uint32_t>(to.text.size());
  if (event.log_probs != nullptr) {
    added.log_probs = static_cast<int32_t>(to.log_probs.size());
    to.log_probs.push_back(*event.log_probs);
  }
  if (!event.prompt_log_probs.empty()) {
    added.prompt_log_probs = static_cast<int32_t>(to.log_probs.size());
    added.prompt_log_probs_count = static_cast<int32_t>(event.prompt_log_probs.size());
    to.log_probs.insert(to.log_probs.end(), event.prompt_log_probs.begin(),
                        event.prompt_log_probs.end());
  }
  if (!event.error.empty()) {
    added.error = static_cast<int32_t>(to.errors.size());
    to.errors.emplace_back(event.error);
  }
  to.events.push_back(added);
  if (event.finish && --found->second.open == 0) {
    live_.erase(found);
  }
}

void EngineLoop::refuse(Ticket ticket, LoopEvents::Kind kind, std::string_view why) {
  LoopEvents::Event event{.ticket = ticket, .kind = kind};
  event.error = static_cast<int32_t>(events_->errors.size());
  events_->errors.emplace_back(why);
  events_->events.push_back(event);
}

void EngineLoop::hand_over(bool lost) {
  if (!events_->events.empty()) {
    events_->lost = lost;
    deliver_(std::exchange(events_, std::make_unique<LoopEvents>()));
  }
}

void EngineLoop::publish(const ServedEngine& engine) {
  const ServedEngine::Status status = engine.status();
  const std::lock_guard lock(mutex_);
  status_ = status;
}

}  // namespace sparsellm
