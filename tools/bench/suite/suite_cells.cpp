#include "tools/bench/suite/suite_cells.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tools/cli/args.h"

namespace sparsellm {
namespace {

std::string_view dense_name() { return weight_formats().front()->name(); }

bool has_records(std::string_view format) {
  return format == tca_bme_format().name() || format == kAutoFormat;
}

// "/" and the text, or nothing in place of an empty text.
std::string part_of_name(const std::string& text) { return text.empty() ? text : "/" + text; }

std::string name_of_zeros(const SuiteZeros& zeros) {
  return (zeros.plan.empty() ? fmt::format("s{}", zeros.sparsity)
                             : fmt::format("plan:{}", zeros.plan)) +
         part_of_name(zeros.pattern && *zeros.pattern != ZeroPattern() ? to_string(*zeros.pattern)
                                                                       : "");
}

std::string name_of_activation(const SuiteActivation& activation) {
  using Mode = ActivationSparsity::Mode;
  std::string name;
  if (activation.mode != Mode::off) {
    name = name_of(activation.mode);
    name += activation.predicted ? fmt::format(":{}", *activation.predicted) : "";
    name += activation.zeros ? fmt::format(":{}", *activation.zeros) : "";
    name += activation.mode == Mode::predict ? fmt::format(":{}", name_of(activation.votes)) : "";
  }
  return name;
}

// What all cells of a load have in common, in the order of their names. `subject` is a model or a
// shape.
std::string begin_of_name(const std::string& subject, const SuiteCell& cell) {
  const bool is_dense = cell.format == dense_name();
  const EngineCell* const engine = cell.engine();
  return subject + "/" + cell.format + part_of_name(is_dense ? "" : name_of_zeros(cell.zeros)) +
         part_of_name(cell.records) +
         part_of_name(engine != nullptr ? name_of_activation(engine->activation) : "") +
         part_of_name(cell.dtype ? std::string(name_of(*cell.dtype)) : "");
}

[[noreturn]] void refuse_so_many(const SuiteGroup& group, SuiteFormats formats) {
  fail("{}: more than {} cells{}", group.name, kMaxSuiteCells,
       formats == SuiteFormats::all ? " with all formats" : "");
}

// Adds cells to a suite.
class CellList {
 public:
  CellList(const SuiteGroup& group, SuiteFormats formats, std::vector<SuiteCell>& cells)
      : group_(group), formats_(formats), cells_(cells) {
    for (const SuiteCell& cell : cells) {
      older_.insert(cell.name);
    }
  }

  // Unless it is there: of a format without zeros many are the same, and several groups may have
  // all formats.
  void add(SuiteCell cell) {
    require(formats_ == SuiteFormats::all || !older_.contains(cell.name),
            "{} has the cell {}, which an earlier group has, too", group_.name, cell.name);
    if (older_.contains(cell.name) || !names_.insert(cell.name).second) {
      return;
    }
    if (std::ssize(cells_) >= kMaxSuiteCells) {
      refuse_so_many(group_, formats_);
    }
    cells_.push_back(std::move(cell));
  }

 private:
  const SuiteGroup& group_;
  SuiteFormats formats_;
  std::vector<SuiteCell>& cells_;
  std::set<std::string> older_;
  std::set<std::string> names_;
};

std::vector<std::string> formats_of(const SuiteGroup& group, SuiteFormats formats) {
  std::vector<std::string> names = group.formats;
  const bool has_sparse =
      std::ranges::any_of(names, [](const std::string& format) { return format != dense_name(); });
  if (formats == SuiteFormats::all && has_sparse) {
    for (const WeightFormat* format : exact_formats()) {
      // A product that is dense is measured with all others.
      const bool is_wanted =
          group.kind == SuiteGroup::Kind::engine || format->name() != dense_name();
      if (is_wanted && std::ranges::find(names, format->name()) == names.end()) {
        names.emplace_back(format->name());
      }
    }
  }
  return names;
}

// One cell for each combination of format, zeros and records. The caller sets `name` and
// `what`.
std::vector<SuiteCell> suite_weights_of(const SuiteGroup& group, SuiteFormats formats) {
  const std::vector<SuiteZeros> no_zeros{{}};
  const std::vector<std::string> no_records{{}};
  std::vector<SuiteCell> cells;
  for (const std::string& format : formats_of(group, formats)) {
    for (const SuiteZeros& zeros : format == dense_name() ? no_zeros : group.zeros) {
      for (const std::string& records : has_records(format) ? group.records : no_records) {
        cells.push_back({.name = {},
                         .load = {},
                         .format = format,
                         .zeros = zeros,
                         .records = records,
                         .dtype = group.dtype,
                         .what = {}});
      }
    }
  }
  return cells;
}

void add_batches(const SuiteGroup& group, SuiteCell cell, EngineCell engine, CellList& list) {
  cell.what = engine;
  cell.load = fmt::format("{}/{}gpu{}{}", begin_of_name(engine.model, cell), engine.gpus,
                          part_of_name(engine.gpu_memory), engine.breakdown ? "/breakdown" : "");
  for (const int64_t batch : group.batches) {
    for (const int64_t output : group.outputs) {
      engine.batch = batch;
      engine.output = output;
      const std::string prompt =
          engine.prompt == kSuitePrompt ? "" : fmt::format("/p{}", engine.prompt);
      cell.name = fmt::format("{}/b{}{}/o{}", cell.load, batch, prompt, output);
      cell.what = engine;
      list.add(cell);
    }
  }
}

void add_engine_cells(const SuiteGroup& group, const SuiteModels& models,
                      const std::vector<SuiteCell>& weights, CellList& list) {
  for (const std::string& model : group.models) {
    for (const int64_t gpus : group.gpus) {
      for (const std::string& memory : group.gpu_memory) {
        for (const SuiteCell& cell : weights) {
          for (const SuiteActivation& activation : group.activations) {
            add_batches(group, cell,
                        {.model = model,
                         .config = models.config_file(model),
                         .activation = activation,
                         .gpus = static_cast<int>(gpus),
                         .gpu_memory = memory,
                         .gpu_memory_bytes = memory.empty() ? 0 : parse_size("", memory),
                         .breakdown = group.breakdown,
                         .prompt = group.prompt},
                        list);
          }
        }
      }
    }
  }
}

void add_kernel_cells(const SuiteGroup& group, const std::vector<SuiteCell>& weights,
                      CellList& list) {
  for (const auto& [out, in] : group.shapes) {
    for (SuiteCell cell : weights) {
      cell.what = KernelCell();
      cell.load = begin_of_name(fmt::format("{}x{}", out, in), cell);
      for (const int64_t tokens : group.tokens) {
        cell.name = fmt::format("{}/n{}", cell.load, tokens);
        cell.what = KernelCell{.out = out, .in = in, .tokens = tokens};
        list.add(cell);
      }
    }
  }
}

// Before anything is made of lists whose product is far too large. `weights` is their number.
void require_few_cells(const SuiteGroup& group, SuiteFormats formats, size_t weights) {
  const bool is_engine = group.kind == SuiteGroup::Kind::engine;
  const std::vector<size_t> sizes =
      is_engine
          ? std::vector{group.models.size(),     group.activations.size(), group.gpus.size(),
                        group.gpu_memory.size(), group.batches.size(),     group.outputs.size()}
          : std::vector{group.shapes.size(), group.tokens.size()};
  auto count = static_cast<int64_t>(weights);
  for (const size_t size : sizes) {
    if (count <= kMaxSuiteCells) {  // else the product might overflow
      count *= static_cast<int64_t>(size);
    }
  }
  if (count > kMaxSuiteCells) {
    refuse_so_many(group, formats);
  }
}

}  // namespace

void add_suite_cells(const SuiteGroup& group, const SuiteModels& models, SuiteFormats formats,
                     std::vector<SuiteCell>& cells) {
  if (std::ssize(group.zeros) > kMaxSuiteCells) {
    refuse_so_many(group, formats);
  }
  const std::vector<SuiteCell> weights = suite_weights_of(group, formats);
  require_few_cells(group, formats, weights.size());
  CellList list(group, formats, cells);
  if (group.kind == SuiteGroup::Kind::engine) {
    add_engine_cells(group, models, weights, list);
  } else {
    add_kernel_cells(group, weights, list);
  }
}

void gather_loads(std::vector<SuiteCell>& cells) {
  std::map<std::string, size_t> first;
  for (const SuiteCell& cell : cells) {
    first.emplace(cell.load, first.size());
  }
  std::ranges::stable_sort(cells, {}, [&](const SuiteCell& cell) { return first.at(cell.load); });
}

}  // namespace sparsellm
