#include "tools/serve/server.h"

#include <algorithm>
#include <exception>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "tools/serve/api.h"

namespace sparsellm {
namespace {

constexpr int kWorkers = 2;
constexpr std::string_view kShutsDown = "the server is shutting down";
constexpr int64_t kLeastTasks = 64;  // that may wait for a worker
constexpr std::chrono::milliseconds kPollInterval{10};
// For answers to be sent that are complete.
constexpr std::chrono::seconds kLastAnswers{2};
constexpr int64_t kDefaultTokens = 16;

}  // namespace

Prompt completion_defaults(const GenerationDefaults& defaults) {
  const bool greedy = defaults.do_sample.has_value() && !*defaults.do_sample;
  Prompt prompt;
  prompt.request.sampling = {
      .temperature = greedy ? 0.0f : defaults.temperature.value_or(1.0f),
      .top_k = defaults.top_k.value_or(0),
      .top_p = defaults.top_p.value_or(1.0f),
      .min_p = defaults.min_p.value_or(0.0f),
      .repetition_penalty = defaults.repetition_penalty.value_or(1.0f),
  };
  prompt.request.max_tokens = kDefaultTokens;
  return prompt;
}

struct Server::State {
  using Clock = std::chrono::steady_clock;

  State(ServerOptions the_options, std::function<bool()> the_interrupted,
        std::function<void(std::string_view)> the_log)
      : options(std::move(the_options)),
        interrupted(std::move(the_interrupted)),
        log(std::move(the_log)),
        metrics(options.model),
        http(options.http,
             {.check = [this](const HttpHead& head) { return api.check(head); },
              .handle =
                  [this](const std::shared_ptr<HttpExchange>& exchange) { api.handle(exchange); },
              .error = [this](int status, std::string_view why) { return api.error(status, why); },
              .tick = [this] { tick(); },
              .failed = [this](std::string_view why) { log(why); }}),
        api(api_options()),
        loop([this](std::unique_ptr<LoopEvents> events) { deliver(std::move(events)); }),
        workers(kWorkers, static_cast<size_t>(std::max(options.limits.samples, kLeastTasks))),
        thread([this] { http.run(); }) {}

  ~State() {
    http.post([this] { http.stop(); });
    thread.join();
  }

  Api::Options api_options() {
    AccessOptions access = options.access;
    // No browser reaches a Unix socket, and who does may be a proxy of any name.
    access.on_loopback = http.on_loopback() && options.http.unix_path.empty();
    return {.access = std::move(access),
            .model = options.model,
            .version = options.version,
            .now = [this] {
              return ServeMetrics::Now{.connections = http.connections(),
                                       .slow_clients = http.cut_off(),
                                       .engine = loop.status(),
                                       .weights = weights};
            }};
  }

  Post poster() {
    return [this](std::function<void()> task) { http.post(std::move(task)); };
  }

  // On the engine's thread.
  void deliver(std::unique_ptr<LoopEvents> events) {
    http.post([this, events = std::shared_ptr<const LoopEvents>(std::move(events))] {
      completions->take(*events);
    });
  }

  // All below on the server's thread.
  void begin(const ServedModel& model) {
    weights = model.weights;
    context = std::make_shared<const CompletionContext>(
        CompletionContext{.tokenizer = model.tokenizer,
                          .context_size = model.context_size,
                          .model = options.model,
                          .defaults = completion_defaults(model.defaults),
                          .max_samples = options.limits.samples});
    completions.emplace(context, options.limits,
                        Completions::Parts{.loop = loop,
                                           .workers = workers,
                                           .post = poster(),
                                           .metrics = metrics,
                                           .headers = api.headers()});
    api.start(context, *completions, metrics, workers, poster());
    api.set_layers(layers_body(options.model, model.layers));
  }

  void tick() {
    if (completions) {
      completions->tick();
    }
    if (!interrupted()) {
      return;
    }
    const Clock::time_point now = Clock::now();
    if (!drain_end) {
      drain_end = now + options.drain;
      stop_taking(ServeState::draining, kShutsDown);
    }
    if (completions && now > *drain_end) {
      completions->end_all(503, kShutsDown);
    }
    if (idle()) {
      loop.stop();
    }
  }

  bool idle() const { return !completions || (completions->empty() && api.empty()); }

  // What was taken goes on.
  void stop_taking(ServeState state, std::string_view why) {
    api.set_state(state);
    http.stop_accepting();
    http.refuse_unread(503, why);
  }

  // Streams that have begun get an error as their last event, all others 503.
  void lose_engine(std::string_view why) {
    stop_taking(ServeState::lost, why);
    completions->end_all(503, why);
  }

  // The rest on the engine's thread.

  // Calls `task` on the server's thread and returns what it returns. What both threads know of the
  // call lives until the later of them is done with it.
  template <class Task>
  auto call(Task task) {
    auto shared = std::make_shared<std::packaged_task<decltype(task())()>>(std::move(task));
    auto result = shared->get_future();
    http.post([shared] { (*shared)(); });
    return result.get();
  }

  // Waits until no worker uses the model.
  void wait_for_workers() {
    while (!call([this] { return idle(); })) {
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  // Waits until answers are sent that are complete.
  void send_rest() {
    const Clock::time_point end = Clock::now() + kLastAnswers;
    while (Clock::now() < end && call([this] { return http.sending(); })) {
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  ServerOptions options;
  std::function<bool()> interrupted;
  std::function<void(std::string_view)> log;
  ServeMetrics metrics;
  std::vector<FormatSum> weights;
  HttpServer http;
  Api api;
  EngineLoop loop;
  std::shared_ptr<const CompletionContext> context;
  std::optional<Completions> completions;
  std::optional<Clock::time_point> drain_end;
  WorkerPool workers;
  std::thread thread;
};

Server::Server(ServerOptions options, std::function<bool()> interrupted,
               std::function<void(std::string_view)> log)
    : state_(std::make_unique<State>(std::move(options), std::move(interrupted), std::move(log))) {}

Server::~Server() = default;

std::string Server::address() const { return state_->http.address(); }
uint16_t Server::port() const { return state_->http.port(); }
bool Server::on_loopback() const { return state_->http.on_loopback(); }

bool Server::serve(const ServedModel& model) {
  State& state = *state_;
  state.http.post([&state, &model] { state.begin(model); });
  std::exception_ptr failure;  // for want of memory, most likely
  try {
    state.loop.run(model.engine, state.log);
  } catch (...) {
    failure = std::current_exception();
  }
  const std::optional<std::string>& lost = model.engine.failed();
  if (lost) {
    state.log(*lost);
  }
  if (lost || failure) {
    state.call(
        [&] { state.lose_engine(lost ? "the model's device is lost" : "the engine failed"); });
  }
  state.wait_for_workers();
  state.send_rest();
  if (failure) {
    std::rethrow_exception(failure);
  }
  return !lost;
}

}  // namespace sparsellm
