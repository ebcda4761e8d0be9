#include "tools/bench/suite/suite_plan.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "sparse/registry.h"
#include "tools/bench/kernel.h"

namespace sparsellm {
namespace {

// Bytes per second that a step reads, of weights that are made on the device, and seconds of a
// launch of everything: rough figures of a large GPU, for an estimate alone.
constexpr double kReads = 2.5e12;
constexpr double kCpuReads = 2e10;
constexpr double kMakes = 1e10;
constexpr double kStartSeconds = 8.0;
constexpr double kStepSeconds = 1e-3;
constexpr double kKernelSeconds = 1.0;

double gigabytes(int64_t bytes) { return static_cast<double>(bytes) * 1e-9; }

bool has_kernels(const SuiteCell& cell, Device device) {
  const std::string& format = cell.format;
  if (cell.kernel() != nullptr) {
    const auto formats = kernel_bench_formats(device);
    return std::ranges::find(formats, std::string_view(format)) != formats.end();
  }
  return format == kAutoFormat || format == kSmallestFormat ||
         weight_format(format).runs_on(device);
}

void plan_engine_cell(const SuiteMachine& machine, int64_t repeats, PlannedCell& planned) {
  const EngineCell& cell = *planned.cell->engine();
  planned.fit = fit_suite_cell(*planned.cell, machine);
  const bool on_gpu = machine.gpu_memory_here > 0 || machine.gpu_memory > 0;
  const auto bytes = static_cast<double>(planned.fit.needed);
  const double step = kStepSeconds + bytes / (on_gpu ? kReads : kCpuReads);
  planned.seconds = step * static_cast<double>(repeats * cell.output + 16);
  planned.loading = kStartSeconds + bytes / kMakes;
  if (on_gpu && cell.gpus > machine.gpus) {
    planned.state = SuiteState::needs_gpus;
  } else if (!planned.fit.fits) {
    planned.state = SuiteState::does_not_fit;
  }
}

// An engine's step is that of its largest batch, also when it measures a smaller one.
void count_steps_of_loads(std::vector<PlannedCell>& plan) {
  std::vector<PlannedCell*> runs;
  for (PlannedCell& planned : plan) {
    if (planned.state == SuiteState::runs && planned.cell->engine() != nullptr) {
      runs.push_back(&planned);
    }
  }
  for (auto first = runs.begin(); first != runs.end();) {
    const auto last = std::find_if_not(first, runs.end(), [&](const PlannedCell* planned) {
      return measured_together(**first, *planned);
    });
    int64_t step = 0;
    for (auto each = first; each != last; ++each) {
      step = std::max(step, (*each)->fit.step);
    }
    for (; first != last; ++first) {
      SuiteFit& fit = (*first)->fit;
      fit.needed += step - fit.step;
      fit.step = step;
    }
  }
}

}  // namespace

bool measured_together(const PlannedCell& a, const PlannedCell& b) {
  if (a.suite != b.suite || a.cell->load != b.cell->load) {
    return false;
  }
  if (a.cell->kernel() != nullptr) {
    return true;
  }
  // The fastest formats depend on how many requests there are.
  return a.cell->engine()->prompt == b.cell->engine()->prompt &&
         (a.cell->format != kAutoFormat || a.cell->engine()->batch == b.cell->engine()->batch);
}

std::string PlannedCell::text() const {
  switch (state) {
    case SuiteState::runs:
      return "runs";
    case SuiteState::done:
      return "done";
    case SuiteState::does_not_fit:
      return fmt::format("does not fit: {:.1f} of {:.1f} GB", gigabytes(fit.needed),
                         gigabytes(fit.there));
    case SuiteState::needs_gpus:
      return fmt::format("needs {} GPUs", cell->engine()->gpus);
    case SuiteState::no_kernels:
      return fmt::format("no kernels for {}", cell->format);
  }
  return {};
}

std::vector<PlannedCell> plan_suites(const std::vector<Suite>& suites,
                                     const SuiteSelection& selection, const SuiteMachine& machine) {
  std::vector<PlannedCell> plan;
  std::vector<bool> used(selection.only.size());
  const Device device = device_of(machine.model);
  for (const Suite& suite : suites) {
    for (const SuiteCell& cell : suite.cells) {
      bool selected = selection.only.empty();
      for (size_t i = 0; i < selection.only.size(); ++i) {
        if (matches_cell(selection.only[i], suite.name + "/" + cell.name)) {
          selected = true;
          used[i] = true;
        }
      }
      if (!selected) {
        continue;
      }
      PlannedCell planned{.suite = &suite, .cell = &cell};
      if (selection.done && selection.done(suite, cell)) {
        planned.state = SuiteState::done;
      } else if (!has_kernels(cell, device)) {
        planned.state = SuiteState::no_kernels;
      } else if (cell.engine() != nullptr) {
        plan_engine_cell(machine, selection.repeats, planned);
      } else {
        planned.seconds = kKernelSeconds;
      }
      plan.push_back(planned);
    }
  }
  for (size_t i = 0; i < used.size(); ++i) {
    require(used[i], "no cell is called \"{}\"", selection.only[i]);
  }
  count_steps_of_loads(plan);
  return plan;
}

}  // namespace sparsellm
