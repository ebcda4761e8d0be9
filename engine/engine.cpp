#include "engine/engine.h"

#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <utility>

#include "engine/choose.h"
#include "engine/delivery.h"
#include "engine/format_selection.h"
#include "engine/rank_group.h"
#include "engine/rank_options.h"
#include "engine/rank_process.h"
#include "engine/resolve_options.h"
#include "engine/step_tables.h"
#include "kernels/base/comm_threads.h"
#include "kernels/base/error.h"
#include "kernels/paged_kv.h"
#include "models/foreign_tensors.h"
#include "models/shard.h"
#include "models/storage/model_file.h"
#include "models/storage/safetensors.h"
#include "models/weights/random_loader.h"
#include "sparse/registry.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::mt19937_64 unpredictable_seeds() {
  std::random_device device;
  std::seed_seq words{device(), device(), device(), device()};
  return std::mt19937_64(words);
}

// An enqueued step whose tokens have not been delivered.
struct Step {
  Scheduler::Plan plan;
  std::vector<Choice> choices;  // of the plan
  // Whose log-probabilities the device tells, in the order of StepRunner::log_probs().
  std::vector<LogitRow> log_prob_rows;
  int number = 0;  // the runner's
};

// To a request's listener, before its first row is computed.
void tell_start(Sequence& sequence) {
  if (std::exchange(sequence.started, true) || sequence.sample > 0 ||
      !sequence.request().on_start) {
    return;
  }
  try {
    sequence.request().on_start();
  } catch (...) {
    finish(sequence, FinishReason::error, current_error());
  }
}

// Of all ranks that are threads, or of rank 0.
std::vector<std::unique_ptr<Communicator>> make_communicators(const EngineOptions& options,
                                                              const LayerFormats& formats) {
  const TensorParallel& ranks = options.tensor_parallel;
  if (!ranks.meet) {
    std::vector<std::string> devices;
    for (const Device device : ranks.devices) {
      devices.push_back(to_string(device));
    }
    return make_thread_communicators(ranks.degree,
                                     {.devices = std::move(devices), .timeout = ranks.timeout});
  }
  std::vector<std::unique_ptr<Communicator>> comms;
  comms.push_back(ranks.meet(rank_options_text(options, formats)));
  require(comms.front()->size() == ranks.degree && comms.front()->rank() == 0,
          "rank {} of {} where rank 0 of {} is expected", comms.front()->rank(),
          comms.front()->size(), ranks.degree);
  return comms;
}

constexpr std::string_view kOfF16 =
    "the model's logits contain NaN or infinity; a key or value may be beyond f16, in which the KV "
    "cache holds it: --kv-dtype f32 has no such limit";

}  // namespace

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::error:
      return "error";
  }
  return "?";
}

void Completion::add(const TokenEvent& event) {
  error = event.error;
  if (event.token) {
    tokens.push_back(*event.token);
  }
  text += event.text;
  if (event.log_probs != nullptr) {
    log_probs.push_back(*event.log_probs);
  }
  prompt_log_probs.insert(prompt_log_probs.end(), event.prompt_log_probs.begin(),
                          event.prompt_log_probs.end());
  // After all that may throw: what has not taken its last event whole has not finished.
  if (event.finish) {
    finish = *event.finish;
  }
}

struct Engine::State {
  State(const EngineOptions& engine_options, ModelConfig model_config,
        std::unique_ptr<RankGroup> all_ranks)
      : options(engine_options),
        config(std::move(model_config)),
        context(choose_context_size(options, config)),
        steps_ahead(choose_steps_ahead(options)),
        ranks(std::move(all_ranks)),
        scheduler(scheduler_limits(options), ranks->first().kv().pages(), config.window),
        fresh_seeds(unpredictable_seeds()) {
    in_flight.reserve(static_cast<size_t>(steps_ahead) + 1);
  }

  void check(const Request& request) const;
  void check_prompt(const Request& request) const;
  int64_t longest_prompt(const Request& request) const;
  int64_t max_length(const Request& request, int64_t prompt_length) const;
  void check_id(int32_t id, std::string_view what) const;
  SampledOn sampled_on() const {
    return ranks->first().samples() ? SampledOn::device : SampledOn::host;
  }
  void launch(Step& step);
  void choose_on_host(std::span<Choice> choices);
  void take_tokens(Step& step);
  void take_log_probs(Step& step);
  void deliver_step(const Step& step);
  void finish_oldest();
  void fail_step(const Step& step, std::string_view error);
  void fail_in_flight(std::string_view error);
  void note_loss();
  void require_device() const;
  void count_neurons();
  void note_preemptions(const Scheduler::Plan& plan);

  EngineOptions options;
  ModelConfig config;
  GenerationDefaults defaults;
  std::vector<FormatChoice> format_choices;
  std::unique_ptr<Tokenizer> tokenizer;
  int64_t context;
  int steps_ahead;
  std::unique_ptr<RankGroup> ranks;
  Scheduler scheduler;
  EngineStats stats;
  std::vector<Step> in_flight;  // oldest first; at most steps_ahead between two calls
  PlannedStep planned;          // the step that is being launched
  std::mt19937_64 fresh_seeds;
  int64_t next_id = 1;
  int64_t next_order = 1;
  int calls = 0;              // of step() and cancel() that are under way; callbacks may call back
  bool has_finished = false;  // sequences that are to be retired
  std::optional<std::string> failed;
};

// While a call is under way no sequence is destroyed: a callback of it may be running.
class Engine::CallScope {
 public:
  explicit CallScope(State& state) : state_(state) { ++state_.calls; }
  ~CallScope() {
    if (--state_.calls == 0 && state_.has_finished) {
      state_.has_finished = false;
      const Scheduler::Sequences done = state_.scheduler.retire_finished();
    }
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  State& state_;
};

void Engine::State::check_id(int32_t id, std::string_view what) const {
  require(id >= 0 && id < config.vocab_size, "{} {} is outside the vocabulary of {}", what, id,
          config.vocab_size);
}

// With nothing to generate it may fill the context.
int64_t Engine::State::longest_prompt(const Request& request) const {
  return request.max_tokens == 0 ? context : context - 1;
}

void Engine::State::check_prompt(const Request& request) const {
  const auto length = static_cast<int64_t>(request.prompt.size());
  require(length > 0, "the prompt is empty");
  require(length <= longest_prompt(request), "the prompt has {} tokens, but the context holds {}{}",
          length, context, request.max_tokens == 0 ? "" : " with at least one to generate");
  require(request.decode_from.value_or(length) <= length,
          "decode_from {}; use 1 to the length of the prompt, which is {}",
          request.decode_from.value_or(0), length);
  for (int32_t id : request.prompt) {
    check_id(id, "token id");
  }
}

// Of prompt and continuation.
int64_t Engine::State::max_length(const Request& request, int64_t prompt_length) const {
  const int64_t pool = ranks->first().kv().pages() * kPageSize;
  // Without a limit the continuation takes what there is, but has room for a token.
  const int64_t most =
      request.max_tokens < 0 ? std::max(std::min(context, pool), prompt_length + 1) : context;
  const int64_t room = most - prompt_length;
  const int64_t length =
      prompt_length + (request.max_tokens < 0 ? room : std::min(request.max_tokens, room));
  require(pages_for(length) <= ranks->first().kv().pages(),
          "a request of up to {} tokens does not fit the KV cache of {} tokens", length, pool);
  return length;
}

// All but the prompt.
void Engine::State::check(const Request& request) const {
  validate(request.sampling);
  require(request.max_tokens >= -1, "max_tokens {} is negative", request.max_tokens);
  require(request.stop_token_ids.size() <= kMaxStopTokens, "{} stop tokens; use at most {}",
          request.stop_token_ids.size(), kMaxStopTokens);
  for (int32_t id : request.stop_token_ids) {
    check_id(id, "stop token id");
  }
  for (const LogitBias& bias : request.sampling.logit_bias) {
    check_id(bias.token, "token id of a logit bias");
  }
  require(request.samples >= 1 && request.samples <= kMaxSamples, "{} samples; use 1 to {}",
          request.samples, kMaxSamples);
  require(request.samples == 1 || !request.on_logits, "on_logits is for a single sample");
  require(request.on_logits || !request.score_prompt, "score_prompt needs on_logits");
  require(request.stop.empty() || tokenizer, "stop texts need a tokenizer");
  require(request.stop.size() <= kMaxStops, "{} stop texts; use at most {}", request.stop.size(),
          kMaxStops);
  for (const std::string& stop : request.stop) {
    require(!stop.empty(), "a stop text is empty");
    require(stop.size() <= kMaxStopBytes, "a stop text has {} bytes; use at most {}", stop.size(),
            kMaxStopBytes);
    check_text(stop);
  }
  const int32_t log_probs = request.log_probs.value_or(0);
  require(log_probs >= 0 && log_probs <= kMaxTopLogProbs, "{} log-probabilities; use 0 to {}",
          log_probs, kMaxTopLogProbs);
  require(request.log_probs || !request.prompt_log_probs,
          "log-probabilities of the prompt alone; set log_probs too");
  require(!request.decode_from ||
              (*request.decode_from >= 1 && *request.decode_from <= longest_prompt(request)),
          "decode_from {}; use 1 to the length of the prompt, which is at most {}",
          request.decode_from.value_or(0), longest_prompt(request));
}

void Engine::State::deliver_step(const Step& step) {
  scheduler.end_step(step.plan);
  for (const Scheduler::Chunk& chunk : step.plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    // A callback or the step before may have ended it.
    if (!sequence.finish && chunk.choice) {
      try {
        deliver(sequence, step.choices[static_cast<size_t>(*chunk.choice)], config.eos_token_ids);
      } catch (...) {
        finish(sequence, FinishReason::error, current_error());
      }
    } else if (chunk.first + chunk.count == sequence.max_length) {
      finish(sequence, FinishReason::length);  // nothing was to be generated
    }
    has_finished = has_finished || sequence.finish;
  }
}

// When it returns, the step is enqueued, and what its requests want to see of logits or have chosen
// on the host is done.
void Engine::State::launch(Step& step) {
  step.choices.resize(static_cast<size_t>(step.plan.choices));
  const std::span<const Choice> before =
      in_flight.empty() ? std::span<const Choice>() : in_flight.back().choices;
  planned.set(step.plan, before, sampled_on());
  step.log_prob_rows.assign(planned.log_prob_rows().begin(), planned.log_prob_rows().end());
  try {
    step.number = ranks->launch(planned.step());
    choose_on_host(step.choices);
  } catch (...) {
    ranks->give_up(current_error());
    throw;
  }
}

void Engine::State::choose_on_host(std::span<Choice> choices) {
  const bool is_f16 =
      !options.device.is_cuda() && ranks->first().kv().layer(0).k.dtype() == DType::f16;
  std::span<const LogitRow> rows = planned.host_rows();
  while (const std::optional<Tensor> logits = ranks->next_logits()) {
    const auto count = static_cast<size_t>(logits->size(0));
    choose(rows.first(count), *logits, config.eos_token_ids, ranks->first().exec().threads, choices,
           is_f16 ? kOfF16 : kLogitsNotFinite);
    rows = rows.subspan(count);
  }
}

// Waits for those that the device has chosen.
void Engine::State::take_tokens(Step& step) {
  const std::span<const int32_t> tokens = ranks->finish(step.number);
  if (sampled_on() == SampledOn::host) {
    return;
  }
  for (const Scheduler::Chunk& chunk : step.plan.chunks) {
    if (!chunk.choice || chunk.sequence->samples_on_host()) {
      continue;
    }
    Choice& choice = step.choices[static_cast<size_t>(*chunk.choice)];
    choice.token = tokens[static_cast<size_t>(*chunk.choice)];
    if (choice.token == kNoToken) {
      choice.error = "the model's logits contain NaN or infinity, or every token is banned";
    }
  }
  take_log_probs(step);
}

// Of tokens that the device has chosen, and of those of prompts.
void Engine::State::take_log_probs(Step& step) {
  const std::span<const LogProbs> all = ranks->log_probs();
  require(all.size() == step.log_prob_rows.size(), "{} log-probabilities of {} rows", all.size(),
          step.log_prob_rows.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const LogitRow& row = step.log_prob_rows[i];
    Sequence& sequence = *row.sequence;
    if (sequence.finish) {
      continue;
    }
    if (!row.choice && all[i].finite == 0) {
      finish(sequence, FinishReason::error, kLogitsNotFinite);
      continue;
    }
    try {
      TokenLogProbs told =
          token_log_probs(all[i], *sequence.request().log_probs, config.vocab_size);
      if (row.choice) {
        step.choices[static_cast<size_t>(*row.choice)].log_probs = std::move(told);
      } else {
        sequence.prompt_log_probs.push_back(std::move(told));
      }
    } catch (...) {
      finish(sequence, FinishReason::error, current_error());
    }
  }
}

// Of all layers and steps, as far as the device has come.
void Engine::State::count_neurons() {
  if (failed || config.activation_sparsity.mode == ActivationSparsity::Mode::off) {
    return;  // what was known before the device was lost
  }
  NeuronCounts all;
  for (const NeuronCounts& layer : ranks->neuron_counts()) {
    all += layer;
  }
  stats.neurons = all;
}

// Half a step cannot be taken back: its requests end, the others go on.
void Engine::State::fail_step(const Step& step, std::string_view error) {
  scheduler.end_step(step.plan);
  has_finished = true;
  for (const Scheduler::Chunk& chunk : step.plan.chunks) {
    finish(*chunk.sequence, FinishReason::error, error);
  }
}

void Engine::State::fail_in_flight(std::string_view error) {
  for (const Step& step : in_flight) {
    fail_step(step, error);
  }
  in_flight.clear();  // which keeps its memory
}

// In a handler; before listeners, which may submit something, are called.
void Engine::State::note_loss() {
  try {
    throw;
  } catch (const DeviceLost& error) {
    failed = error.what();
  } catch (...) {
    // The next step may do better.
  }
}

void Engine::State::require_device() const {
  if (failed) {
    throw DeviceLost(*failed);
  }
}

// Waits for the oldest step and tells its listeners. A device that has failed has failed for all
// that was enqueued.
void Engine::State::finish_oldest() {
  try {
    take_tokens(in_flight.front());
  } catch (...) {
    note_loss();
    fail_in_flight(current_error());
    throw;
  }
  const Step done = std::move(in_flight.front());
  in_flight.erase(in_flight.begin());
  deliver_step(done);
}

void Engine::State::note_preemptions(const Scheduler::Plan& plan) {
  for (const Sequence* sequence : plan.preempted) {
    const auto level = stats.preemptions == 0 ? spdlog::level::warn : spdlog::level::info;
    ++stats.preemptions;
    if (options.log != nullptr) {
      options.log->log(
          level,
          "the KV cache of {} tokens is full: request {} gives way after {} tokens and "
          "is computed again later",
          ranks->first().kv().pages() * kPageSize, sequence->submission->id,
          sequence->known_length());
    }
  }
}

struct Engine::Origin {
  // Of the weights that a rank has, with its options; called by the threads of all ranks at once.
  std::function<std::unique_ptr<WeightLoader>(const EngineOptions& options, const Shard& shard)>
      make_loader;
  LayerFormats formats;  // those that "auto" has chosen, which the loader knows
};

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Engine Engine::load(const OpenDirectory& directory, const EngineOptions& given) {
  const Clock::time_point start = Clock::now();
  const EngineOptions options = with_devices(given);
  ModelConfig config = config_to_run(read_model_config(directory), options);
  choose_context_size(options, config);  // what can be refused is refused before weights load
  scheduler_limits(options);
  const GenerationDefaults defaults = read_generation_defaults(directory);
  std::unique_ptr<Tokenizer> tokenizer;
  if (options.with_tokenizer) {
    tokenizer = load_tokenizer(directory);
  }
  const Checkpoint checkpoint(directory);
  if (options.verify) {
    const std::string not_compared = ModelFile(checkpoint).verify(options.progress);
    if (options.log != nullptr && !not_compared.empty()) {
      options.log->warn("{}", not_compared);
    }
  }
  require_separate_projections(checkpoint);
  require_only_linear_layers_quantized(checkpoint, config);
  const std::string left_out = left_out_warning(left_out_tensors(checkpoint, config));
  if (options.log != nullptr && !left_out.empty()) {
    options.log->warn("{}", left_out);
  }
  WeightEncoding encoding{.format = options.weight_format, .records = options.records};
  std::vector<FormatChoice> choices;
  if (options.weight_format == kAutoFormat) {
    choices = select_formats(config, checkpoint, options);
    encoding.format.clear();
    encoding.layers = layer_formats(choices);
  }
  const auto loader = [&](const EngineOptions& of_rank, const Shard& shard) {
    return checkpoint_loader(checkpoint, encoding, of_rank, shard);
  };
  Engine engine = build(std::move(config), {loader, encoding.layers}, options, start);
  engine.state_->format_choices = std::move(choices);
  engine.state_->defaults = defaults;
  engine.state_->tokenizer = std::move(tokenizer);
  return engine;
}

Engine Engine::load_random(const std::filesystem::path& config_file, const RandomWeights& weights,
                           const EngineOptions& given) {
  const Clock::time_point start = Clock::now();
  const EngineOptions options = with_devices(given);
  ModelConfig config = config_to_run(read_model_config_file(config_file), options);
  choose_context_size(options, config);
  scheduler_limits(options);
  std::vector<FormatChoice> choices = select_formats(config, weights, options);
  const LayerFormats formats = layer_formats(choices);
  const RandomWeights in_their_formats = in_formats(weights, formats);
  const auto loader = [&](const EngineOptions& of_rank, const Shard& shard) {
    return std::make_unique<RandomLoader>(of_rank.device, in_their_formats, shard);
  };
  Engine engine = build(std::move(config), {loader, formats}, options, start);
  engine.state_->format_choices = std::move(choices);
  return engine;
}

Engine Engine::build(ModelConfig config, const Origin& origin, const EngineOptions& options,
                     std::chrono::steady_clock::time_point start) {
  for (const std::string* const warning : {&config.warning, &config.quantization_warning}) {
    if (options.log != nullptr && !warning->empty()) {
      options.log->warn("{}", *warning);
    }
  }
  double weight_seconds = 0.0;
  std::unique_ptr<RankGroup> ranks;
  if (const int degree = options.tensor_parallel.degree; degree > 1) {
    const auto load_rank = [&](Communicator& comm) {
      const EngineOptions own = options_of_rank(options, comm);
      const auto weights = origin.make_loader(own, {.rank = comm.rank(), .degree = degree});
      auto rank = std::make_unique<Rank>(own, config, *weights, &comm);
      if (comm.rank() == 0) {
        weight_seconds = seconds_since(start);
      }
      return rank;
    };
    ranks = std::make_unique<RankGroup>(make_communicators(options, origin.formats), load_rank);
  } else {
    auto rank = std::make_unique<Rank>(options, config, *origin.make_loader(options, {}));
    weight_seconds = seconds_since(start);
    rank->prepare();
    rank->start(rank->fitting_pages());
    ranks = std::make_unique<RankGroup>(std::move(rank));
  }
  auto state = std::make_unique<State>(options, std::move(config), std::move(ranks));
  const Rank& first = state->ranks->first();
  EngineStats& stats = state->stats;
  stats.weight_bytes = first.weight_bytes();
  stats.kv_bytes = first.kv().bytes();
  stats.workspace_bytes = first.step_bytes();
  stats.tuned_choices = first.tuned_choices();
  stats.weight_seconds = weight_seconds;
  stats.load_seconds = seconds_since(start);
  const std::set<int64_t> most_rows = first.decoder().most_rows_by_neurons();
  if (options.log != nullptr && options.device.is_cuda() && !options.deterministic &&
      !most_rows.empty()) {
    options.log->info(
        "activation sparsity: weights are skipped for up to {} tokens at once, more are multiplied "
        "densely",
        fmt::join(most_rows, " or "));
  }
  if (options.log != nullptr && stats.tuned_choices > 0) {
    options.log->info("{} choices of kernels measured; loaded in {:.1f} s", stats.tuned_choices,
                      stats.load_seconds);
  }
  return Engine(std::move(state));
}

int64_t Engine::submit(Request request, OnToken on_token) {
  State& state = *state_;
  state.require_device();
  state.check(request);
  state.check_prompt(request);
  const int64_t max_length = state.max_length(request, static_cast<int64_t>(request.prompt.size()));

  const uint64_t seed = request.seed ? *request.seed : state.fresh_seeds();
  const int64_t id = state.next_id++;
  const auto submission = std::make_shared<const Submission>(
      Submission{.id = id, .request = std::move(request), .on_token = std::move(on_token)});
  Scheduler::Sequences sequences;
  for (int32_t sample = 0; sample < submission->request.samples; ++sample) {
    auto sequence = std::make_unique<Sequence>();
    sequence->order = state.next_order++;
    sequence->submission = submission;
    sequence->sample = sample;
    sequence->seed = sample_seed(seed, sample);
    sequence->max_length = max_length;
    // The host needs to know all tokens before it chooses the next one.
    const bool on_device = state.sampled_on() == SampledOn::device;
    sequence->looks_ahead = on_device ? !sequence->samples_on_host() : !sequence->uses_logits();
    if (on_device && sequence->adjusts_logits() && !sequence->samples_on_host()) {
      sequence->adjustments.emplace(submission->request.sampling, state.config.vocab_size);
    }
    if (state.tokenizer) {
      sequence->text.emplace(*state.tokenizer, /*continues=*/true,
                             submission->request.show_special_tokens);
    }
    sequence->stops = StopMatcher(submission->request.stop);
    sequences.push_back(std::move(sequence));
  }
  state.scheduler.add(std::move(sequences));
  return id;
}

void Engine::check(const Request& request) const {
  state_->require_device();
  state_->check(request);
  state_->max_length(request, request.decode_from.value_or(1));
}

bool Engine::step() {
  State& state = *state_;
  require(state.calls == 0, "step() was called from a callback");
  state.require_device();
  const Clock::time_point start = Clock::now();
  const CallScope scope(state);
  Step next{.plan = state.scheduler.plan(), .choices = {}, .log_prob_rows = {}};
  const bool launched = !next.plan.empty();
  if (!launched && state.in_flight.empty()) {
    return false;
  }
  state.note_preemptions(next.plan);
  int64_t decode_rows = 0;
  int64_t all_rows = 0;
  if (launched) {
    for (const Scheduler::Chunk& chunk : next.plan.chunks) {
      decode_rows += chunk.decode ? 1 : 0;
      all_rows += chunk.count;
      tell_start(*chunk.sequence);
    }
    try {
      state.launch(next);
    } catch (...) {
      state.note_loss();
      if (state.failed) {
        state.fail_in_flight(*state.failed);
      }
      state.fail_step(next, current_error());
      throw;
    }
    state.stats.decode_tokens += decode_rows;
    state.stats.prefill_tokens += all_rows - decode_rows;
    state.stats.recomputed_tokens += next.plan.recomputed;
    state.stats.shared_tokens += next.plan.shared;
    state.stats.steps += 1;
    state.in_flight.push_back(std::move(next));
  }
  if (!launched || std::ssize(state.in_flight) > state.steps_ahead) {
    state.finish_oldest();
  }
  state.stats.waits = state.ranks->first().waits();
  const double seconds = seconds_since(start);
  const double decode_share =
      launched ? static_cast<double>(decode_rows) / static_cast<double>(all_rows) : 1.0;
  state.stats.decode_seconds += seconds * decode_share;
  state.stats.prefill_seconds += seconds * (1.0 - decode_share);
  return true;
}

void Engine::cancel(int64_t id) {
  State& state = *state_;
  const CallScope scope(state);
  while (Sequence* sequence = state.scheduler.find(id)) {
    state.has_finished = true;
    finish(*sequence, FinishReason::cancelled);
  }
}

std::vector<Completion> Engine::generate(std::vector<Request> requests) {
  require(state_->calls == 0, "generate() was called from a callback");
  state_->require_device();
  std::vector<std::vector<Completion>> samples(requests.size());
  std::vector<int64_t> submitted;
  submitted.reserve(requests.size());
  int64_t open = 0;
  try {
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<Completion>& completions = samples[i];
      completions.resize(1);
      const int32_t count = requests[i].samples;
      const auto collect = [&completions, &open](const TokenEvent& event) {
        Completion& completion = completions.at(static_cast<size_t>(event.sample));
        completion.add(event);
        open -= event.finish ? 1 : 0;
      };
      try {
        submitted.push_back(submit(std::move(requests[i]), collect));
      } catch (const Error& error) {
        completions.front().error = error.what();
        continue;
      }
      open += count;
      completions.resize(static_cast<size_t>(count));
    }
    while (open > 0 && step()) {
    }
  } catch (...) {
    for (int64_t id : submitted) {
      cancel(id);  // their callbacks refer to this call's variables
    }
    throw;
  }
  std::vector<Completion> all;
  for (size_t i = 0; i < samples.size(); ++i) {
    for (size_t sample = 0; sample < samples[i].size(); ++sample) {
      all.push_back(std::move(samples[i][sample]));
      all.back().request = i;
      all.back().sample = static_cast<int32_t>(sample);
    }
  }
  return all;
}

const std::optional<std::string>& Engine::failed() const { return state_->failed; }

const ModelConfig& Engine::config() const { return state_->config; }

const GenerationDefaults& Engine::generation_defaults() const { return state_->defaults; }

const Tokenizer& Engine::tokenizer() const {
  require(state_->tokenizer != nullptr, "the engine was loaded without a tokenizer");
  return *state_->tokenizer;
}

int64_t Engine::context_size() const { return state_->context; }

std::vector<NeuronCounts> Engine::neuron_counts() const { return state_->ranks->neuron_counts(); }

std::vector<FormatSum> Engine::linear_weights() const {
  return state_->ranks->first().decoder().linear_weights();
}
std::vector<BlockWeight> Engine::block_weights() const {
  return state_->ranks->first().decoder().block_weights();
}
const std::vector<FormatChoice>& Engine::format_choices() const { return state_->format_choices; }
const EngineStats& Engine::stats() const {
  try {
    state_->count_neurons();
  } catch (const DeviceLost&) {
    // The next step says so.
  }
  state_->stats.running = state_->scheduler.running();
  state_->stats.waiting = state_->scheduler.waiting();
  return state_->stats;
}

std::vector<std::pair<std::string, double>> Engine::decode_seconds() const {
  state_->require_device();
  return state_->ranks->first().decode_seconds();
}

int64_t Engine::free_pages() const { return state_->scheduler.pages().free_pages(); }

int64_t Engine::total_pages() const { return state_->scheduler.pages().total_pages(); }

}  // namespace sparsellm
