#include "tools/bench/suite/suite_file.h"

#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tools/bench/suite/suite_cells.h"
#include "tools/bench/suite/suite_group.h"
#include "tools/bench/suite/suite_lists.h"
#include "tools/bench/suite/suite_stated.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxSuiteBytes = int64_t{1} << 20;
constexpr int kMaxSuiteDepth = 6;

}  // namespace

std::filesystem::path suite_configs(const std::filesystem::path& file) {
  return (file.parent_path() / "..").lexically_normal();
}

Suite read_suite(const InputFile& file, const std::filesystem::path& configs,
                 SuiteFormats formats) {
  const JsonDocument document = read_json_file(file, kMaxSuiteBytes, kMaxSuiteDepth);
  const JsonValue json(document, file.string());
  json.allow_only({"title", "source", "gpu", "framework", "metric", "cells", "stated"});
  Suite suite{.name = file.path().stem().string(),
              .title = read_suite_text(json["title"]),
              .source = read_suite_text(json["source"]),
              .gpu = read_suite_text(json["gpu"]),
              .framework = read_suite_text(json["framework"]),
              .metric = read_suite_metric(json["metric"]),
              .cells = {},
              .stated = {}};
  SuiteModels models(configs);
  std::vector<SuiteCell> all_cells;
  const JsonValue groups = json["cells"];
  require_suite_list(groups);
  for (int64_t i = 0; i < groups.size(); ++i) {
    const SuiteGroup group = read_suite_group(groups.element(i), models);
    add_suite_cells(group, models, formats, suite.cells);
    add_suite_cells(group, models, SuiteFormats::all, all_cells);
  }
  gather_loads(suite.cells);
  if (const JsonValue stated = json["stated"]; stated.present()) {
    require_suite_list(stated);
    for (int64_t i = 0; i < stated.size(); ++i) {
      add_stated_figure(stated.element(i), all_cells, suite);
    }
  }
  return suite;
}

}  // namespace sparsellm
