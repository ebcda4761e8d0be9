#include "tools/bench/suite/suite_run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tools/bench/kernel.h"
#include "tools/bench/kernel_report.h"
#include "tools/bench/throughput.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/report.h"

namespace sparsellm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of_suites(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A benchmark's report, row by row: `take` gets the table's name and the row as a JSON object.
ReportWriter rows_to(std::function<void(const std::string& table, const std::string& row)> take) {
  const auto sink = [take = std::move(take), rest = std::string()](std::string_view text) mutable {
    rest += text;
    constexpr std::string_view kBegin = R"({"table":")";
    for (size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
      const std::string line = rest.substr(0, end);
      rest.erase(0, end + 1);
      const size_t name_end = line.find('"', kBegin.size());
      require(line.starts_with(kBegin) && name_end != std::string::npos &&
                  line.compare(name_end, 2, "\",") == 0,
              "a report has a line without a table: {}", line);
      take(line.substr(kBegin.size(), name_end - kBegin.size()), "{" + line.substr(name_end + 2));
    }
  };
  return {ReportFormat::jsonl, {{.key = "suite", .value = int64_t{1}}}, sink};
}

// A figure of a row; nothing if it is not known.
std::optional<double> figure_of(const std::string& row, const char* key) {
  const JsonDocument document = parse_json(row, "a row", 8);
  const JsonValue value = JsonValue(document, "a row")[key];
  return value.is_null() ? std::nullopt
                         : std::optional<double>(value.number(-std::numeric_limits<float>::max(),
                                                              std::numeric_limits<float>::max()));
}

std::string text_of(const std::string& row, const char* key) {
  const JsonDocument document = parse_json(row, "a row", 8);
  const JsonValue value = JsonValue(document, "a row")[key];
  return value.is_null() ? "" : value.string();
}

// Cells that are measured together: with one engine, or with one weight.
using Group = std::span<const PlannedCell* const>;

double expected_seconds(Group group) {
  double seconds = group.front()->loading;
  std::map<int64_t, double> of_batches;  // outputs of one batch are parts of one run
  for (const PlannedCell* const planned : group) {
    if (planned->cell->kernel() != nullptr) {
      seconds += planned->seconds;
    } else {
      double& longest = of_batches[planned->cell->engine()->batch];
      longest = std::max(longest, planned->seconds);
    }
  }
  for (const auto& [batch, longest] : of_batches) {
    seconds += longest;
  }
  return seconds;
}

class GroupRun {
 public:
  GroupRun(Group group, const SuiteMachine& machine, const SuiteRunOptions& options,
           SuiteResults& results, spdlog::logger& log)
      : group_(group), machine_(machine), options_(options), results_(results), log_(log) {}

  SuiteCounts run() {
    try {
      group_.front()->cell->kernel() != nullptr ? run_products() : run_engine();
      for (const PlannedCell* const planned : group_) {
        if (!ended_.contains(planned)) {
          end_with_error(*planned, "nothing was measured");
        }
      }
    } catch (const ResultsError&) {
      throw;
    } catch (const std::exception& error) {  // not Interrupted
      for (const PlannedCell* const planned : group_) {
        if (!ended_.contains(planned)) {
          end_with_error(*planned, error.what());
        }
      }
    }
    return counts_;
  }

 private:
  // Of the file of results: no error of a cell.
  struct ResultsError : Error {
    using Error::Error;
  };

  void append(const PlannedCell& planned, SuiteResult result) {
    result.key = options_.key;
    result.key.suite = planned.suite->name;
    result.key.cell = planned.cell->name;
    result.environment = options_.environment;
    try {
      results_.append(result);
    } catch (const Error& error) {
      throw ResultsError(error.what());
    }
    ended_.insert(&planned);
    ++(result.error.empty() ? counts_.measured : counts_.failed);
    if (options_.say) {
      options_.say(
          fmt::format("{}/{}: {}", planned.suite->name, planned.cell->name,
                      result.error.empty() ? figure_text(planned, result.row) : result.error));
    }
  }

  void end_with_error(const PlannedCell& planned, const std::string& error) {
    append(planned, {.key = {}, .error = error.substr(0, error.find('\n'))});
  }

  std::string figure_text(const PlannedCell& planned, const std::string& row) const {
    if (planned.cell->kernel() != nullptr) {
      return fmt::format("{:.1f} us", figure_of(row, "time_us").value_or(0.0));
    }
    return fmt::format("{:.1f} {}", figure_of(row, "tokens_per_gpu_second").value_or(0.0),
                       throughput_unit(device_of(machine_.model)));
  }

  const PlannedCell* find(int64_t batch, int64_t output) const {
    const auto found = std::ranges::find_if(group_, [&](const PlannedCell* planned) {
      const EngineCell& cell = *planned->cell->engine();
      return cell.batch == batch && cell.output == output;
    });
    return found == group_.end() ? nullptr : *found;
  }

  void run_engine() {
    const SuiteCell& first = *group_.front()->cell;
    const EngineCell& engine = *first.engine();
    BenchModelArgs args = suite_model_args(first, machine_);
    if (engine.activation.zeros) {
      choose_neuron_shares(args, engine.activation.predicted, *engine.activation.zeros, log_);
    }
    std::set<int64_t> batches;
    std::set<int64_t> outputs;
    for (const PlannedCell* const planned : group_) {
      batches.insert(planned->cell->engine()->batch);
      outputs.insert(planned->cell->engine()->output);
    }
    ThroughputOptions options;
    options.batches.assign(batches.begin(), batches.end());
    options.prompt = engine.prompt;
    options.output = *outputs.rbegin();
    options.shorter_outputs.assign(outputs.begin(), std::prev(outputs.end()));
    options.repeats = options_.repeats;
    options.ranks = engine.gpus;
    options.device = device_of(args.model);
    options.read_bandwidth = options_.read_bandwidth;
    options.pattern = pattern_name(args);
    options.progress = [](int64_t, int64_t) { throw_if_interrupted(); };
    if (engine.breakdown) {
      options.breakdown = [](const Engine& of) { return of.decode_seconds(); };
    }
    BenchEngineSize size = suite_engine_size(engine);
    size.context_size = checked_add(engine.prompt, options.output, "tokens of a request");
    size.decode_tokens = options.batches;
    std::map<const PlannedCell*, SuiteResult> waiting;  // for their groups
    ReportWriter report = rows_to([&](const std::string& table, const std::string& row) {
      const bool groups = table == "breakdown";
      if (table != "throughput" && !groups) {
        return;
      }
      const PlannedCell* const planned =
          find(static_cast<int64_t>(figure_of(row, "batch").value_or(0.0)),
               static_cast<int64_t>(figure_of(row, "output").value_or(0.0)));
      if (planned == nullptr) {
        return;
      }
      if (groups) {
        std::string& all = waiting[planned].groups;
        all = all.empty() ? "[" + row + "]" : all.substr(0, all.size() - 1) + "," + row + "]";
      } else if (!figure_of(row, "tokens_per_gpu_second")) {
        end_with_error(*planned, text_of(row, "note"));
      } else if (engine.breakdown) {
        waiting[planned].row = row;
      } else {
        append(*planned, {.key = {}, .row = row});
      }
    });
    bench_throughput(
        options,
        [&](int64_t max_requests) {
          size.max_requests = max_requests;
          return load_bench_engine(args, size, log_);
        },
        report);
    report.finish();
    for (auto& [planned, result] : waiting) {
      append(*planned, std::move(result));
    }
  }

  void run_products() {
    const SuiteCell& first = *group_.front()->cell;
    KernelBenchOptions options;
    options.device = device_of(machine_.model);
    options.shapes = {{first.kernel()->out, first.kernel()->in}};
    options.tokens.clear();
    for (const PlannedCell* const planned : group_) {
      options.tokens.push_back(planned->cell->kernel()->tokens);
    }
    options.sparsities = {first.zeros.sparsity};
    options.patterns = {first.zeros.pattern.value_or(ZeroPattern())};
    options.formats = {first.format};
    options.records = first.records;
    options.dtype = first.dtype.value_or(options.dtype);
    options.threads = machine_.model.threads;
    ReportWriter report = rows_to([&](const std::string& table, const std::string& row) {
      throw_if_interrupted();
      if (table != "kernel" || text_of(row, "format") != first.format) {
        return;
      }
      const auto tokens = static_cast<int64_t>(figure_of(row, "tokens").value_or(0.0));
      for (const PlannedCell* const planned : group_) {
        if (planned->cell->kernel()->tokens == tokens && !ended_.contains(planned)) {
          figure_of(row, "time_us") ? append(*planned, {.key = {}, .row = row})
                                    : end_with_error(*planned, text_of(row, "note"));
        }
      }
    });
    report_kernels(options, report);
    report.finish();
  }

  Group group_;
  const SuiteMachine& machine_;
  const SuiteRunOptions& options_;
  SuiteResults& results_;
  spdlog::logger& log_;
  std::set<const PlannedCell*> ended_;
  SuiteCounts counts_;
};

}  // namespace

SuiteCounts run_suites(const std::vector<PlannedCell>& plan, const SuiteMachine& machine,
                       const SuiteRunOptions& options, SuiteResults& results, spdlog::logger& log) {
  const Clock::time_point start = Clock::now();
  std::vector<const PlannedCell*> cells;
  for (const PlannedCell& planned : plan) {
    if (planned.state == SuiteState::runs) {
      cells.push_back(&planned);
    }
  }
  SuiteCounts counts;
  for (size_t begin = 0; begin < cells.size();) {
    throw_if_interrupted();
    size_t end = begin + 1;
    while (end < cells.size() && measured_together(*cells[begin], *cells[end])) {
      ++end;
    }
    const Group group = Group(cells).subspan(begin, end - begin);
    begin = end;
    if (seconds_of_suites(start) + expected_seconds(group) > options.budget) {
      counts.not_begun += std::ssize(group);
      continue;
    }
    const SuiteCounts of_group = GroupRun(group, machine, options, results, log).run();
    counts.measured += of_group.measured;
    counts.failed += of_group.failed;
  }
  return counts;
}

}  // namespace sparsellm
