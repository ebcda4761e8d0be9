#include "tools/bench/suite/suite_stated.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "sparse/prune/glob.h"
#include "tools/bench/suite/suite_group_parts.h"
#include "tools/bench/suite/suite_lists.h"

namespace sparsellm {
namespace {

constexpr std::string_view kPlaceholder = "{}";
constexpr size_t kMostPattern = 200;
constexpr double kMostStated = 1e9;
constexpr int64_t kMostPoints = 200;  // of a suite: each is looked for among all cells

// What a pattern has for each element of "at"; absent: there is no "at".
using Place = std::optional<std::string_view>;

std::string fill_in(std::string pattern, std::string_view text) {
  size_t from = 0;
  while ((from = pattern.find(kPlaceholder, from)) != std::string::npos) {
    pattern.replace(from, kPlaceholder.size(), text);
    from += text.size();
  }
  return pattern;
}

std::string read_cell_pattern(const JsonValue& value, Place place) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:*?|";
  const std::string& pattern = value.string();
  const std::string rest = place ? fill_in(pattern, "") : pattern;
  if (rest.empty() || pattern.size() > kMostPattern ||
      rest.find_first_not_of(kAllowed) != std::string::npos) {
    value.refuse(
        "expected a pattern of names of cells, with *, ? and |, and with {} in it if there "
        "is an \"at\"");
  }
  return pattern;
}

void read_outcome(const JsonValue& value, StatedFigure::Point& point) {
  if (!value.is_string()) {
    point.value = read_suite_number(value, kMostStated);
  } else if (value.string() == "fits") {
    point.outcome = StatedFigure::Outcome::fits;
  } else if (value.string() == "out of memory") {
    point.outcome = StatedFigure::Outcome::out_of_memory;
  } else {
    value.refuse("expected a number, \"fits\" or \"out of memory\"");
  }
}

void require_match(const JsonValue& value, const std::string& pattern,
                   const std::vector<SuiteCell>& cells) {
  const bool matches = pattern.empty() || std::ranges::any_of(cells, [&](const SuiteCell& cell) {
                         return matches_cell(pattern, cell.name);
                       });
  require(matches, "{}: {} matches no cell", value.name(), quote(pattern));
}

// The patterns of the figure, with places.
struct CellPatterns {
  std::string cells;
  std::string over;
};

std::vector<StatedFigure::Point> read_stated_points(const JsonValue& value,
                                                    const CellPatterns& patterns) {
  if (!value["at"].present()) {
    StatedFigure::Point point{.cells = patterns.cells, .over = patterns.over};
    read_outcome(value["value"], point);
    return {point};
  }
  const JsonValue values = value["values"];
  const std::vector<double> at = read_suite_numbers(value["at"], kMostStated);
  require_suite_list(values);
  require(values.size() == std::ssize(at), "{} has {} elements, and {} has {}", values.name(),
          values.size(), value["at"].name(), at.size());
  std::vector<StatedFigure::Point> points;
  for (size_t i = 0; i < at.size(); ++i) {
    const std::string text = fmt::format("{}", at[i]);
    points.push_back(
        {.cells = fill_in(patterns.cells, text), .over = fill_in(patterns.over, text), .at = text});
    read_outcome(values.element(static_cast<int64_t>(i)), points.back());
  }
  return points;
}

std::string suite_text_or(const JsonValue& value, const std::string& fallback) {
  return value.present() ? read_suite_text(value) : fallback;
}

}  // namespace

std::vector<std::string_view> suite_metrics() {
  return {"tokens_per_gpu_second",
          "tokens_per_second",
          "prefill_ms",
          "decode_ms",
          "ms_per_step",
          "memory_gib",
          "speedup",
          "library_speedup",
          "time_us"};
}

bool matches_cell(std::string_view pattern, std::string_view name) {
  for (;;) {
    const size_t end = pattern.find('|');
    if (glob_matches(pattern.substr(0, end), name)) {
      return true;
    }
    if (end == std::string_view::npos) {
      return false;
    }
    pattern.remove_prefix(end + 1);
  }
}

std::string_view name_of(StatedFigure::Statistic statistic) {
  switch (statistic) {
    case StatedFigure::Statistic::each:
      return "each";
    case StatedFigure::Statistic::mean:
      return "mean";
    case StatedFigure::Statistic::most:
      return "most";
    case StatedFigure::Statistic::least:
      return "least";
    case StatedFigure::Statistic::share_faster:
      return "share_faster";
  }
  return "?";
}

std::string read_suite_metric(const JsonValue& value) {
  std::string names;
  for (const std::string_view metric : suite_metrics()) {
    if (value.string() == metric) {
      return value.string();
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", metric);
  }
  value.refuse("expected one of " + names);
}

void add_stated_figure(const JsonValue& value, const std::vector<SuiteCell>& all_cells,
                       Suite& suite) {
  const Place place = value["at"].present() ? Place(kPlaceholder) : Place();
  if (place) {
    value.allow_only({"what", "metric", "unit", "place", "gpu", "framework", "statistic", "cells",
                      "over", "at", "values"});
  } else {
    value.allow_only({"what", "metric", "unit", "place", "gpu", "framework", "statistic", "cells",
                      "over", "value"});
  }
  StatedFigure figure;
  figure.what = read_suite_text(value["what"]);
  figure.metric = value["metric"].present() ? read_suite_metric(value["metric"]) : suite.metric;
  figure.unit = read_suite_text(value["unit"]);
  figure.place = read_suite_text(value["place"]);
  figure.gpu = suite_text_or(value["gpu"], suite.gpu);
  figure.framework = suite_text_or(value["framework"], suite.framework);
  if (value["statistic"].present()) {
    figure.statistic = one_of_suite(value["statistic"],
                                    {StatedFigure::Statistic::each, StatedFigure::Statistic::mean,
                                     StatedFigure::Statistic::most, StatedFigure::Statistic::least,
                                     StatedFigure::Statistic::share_faster});
  }
  CellPatterns patterns;
  if (value["cells"].present()) {
    patterns.cells = read_cell_pattern(value["cells"], place);
    if (place && patterns.cells.find(*place) == std::string::npos) {
      value["cells"].refuse("all elements of \"at\" have the same cells; expected a {} in it");
    }
  }
  if (value["over"].present()) {
    patterns.over = read_cell_pattern(value["over"], place);
    if (patterns.cells.empty()) {
      value["over"].refuse("there are no \"cells\" that could be over it");
    }
  }
  figure.points = read_stated_points(value, patterns);
  int64_t points = std::ssize(figure.points);
  for (const StatedFigure& earlier : suite.stated) {
    points += std::ssize(earlier.points);
  }
  require(points <= kMostPoints, "{}: the suite has more than {} stated values", value.name(),
          kMostPoints);
  for (const StatedFigure::Point& point : figure.points) {
    require_match(value["cells"], point.cells, all_cells);
    require_match(value["over"], point.over, all_cells);
  }
  suite.stated.push_back(std::move(figure));
}

}  // namespace sparsellm
