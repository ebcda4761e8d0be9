#include "tools/serve/server.h"

#include <atomic>
#include <thread>
#include <utility>

#include "tools/serve/api.h"

namespace sparsellm {
namespace {

constexpr int kWorkers = 2;
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
                  [this](std::shared_ptr<HttpExchange> exchange) {
                    api.handle(std::move(exchange));
                  },
              .error = [this](int status, std::string_view why) { return api.error(status, why); },
              .tick = [this] { tick(); }}),
        api(api_options()),
        loop([this](std::unique_ptr<LoopEvents> events) { deliver(std::move(events)); }),
        workers(kWorkers),
        thread([this] { http.run(); }) {}

  ~State() {
    http.post([this] { http.stop(); });
    thread.join();
  }

  Api::Options api_options() {
    AccessOptions access = options.access;
    access.on_loopback = http.on_loopback();
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

  std::function<void(std::function<void()>)> poster() {
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
                          .defaults = completion_defaults(model.defaults)});
    completions.emplace(
        context, options.limits,
        Completions::Parts{.loop = loop, .workers = workers, .post = poster(), .metrics = metrics});
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
      api.set_state(ServeState::draining);
      http.stop_accepting();
    }
    const bool idle = !completions || completions->empty();
    if (!idle && now > *drain_end) {
      completions->end_all(503, "the server is shutting down");
    } else if (idle) {
      loop.stop();
    }
  }

  // Waits until answers are sent that are complete.
  void send_rest() {
    const Clock::time_point end = Clock::now() + kLastAnswers;
    std::atomic<bool> sending = true;
    while (sending && Clock::now() < end) {
      std::atomic<bool> answered = false;
      http.post([&] {
        sending = http.sending();
        answered = true;
        answered.notify_one();
      });
      answered.wait(false);
      if (sending) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
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
  state.loop.run(model.engine, state.log);
  const bool lost = model.engine.failed().has_value();
  if (lost) {
    const std::string why = *model.engine.failed();
    state.log(why);
    std::atomic<bool> ended = false;
    state.http.post([&] {
      state.api.set_state(ServeState::lost);
      state.completions->end_all(503, "the model's device is lost");
      state.http.stop_accepting();
      ended = true;
      ended.notify_one();
    });
    ended.wait(false);
  }
  state.send_rest();
  return !lost;
}

}  // namespace sparsellm
