#include "tools/bench/throughput.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/paged_kv.h"
#include "models/shard.h"
#include "tools/bench/linear_shapes.h"
#include "tools/bench/neuron_table.h"
#include "tools/bench/requests.h"

namespace sparsellm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMilli = 1e3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double gib(double bytes) { return bytes / (1 << 30); }

// Runs `body`; what it says if memory runs out, else nothing.
template <class Body>
std::optional<std::string> out_of_memory_in(Body&& body) {
  constexpr std::string_view kOutOfMemory = "out of memory";
  try {
    body();
  } catch (const OutOfMemory& error) {
    const std::string_view what = error.what();
    return what.starts_with(kOutOfMemory) ? std::string(what)
                                          : fmt::format("{}: {}", kOutOfMemory, what);
  } catch (const std::bad_alloc&) {
    return std::string(kOutOfMemory);
  }
  return std::nullopt;
}

// What the events of a batch add up to.
struct Events {
  int64_t started = 0;  // requests that have a token
  int64_t tokens = 0;
  int64_t finished = 0;
  int64_t peak_pages = 0;
  std::vector<int64_t> reached;  // requests that have so many tokens as an output
  std::string error;
};

// A measured run of a batch.
struct Run {
  double seconds = 0.0;
  double prefill_seconds = 0.0;
  std::vector<double> decode_steps;       // seconds of the full ones
  std::vector<StepBreakdown> breakdowns;  // of these, if requested
  int64_t peak_pages = 0;
};

// What is done once at the first steps of a batch size is done before anything is measured: all of
// its requests are in the decode phase at a time, while a step has room for one token of each and,
// after those that are in it already, for prompts.
int64_t warm_up_tokens(const ThroughputOptions& options, int64_t batch) {
  const int64_t room = std::max(options.step_tokens, batch) - batch + 1;
  const int64_t prefill_steps = batch * options.prompt / room + 1;
  return std::min(options.output, 15 + prefill_steps);
}

// Steps for the progress: a run counts as one for each token of a request, however many it takes.
class StepCounter {
 public:
  explicit StepCounter(const ThroughputOptions& options)
      : options_(options),
        of_batch_(options.repeats * options.output + warm_up_tokens(options, 1)),
        total_(std::ssize(options.batches) * of_batch_) {}

  void step() { show(done_ + 1); }
  void end_batches(int64_t batches) { show(batches * of_batch_); }

 private:
  void show(int64_t done) {
    done_ = std::min(done, total_);
    if (options_.progress) {
      options_.progress(done_, total_);
    }
  }

  const ThroughputOptions& options_;
  int64_t of_batch_;
  int64_t total_;
  int64_t done_ = 0;
};

std::vector<int64_t> outputs_of(const ThroughputOptions& options) {
  std::vector<int64_t> outputs = options.shorter_outputs;
  outputs.push_back(options.output);
  return outputs;
}

OnToken counted(Events& events, const Engine& engine, const std::vector<int64_t>& outputs) {
  events.reached.resize(outputs.size());
  return [&events, &engine, &outputs, count = int64_t{0}](const TokenEvent& event) mutable {
    if (event.token) {
      events.tokens += 1;
      ++count;
      events.started += count == 1 ? 1 : 0;
      for (size_t i = 0; i < outputs.size(); ++i) {
        events.reached[i] += count == outputs[i] ? 1 : 0;
      }
    }
    events.finished += event.finish ? 1 : 0;
    if (!event.error.empty()) {
      events.error = event.error;
    }
    // Here, since the pages of a request are free when step() that ended it returns.
    events.peak_pages = std::max(events.peak_pages, engine.total_pages() - engine.free_pages());
  };
}

// A run for each of the outputs, of which the last is that of all requests.
std::vector<Run> run_batch(Engine& engine, const ThroughputOptions& options, int64_t batch,
                           const std::vector<int64_t>& outputs, StepCounter& counter) {
  const int64_t output = outputs.back();
  BenchRandom random(options.seed);
  std::vector<Request> prompts;
  for (int64_t i = 0; i < batch; ++i) {
    prompts.push_back(random_request(random, engine.config().vocab_size, options.prompt, output));
    if (options.adjusted_every > 0 && i % options.adjusted_every == 0) {
      adjust_request(prompts.back());
    }
    if (options.scores_prompts) {
      score_prompt(prompts.back());
    }
  }
  Run run;
  std::vector<Run> runs;
  Events events;
  OpenRequests requests(engine);  // cancelled before `events` goes
  const Clock::time_point start = Clock::now();
  for (Request& prompt : prompts) {
    requests.submit(std::move(prompt), counted(events, engine, outputs));
  }
  double before = seconds_since(start);
  while (events.finished < batch) {
    const bool prefilled = events.started == batch;
    const int64_t tokens_before = events.tokens;
    require(engine.step(), "the engine left {} of {} requests unfinished", batch - events.finished,
            batch);
    const double now = seconds_since(start);
    require(events.error.empty(), "{}", events.error);
    if (!prefilled && events.started == batch) {
      run.prefill_seconds = now;
    }
    if (prefilled && events.tokens - tokens_before == batch) {
      run.decode_steps.push_back(now - before);
      if (options.breakdown) {
        run.breakdowns.push_back(options.breakdown(engine));
      }
    }
    while (runs.size() < outputs.size() && events.reached[runs.size()] == batch) {
      run.seconds = now;
      run.peak_pages = events.peak_pages;
      runs.push_back(run);
    }
    counter.step();
    before = now;
  }
  require(events.tokens == batch * output, "{} tokens were generated, but {} were requested",
          events.tokens, batch * output);
  while (engine.step()) {  // one that was enqueued ahead is not the next run's
  }
  return runs;
}

// One value of each run.
template <class Value>
std::vector<double> over(const std::vector<Run>& runs, Value&& value) {
  std::vector<double> values;
  values.reserve(runs.size());
  for (const Run& run : runs) {
    values.push_back(value(run));
  }
  return values;
}

std::vector<Column> throughput_columns(Device device) {
  using Kind = Column::Kind;
  const auto text = [](const char* key, const char* title) {
    return Column{.key = key, .title = title, .unit = {}, .kind = Kind::text, .decimals = 0};
  };
  const auto number = [](const char* key, const char* title, const char* unit, int decimals) {
    return Column{
        .key = key, .title = title, .unit = unit, .kind = Kind::number, .decimals = decimals};
  };
  const auto spread = [](const char* key, const char* title, const char* unit, int decimals) {
    return Column{
        .key = key, .title = title, .unit = unit, .kind = Kind::spread, .decimals = decimals};
  };
  return {number("batch", "batch", "", 0),
          number("output", "output", "tokens", 0),
          number("ranks", "ranks", "", 0),
          text("pattern", "pattern"),
          spread("tokens_per_gpu_second", "throughput", throughput_unit(device), 1),
          spread("prefill_ms", "prefill", "ms", 2),
          spread("decode_ms", "decode step", "ms", 3),
          number("decode_first_ms", "first", "ms", 3),
          number("decode_last_ms", "last", "ms", 3),
          number("weights_read_gib", "weights read", "GiB/step", 3),
          number("kv_read_gib", "KV read", "GiB/step", 3),
          number("bandwidth_percent", "bandwidth", "%", 1),
          number("weights_gib", "weights", "GiB", 3),
          number("workspace_gib", "workspace", "GiB", 3),
          number("kv_used_gib", "KV used", "GiB", 3),
          number("memory_gib", "memory", "GiB", 3),
          text("note", "note")};
}

Row row_without_figures(const ThroughputOptions& options, int64_t batch, int64_t output,
                        std::string note) {
  Row row(throughput_columns(options.device).size());
  row.front() = batch;
  row[1] = output;
  row[2] = int64_t{options.ranks};
  row[3] = options.pattern;
  row.back() = std::move(note);
  return row;
}

// Of the full decode steps of all runs.
std::vector<double> all_decode_steps(const std::vector<Run>& runs) {
  std::vector<double> steps;
  for (const Run& run : runs) {
    steps.insert(steps.end(), run.decode_steps.begin(), run.decode_steps.end());
  }
  return steps;
}

std::vector<Run> with_decode_steps(std::vector<Run> runs) {
  std::erase_if(runs, [](const Run& run) { return run.decode_steps.empty(); });
  return runs;
}

// A step then reads the rows of active neurons: not all weights, and not as many in each step.
bool skips_neurons(const Engine& engine) {
  return engine.config().activation_sparsity.mode != ActivationSparsity::Mode::off;
}

Row throughput_row(const Engine& engine, const ThroughputOptions& options, int64_t batch,
                   int64_t output, const std::vector<Run>& runs) {
  const EngineStats& stats = engine.stats();
  const double page_bytes =
      static_cast<double>(stats.kv_bytes) / static_cast<double>(engine.total_pages());
  const bool reads_all_weights = !skips_neurons(engine);
  const Shard shard{.rank = 0, .degree = options.ranks};
  const auto weights_read =
      static_cast<double>(weight_bytes_per_step(engine.config(), stats.weight_bytes, shard));
  const int64_t mean_context = options.prompt + output / 2;
  const double kv_read = page_bytes / static_cast<double>(kPageSize) * static_cast<double>(batch) *
                         static_cast<double>(mean_context);
  const double tokens = static_cast<double>(batch * output);
  const double gpus = gpus_of(options.device, options.ranks);
  const double ranks_of_memory = options.ranks / gpus;  // that read the same

  const Spread throughput =
      spread_of(over(runs, [&](const Run& run) { return tokens / (run.seconds * gpus); }));
  const Spread prefill =
      scaled(spread_of(over(runs, [](const Run& run) { return run.prefill_seconds; })), kMilli);
  Cell decode;
  Cell first;
  Cell last;
  Cell bandwidth;
  const std::vector<double> steps = all_decode_steps(runs);
  const bool runs_have_steps = !steps.empty();
  if (runs_have_steps) {
    const Spread spread = spread_of(steps);
    decode = scaled(spread, kMilli);
    first = kMilli * median(over(with_decode_steps(runs),
                                 [](const Run& run) { return run.decode_steps.front(); }));
    last = kMilli * median(over(with_decode_steps(runs),
                                [](const Run& run) { return run.decode_steps.back(); }));
    if (options.read_bandwidth > 0.0 && reads_all_weights) {
      bandwidth = 100.0 * ranks_of_memory * (weights_read + kv_read) /
                  (spread.median * options.read_bandwidth);
    }
  }
  double peak_pages = 0.0;
  for (const Run& run : runs) {
    peak_pages = std::max(peak_pages, static_cast<double>(run.peak_pages));
  }
  const auto weights = static_cast<double>(stats.weight_bytes);
  const auto workspace = static_cast<double>(stats.workspace_bytes);
  const double kv_used = peak_pages * page_bytes;
  return {batch,
          output,
          int64_t{options.ranks},
          options.pattern,
          throughput,
          prefill,
          decode,
          first,
          last,
          reads_all_weights ? Cell(gib(weights_read)) : Cell(),
          runs_have_steps ? Cell(gib(kv_read)) : Cell(),
          bandwidth,
          gib(weights),
          gib(workspace),
          gib(kv_used),
          gib(weights + workspace + kv_used),
          {}};
}

std::vector<Column> breakdown_columns() {
  using Kind = Column::Kind;
  return {
      {.key = "batch", .title = "batch", .unit = {}, .kind = Kind::number, .decimals = 0},
      {.key = "output", .title = "output", .unit = "tokens", .kind = Kind::number, .decimals = 0},
      {.key = "pattern", .title = "pattern", .unit = {}, .kind = Kind::text, .decimals = 0},
      {.key = "group", .title = "group", .unit = {}, .kind = Kind::text, .decimals = 0},
      {.key = "ms_per_step",
       .title = "per decode step",
       .unit = "ms",
       .kind = Kind::spread,
       .decimals = 3},
      {.key = "percent", .title = "share", .unit = "%", .kind = Kind::number, .decimals = 1},
  };
}

// The seconds of each group in each full decode step, the groups in the order in which they turn
// up.
class GroupTimes {
 public:
  void add(const StepBreakdown& step, double step_seconds) {
    ++steps_;
    for (auto& [group, seconds] : groups_) {
      seconds.push_back(0.0);
    }
    double rest = step_seconds;
    for (const auto& [group, seconds] : step) {
      seconds_of(group).back() += seconds;
      rest -= seconds;
    }
    rest_.push_back(rest);
  }

  std::vector<std::pair<std::string, std::vector<double>>> all() const {
    auto groups = groups_;
    groups.emplace_back("rest of the step", rest_);
    return groups;
  }

 private:
  std::vector<double>& seconds_of(const std::string& group) {
    const auto known = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const auto& other) { return other.first == group; });
    return known != groups_.end()
               ? known->second
               : groups_.emplace_back(group, std::vector<double>(steps_, 0.0)).second;
  }

  size_t steps_ = 0;
  std::vector<std::pair<std::string, std::vector<double>>> groups_;
  std::vector<double> rest_;
};

std::vector<Row> breakdown_rows(const ThroughputOptions& options, int64_t batch, int64_t output,
                                const std::vector<Run>& runs) {
  GroupTimes times;
  for (const Run& run : runs) {
    for (size_t i = 0; i < run.breakdowns.size(); ++i) {
      times.add(run.breakdowns[i], run.decode_steps[i]);
    }
  }
  std::vector<Row> rows;
  const std::vector<double> steps = all_decode_steps(runs);
  if (steps.empty()) {
    return rows;
  }
  const double step = median(steps);
  for (const auto& [group, seconds] : times.all()) {
    const Spread spread = spread_of(seconds);
    rows.push_back({batch, output, options.pattern, group, scaled(spread, kMilli),
                    100.0 * spread.median / step});
  }
  return rows;
}

// Loads for the largest batch that there is memory for; `too_large` gets the others with the
// reason.
std::optional<Engine> load_largest(const std::vector<int64_t>& batches, const LoadEngine& load,
                                   std::map<int64_t, std::string>& too_large) {
  const std::set<int64_t, std::greater<>> descending(batches.begin(), batches.end());
  std::optional<Engine> engine;
  for (int64_t batch : descending) {
    const auto why = out_of_memory_in([&] { engine.emplace(load(batch)); });
    if (!why) {
      break;
    }
    too_large[batch] = *why;
  }
  return engine;
}

// Why the KV cache does not hold a batch of such requests; empty if it does.
std::string why_no_kv_pages(const Engine& engine, const ThroughputOptions& options, int64_t batch,
                            int64_t output) {
  const int64_t tokens = options.prompt + output;
  const int64_t pages = checked_mul(batch, pages_for(tokens), "pages of the KV cache");
  return pages <= engine.total_pages()
             ? ""
             : fmt::format(
                   "out of memory: {} requests of {} tokens need {} pages of KV cache, but there "
                   "are {}",
                   batch, tokens, pages, engine.total_pages());
}

// The repeats for each of the outputs.
std::vector<std::vector<Run>> measure(Engine& engine, const ThroughputOptions& options,
                                      int64_t batch, const std::vector<int64_t>& outputs,
                                      StepCounter& counter) {
  run_batch(engine, options, batch, {std::min(warm_up_tokens(options, batch), outputs.back())},
            counter);
  std::vector<std::vector<Run>> runs(outputs.size());
  for (int64_t i = 0; i < options.repeats; ++i) {
    std::vector<Run> of_outputs = run_batch(engine, options, batch, outputs, counter);
    for (size_t k = 0; k < outputs.size(); ++k) {
      runs[k].push_back(std::move(of_outputs[k]));
    }
  }
  return runs;
}

void check(const ThroughputOptions& options) {
  require(!options.batches.empty(), "there is no batch to measure");
  for (int64_t batch : options.batches) {
    require(batch >= 1, "a batch of {} requests; use 1 or more", batch);
  }
  require(options.step_tokens >= 1, "steps of {} tokens; use 1 or more", options.step_tokens);
  require(options.prompt >= 1 && options.output >= 1,
          "prompts of {} and outputs of {} tokens; use 1 or more", options.prompt, options.output);
  require(options.repeats >= 1, "{} repeats; use 1 or more", options.repeats);
  int64_t before = 0;
  for (const int64_t output : outputs_of(options)) {
    require(output > before, "an output of {} tokens after one of {}", output, before);
    before = output;
  }
}

}  // namespace

void bench_throughput(const ThroughputOptions& options, const LoadEngine& load,
                      ReportWriter& report) {
  check(options);
  const std::vector<int64_t> outputs = outputs_of(options);
  std::map<int64_t, std::string> too_large;
  std::optional<Engine> engine = load_largest(options.batches, load, too_large);
  StepCounter counter(options);
  std::vector<Row> breakdown;
  std::vector<Row> neurons;
  report.begin_table("throughput", throughput_columns(options.device));
  for (size_t i = 0; i < options.batches.size(); ++i) {
    const int64_t batch = options.batches[i];
    std::map<int64_t, std::string> why;  // of outputs that are not measured
    std::vector<int64_t> fitting;
    const auto known = too_large.find(batch);
    for (const int64_t output : outputs) {
      std::string reason = known != too_large.end()
                               ? known->second
                               : why_no_kv_pages(*engine, options, batch, output);
      if (reason.empty()) {
        fitting.push_back(output);
      } else {
        why[output] = std::move(reason);
      }
    }
    if (!fitting.empty()) {
      const auto out_of_memory = out_of_memory_in([&] {
        const std::vector<NeuronCounts> before = engine->neuron_counts();
        const std::vector<std::vector<Run>> runs =
            measure(*engine, options, batch, fitting, counter);
        for (size_t k = 0; k < runs.size(); ++k) {
          report.add_row(throughput_row(*engine, options, batch, fitting[k], runs[k]));
          if (options.breakdown) {
            const std::vector<Row> rows = breakdown_rows(options, batch, fitting[k], runs[k]);
            breakdown.insert(breakdown.end(), rows.begin(), rows.end());
          }
        }
        if (skips_neurons(*engine)) {
          neurons.push_back(neuron_row(batch, before, engine->neuron_counts()));
        }
      });
      for (const int64_t output : out_of_memory ? fitting : std::vector<int64_t>()) {
        why[output] = *out_of_memory;
      }
    }
    for (const auto& [output, reason] : why) {
      report.add_row(row_without_figures(options, batch, output, reason));
    }
    counter.end_batches(static_cast<int64_t>(i) + 1);
  }
  const auto add_table = [&](const char* name, std::vector<Column> columns,
                             std::vector<Row>& rows) {
    report.begin_table(name, std::move(columns));
    for (Row& row : rows) {
      report.add_row(std::move(row));
    }
  };
  if (options.breakdown) {
    add_table("breakdown", breakdown_columns(), breakdown);
  }
  if (!neurons.empty()) {
    add_table("activation sparsity", neuron_columns(), neurons);
  }
}

const char* throughput_unit(Device device) {
  return device.is_cuda() ? "tokens/GPU-s" : "tokens/s";
}

double gpus_of(Device device, int ranks) { return device.is_cuda() ? ranks : 1.0; }

int64_t weight_bytes_per_step(const ModelConfig& config, int64_t weight_bytes, const Shard& shard) {
  // Of a tied table, the rank's share is its head.
  const int64_t head = config.tied_head ? vocabulary(config, shard).count : 0;
  int64_t looked_up = (config.vocab_size - head) * config.hidden_size;
  if (config.positions == ModelConfig::Positions::learned) {
    looked_up += config.max_positions * config.hidden_size;
  }
  int64_t parameters = looked_up;
  for (const LinearShape& shape : linear_shapes(config, shard)) {
    parameters += shape.out * shape.in * shape.count;
  }
  // Tables are f16 or bf16 on every device, except that the CPU keeps f32 as it is.
  const int64_t table_element = weight_bytes > 3 * parameters ? 4 : 2;
  return weight_bytes - looked_up * table_element;
}

}  // namespace sparsellm
