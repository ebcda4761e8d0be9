#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <random>
#include <utility>

#include "kernels/base/error.h"
#include "models/registry.h"
#include "models/safetensors.h"

namespace sparsellm {
namespace {

using Clock = std::chrono::steady_clock;

// Rows whose logits are computed and looked at together.
constexpr int64_t kLogitRows = 128;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

uint64_t fresh_seed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

int64_t physical_memory() {
  return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
}

int64_t choose_context_size(const EngineOptions& options, const ModelConfig& config) {
  require(options.context_size >= 0, "a context of {} tokens is negative", options.context_size);
  require(options.context_size <= config.max_positions,
          "a context of {} tokens is more than the {} positions of the model", options.context_size,
          config.max_positions);
  return options.context_size > 0 ? options.context_size : config.max_positions;
}

int64_t choose_kv_pages(const EngineOptions& options, int64_t context_size, const KvShape& shape) {
  if (options.kv_tokens > 0) {
    return pages_for(options.kv_tokens);
  }
  const int64_t affordable = physical_memory() / 2 / (shape.bytes_per_token() * kPageSize);
  const int64_t wanted =
      checked_mul(pages_for(context_size), options.max_requests, "pages of the KV cache");
  return std::max(pages_for(context_size), std::min(wanted, affordable));
}

// Everything about the options that needs no model.
SchedulerLimits checked_limits(const EngineOptions& options) {
  require(options.kv_tokens >= 0, "a KV cache of {} tokens is negative", options.kv_tokens);
  require(options.threads >= 0 && options.threads <= ThreadPool::kMaxThreads,
          "{} threads; use 0 (all cores) to {}", options.threads, ThreadPool::kMaxThreads);
  require(options.max_requests >= 1 && options.max_requests <= 1 << 16,
          "{} requests at once; use 1 to 65536", options.max_requests);
  require(options.step_tokens >= options.max_requests && options.step_tokens <= 1 << 20,
          "{} tokens per step; use {} (one for each request) to 1048576", options.step_tokens,
          options.max_requests);
  return {.step_tokens = options.step_tokens, .max_requests = options.max_requests};
}

// What the exception being handled says.
std::string current_error() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

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

struct Engine::State {
  State(const EngineOptions& options, ModelConfig model_config,
        std::unique_ptr<Decoder> model_decoder)
      : config(std::move(model_config)),
        decoder(std::move(model_decoder)),
        limits(checked_limits(options)),
        context_size(choose_context_size(options, config)),
        device(options.device),
        kv(device, decoder->kv_shape(),
           choose_kv_pages(options, context_size, decoder->kv_shape())),
        scheduler(limits, kv.pages()),
        uploads(device, limits, pages_for(context_size)),
        hidden(allocate_tensor(device, decoder->activation_dtype(),
                               {limits.step_tokens, decoder->hidden_size()},
                               "the hidden states of a step")),
        logits(allocate_tensor(device, DType::f32, {kLogitRows, decoder->vocab_size()},
                               "the logits of a step")),
        workspace(device, decoder->workspace_bytes(limits.step_tokens, kLogitRows)),
        threads(options.threads),
        exec{.device = device, .workspace = workspace, .threads = threads} {}

  void check(const Request& request) const;
  void run_step(const Scheduler::Plan& plan);
  void handle_logits(std::span<const LogitRow> rows, const Tensor& values);
  void report_logits(const LogitRow& row, std::span<const float> values);
  void accept(Sequence& sequence, int32_t token);
  void finish(Sequence& sequence, FinishReason reason, std::string_view error = {});
  void emit(Sequence& sequence, const TokenEvent& event);
  bool is_eos(int32_t token) const {
    return std::find(config.eos_token_ids.begin(), config.eos_token_ids.end(), token) !=
           config.eos_token_ids.end();
  }

  ModelConfig config;
  GenerationDefaults defaults;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Decoder> decoder;
  SchedulerLimits limits;
  int64_t context_size;
  Device device;
  KvCache kv;
  Scheduler scheduler;
  StepUpload uploads;
  OwnedTensor hidden;  // [step_tokens, hidden_size]
  OwnedTensor logits;  // [kLogitRows, vocabulary]
  Workspace workspace;
  ThreadPool threads;
  ExecContext exec;
  EngineStats stats;
  int64_t next_id = 1;
  int calls = 0;  // of step() and cancel() that are under way; callbacks may call back
};

// While a call is under way no sequence is destroyed: a callback of it may be running.
class Engine::CallScope {
 public:
  explicit CallScope(State& state) : state_(state) { ++state_.calls; }
  ~CallScope() {
    if (--state_.calls == 0) {
      state_.scheduler.retire_finished();
    }
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  State& state_;
};

void Engine::State::check(const Request& request) const {
  const auto length = static_cast<int64_t>(request.prompt.size());
  validate(request.sampling);
  require(length > 0, "the prompt is empty");
  require(request.max_tokens >= -1, "max_tokens {} is negative", request.max_tokens);
  // With nothing to generate the prompt may fill the context.
  const int64_t longest = request.max_tokens == 0 ? context_size : context_size - 1;
  require(length <= longest, "the prompt has {} tokens, but the context holds {}{}", length,
          context_size, request.max_tokens == 0 ? "" : " with at least one to generate");
  for (int32_t id : request.prompt) {
    require(id >= 0 && id < config.vocab_size, "token id {} is outside the vocabulary of {}", id,
            config.vocab_size);
  }
}

void Engine::State::emit(Sequence& sequence, const TokenEvent& event) {
  if (!sequence.on_token) {
    return;
  }
  try {
    sequence.on_token(event);
  } catch (...) {
    if (!sequence.finish) {
      finish(sequence, FinishReason::error, current_error());
    }
    // An exception from the last event has nobody left to hear of it.
  }
}

void Engine::State::finish(Sequence& sequence, FinishReason reason, std::string_view error) {
  sequence.finish = reason;
  const std::string rest = sequence.text ? sequence.text->finish() : std::string();
  emit(sequence,
       {.request = sequence.id, .token = {}, .text = rest, .finish = reason, .error = error});
}

void Engine::State::accept(Sequence& sequence, int32_t token) {
  sequence.tokens.push_back(token);
  std::string text = sequence.text ? sequence.text->add(token) : std::string();
  if (is_eos(token)) {
    sequence.finish = FinishReason::stop;
  } else if (sequence.length() == sequence.max_length) {
    sequence.finish = FinishReason::length;
  }
  if (sequence.finish && sequence.text) {
    text += sequence.text->finish();
  }
  emit(sequence, {.request = sequence.id,
                  .token = token,
                  .text = text,
                  .finish = sequence.finish,
                  .error = {}});
}

void Engine::State::report_logits(const LogitRow& row, std::span<const float> values) {
  Sequence& sequence = *row.sequence;
  if (sequence.finish || !sequence.request.on_logits) {
    return;
  }
  try {
    sequence.request.on_logits(row.position, values);
  } catch (...) {
    finish(sequence, FinishReason::error, current_error());
  }
}

// values [rows.size(), vocabulary] f32, in host memory.
void Engine::State::handle_logits(std::span<const LogitRow> rows, const Tensor& values) {
  const auto row_values = [&](size_t i) {
    return std::span<const float>(values.row<float>(static_cast<int64_t>(i)),
                                  static_cast<size_t>(values.size(1)));
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    report_logits(rows[i], row_values(i));
  }
  struct Choice {
    int32_t token = 0;
    std::string error;
  };
  std::vector<Choice> choices(rows.size());
  threads.parallel_for(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const Sequence& sequence = *rows[i].sequence;
      if (!rows[i].next || sequence.finish) {
        continue;
      }
      try {
        choices[i].token = sample_token(row_values(i), sequence.request.sampling,
                                        sequence.request.ignore_eos
                                            ? std::span<const int32_t>(config.eos_token_ids)
                                            : std::span<const int32_t>(),
                                        sequence.seed, sequence.length());
      } catch (...) {
        choices[i].error = current_error();
      }
    }
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& sequence = *rows[i].sequence;
    if (!rows[i].next || sequence.finish) {
      continue;  // an earlier callback may have ended it
    }
    if (choices[i].error.empty()) {
      accept(sequence, choices[i].token);
    } else {
      finish(sequence, FinishReason::error, choices[i].error);
    }
  }
}

void Engine::State::run_step(const Scheduler::Plan& plan) {
  const Clock::time_point start = Clock::now();
  int64_t decode_rows = 0;
  int64_t all_rows = 0;
  for (const Scheduler::Chunk& chunk : plan) {
    decode_rows += chunk.sequence->in_decode() ? 1 : 0;
    all_rows += chunk.count;
  }

  const StepUpload::Step step = uploads.upload(plan);
  const Tensor step_hidden = hidden.view.rows(0, all_rows);
  decoder->forward(step.inputs, kv, step_hidden, exec);
  for (const Scheduler::Chunk& chunk : plan) {
    chunk.sequence->computed += chunk.count;
  }
  const std::span<const LogitRow> rows = step.logits;
  for (int64_t first = 0; first < step.logit_rows.size(0); first += kLogitRows) {
    const int64_t count = std::min(kLogitRows, step.logit_rows.size(0) - first);
    const Tensor values = logits.view.rows(0, count);
    decoder->logits(step_hidden, step.logit_rows.rows(first, count), values, exec);
    handle_logits(rows.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), values);
  }
  for (const Scheduler::Chunk& chunk : plan) {
    Sequence& sequence = *chunk.sequence;
    if (!sequence.finish && sequence.computed == sequence.max_length) {
      finish(sequence, FinishReason::length);  // nothing was to be generated
    }
  }

  const double seconds = seconds_since(start);
  const double decode_share = static_cast<double>(decode_rows) / static_cast<double>(all_rows);
  stats.decode_tokens += decode_rows;
  stats.decode_seconds += seconds * decode_share;
  stats.prefill_tokens += all_rows - decode_rows;
  stats.prefill_seconds += seconds * (1.0 - decode_share);
  stats.steps += 1;
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Engine Engine::load(const std::filesystem::path& directory, const EngineOptions& options) {
  const Clock::time_point start = Clock::now();
  ModelConfig config = read_model_config(directory);
  choose_context_size(options, config);  // what can be refused is refused before the weights load
  checked_limits(options);
  GenerationDefaults defaults = read_generation_defaults(directory);
  std::unique_ptr<Tokenizer> tokenizer;
  if (options.with_tokenizer) {
    tokenizer = load_tokenizer(directory);
  }

  const Checkpoint checkpoint(directory);
  WeightLoader weights(checkpoint, options.device, options.progress);
  std::unique_ptr<Decoder> decoder = build_decoder(config, weights);
  auto state = std::make_unique<State>(options, std::move(config), std::move(decoder));
  state->defaults = defaults;
  state->tokenizer = std::move(tokenizer);
  state->stats.weight_bytes = weights.loaded_bytes();
  state->stats.kv_bytes = state->kv.bytes();
  state->stats.workspace_bytes = state->workspace.bytes();
  state->stats.load_seconds = seconds_since(start);
  return Engine(std::move(state));
}

int64_t Engine::submit(Request request, OnToken on_token) {
  State& state = *state_;
  state.check(request);
  auto sequence = std::make_unique<Sequence>();
  sequence->id = state.next_id++;
  sequence->on_token = std::move(on_token);
  sequence->seed = request.seed ? *request.seed : fresh_seed();
  sequence->tokens = request.prompt;
  const int64_t room = state.context_size - sequence->length();
  sequence->max_length =
      sequence->length() + (request.max_tokens < 0 ? room : std::min(request.max_tokens, room));
  if (state.tokenizer) {
    sequence->text.emplace(*state.tokenizer, /*continues=*/true);
  }
  sequence->request = std::move(request);
  const int64_t id = sequence->id;
  state.scheduler.add(std::move(sequence));
  return id;
}

bool Engine::step() {
  State& state = *state_;
  require(state.calls == 0, "step() was called from a callback");
  const Scheduler::Plan plan = state.scheduler.plan();
  if (plan.empty()) {
    return false;
  }
  const CallScope scope(state);
  try {
    state.run_step(plan);
  } catch (...) {
    // Half a step cannot be taken back: its requests end here, the others go on.
    const std::string error = current_error();
    for (const Scheduler::Chunk& chunk : plan) {
      if (!chunk.sequence->finish) {
        state.finish(*chunk.sequence, FinishReason::error, error);
      }
    }
    throw;
  }
  return true;
}

void Engine::cancel(int64_t id) {
  State& state = *state_;
  Sequence* sequence = state.scheduler.find(id);
  if (sequence == nullptr || sequence->finish) {
    return;
  }
  const CallScope scope(state);
  state.finish(*sequence, FinishReason::cancelled);
}

std::vector<Completion> Engine::generate(std::vector<Request> requests) {
  require(state_->calls == 0, "generate() was called from a callback");
  std::vector<Completion> completions(requests.size());
  std::vector<int64_t> open;
  for (size_t i = 0; i < requests.size(); ++i) {
    Completion& completion = completions[i];
    try {
      open.push_back(submit(std::move(requests[i]), [&completion, &open](const TokenEvent& event) {
        if (event.token) {
          completion.tokens.push_back(*event.token);
        }
        completion.text += event.text;
        if (event.finish) {
          completion.finish = *event.finish;
          completion.error = event.error;
          std::erase(open, event.request);
        }
      }));
    } catch (const Error& error) {
      completion.error = error.what();
    }
  }
  try {
    while (!open.empty() && step()) {
    }
  } catch (...) {
    for (int64_t id : std::vector<int64_t>(open)) {
      cancel(id);  // their callbacks refer to this call's variables
    }
    throw;
  }
  return completions;
}

const ModelConfig& Engine::config() const { return state_->config; }

const GenerationDefaults& Engine::generation_defaults() const { return state_->defaults; }

const Tokenizer& Engine::tokenizer() const {
  require(state_->tokenizer != nullptr, "the engine was loaded without a tokenizer");
  return *state_->tokenizer;
}

int64_t Engine::context_size() const { return state_->context_size; }

const EngineStats& Engine::stats() const { return state_->stats; }

int64_t Engine::free_pages() const { return state_->scheduler.pages().free_pages(); }

int64_t Engine::total_pages() const { return state_->scheduler.pages().total_pages(); }

}  // namespace sparsellm
