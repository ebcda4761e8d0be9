#include "tools/serve/layers_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxReportBytes = int64_t{16} << 20;  // 126 blocks for eight numbers of tokens: 3
constexpr int kReportDepth = 5;                         // a cell is in a row of the rows of a table
constexpr int64_t kMostLayers = int64_t{1} << 20;
constexpr int64_t kMostTokens = int64_t{1} << 31;
constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostElements = int64_t{1} << 31;  // of a side
constexpr double kMostMicroseconds = 1e12;

// null: it was not measured.
std::optional<double> read_microseconds(const JsonValue& value) {
  if (value.is_null()) {
    return {};
  }
  const double number = value.raw().is_number() ? value.raw().get<double>() : 0.0;
  if (!(number > 0.0) || number > kMostMicroseconds) {
    value.refuse("expected microseconds or null");
  }
  return number;
}

ReportedLayer read_reported_layer(const JsonValue& row) {
  ReportedLayer layer{.block = row["block"].integer(0, kMostLayers),
                      .name = row["layer"].string(),
                      .blocks = row["layers"].integer(1, kMostLayers),
                      .out = row["out"].integer(1, kMostElements),
                      .in = row["in"].integer(1, kMostElements),
                      .format = row["format"].string(),
                      .bytes = row["bytes"].integer(0, kMostBytes),
                      .times = {}};
  layer.times = {.tokens = row["tokens"].integer(1, kMostTokens),
                 .us_sparse = read_microseconds(row["time_us"]),
                 .us_dense = read_microseconds(row["dense_us"])};
  return layer;
}

// Of the model, and of the report about it.
using LayerName = std::pair<int64_t, std::string_view>;  // block and name

class TimesOfReport {
 public:
  TimesOfReport(const LayersReport& report, LayerTable& table) : report_(report), table_(table) {
    for (size_t i = 0; i < table.rows.size(); ++i) {
      const BlockWeight& weight = table.rows[i].weight;
      rows_.emplace(LayerName(weight.block, weight.name), i);
      blocks_[weight.block].push_back(i);
      ++layers_named_[weight.name];
    }
  }

  void add() {
    for (const ReportedLayer& layer : report_.layers) {
      check(layer);
      rows_measured_[LayerName(layer.block, layer.name)].push_back(&layer);
    }
    check_counts();
    for (const auto& [block, rows] : blocks_) {
      if (const auto measured = measured_for(block)) {
        copy_times(*measured, rows);
      }
    }
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: {}", report_.path, fmt::format(format, std::forward<Args>(args)...));
  }

  void check(const ReportedLayer& layer) {
    const auto found = rows_.find(LayerName(layer.block, layer.name));
    if (found == rows_.end()) {
      refuse("the model has no layer {} in block {}; the report is of another model",
             quote(layer.name), layer.block);
    }
    const BlockWeight& weight = table_.rows[found->second].weight;
    if (layer.out != weight.out || layer.in != weight.in) {
      refuse("layer {} of block {} is {} x {}, but {} x {} in the model; the report is of another",
             layer.name, layer.block, layer.out, layer.in, weight.out, weight.in);
    }
    if (layer.format != weight.format || layer.bytes != weight.bytes) {
      refuse(
          "layer {} of block {} has {} bytes in {}, but {} in {} here; the report is of other "
          "weights",
          layer.name, layer.block, layer.bytes, quote(layer.format), weight.bytes, weight.format);
    }
    if (!seen_.insert({layer.block, layer.name, layer.times.tokens}).second) {
      refuse("layer {} of block {} is there twice for {} tokens", layer.name, layer.block,
             layer.times.tokens);
    }
    const int64_t blocks = stands_for_.try_emplace(layer.block, layer.blocks).first->second;
    if (layer.blocks != blocks) {
      refuse("block {} stands for both {} and {} blocks", layer.block, blocks, layer.blocks);
    }
    layers_reported_[layer.times.tokens][layer.name] += layer.blocks;
  }

  // All layers have to be there, for each number of tokens.
  void check_counts() const {
    for (const auto& [tokens, reported] : layers_reported_) {
      for (const auto& [name, count] : layers_named_) {
        const auto found = reported.find(name);
        const int64_t there = found == reported.end() ? 0 : found->second;
        if (there != count) {
          refuse("layer {} is there for {} blocks for {} tokens, but the model has it in {}", name,
                 there, tokens, count);
        }
      }
    }
  }

  bool are_alike(int64_t a, int64_t b) const {
    const std::vector<size_t>& of_a = blocks_.at(a);
    const std::vector<size_t>& of_b = blocks_.at(b);
    return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), [&](size_t i, size_t j) {
      const BlockWeight& x = table_.rows[i].weight;
      const BlockWeight& y = table_.rows[j].weight;
      return std::tie(x.name, x.out, x.in, x.format) == std::tie(y.name, y.out, y.in, y.format);
    });
  }

  // The block whose times another one has.
  std::optional<int64_t> measured_for(int64_t block) const {
    if (stands_for_.contains(block)) {
      return block;
    }
    std::optional<int64_t> only;
    for (const auto& [measured, count] : stands_for_) {
      if (count == 1 || !are_alike(measured, block)) {
        continue;
      }
      if (only) {
        return {};
      }
      only = measured;
    }
    return only;
  }

  void copy_times(int64_t measured, const std::vector<size_t>& rows) {
    for (const size_t i : rows) {
      LayerTableRow& row = table_.rows[i];
      row.measured_block = measured;
      const auto found = rows_measured_.find(LayerName(measured, row.weight.name));
      if (found == rows_measured_.end()) {
        continue;
      }
      for (const ReportedLayer* layer : found->second) {
        row.times.push_back(layer->times);
      }
    }
  }

  const LayersReport& report_;
  LayerTable& table_;
  std::map<LayerName, size_t> rows_;  // of the table
  std::map<int64_t, std::vector<size_t>> blocks_;
  std::map<std::string_view, int64_t> layers_named_;  // in the table
  std::map<LayerName, std::vector<const ReportedLayer*>> rows_measured_;
  std::set<std::tuple<int64_t, std::string_view, int64_t>> seen_;
  std::map<int64_t, int64_t> stands_for_;  // blocks, of each that was measured
  std::map<int64_t, std::map<std::string_view, int64_t>> layers_reported_;  // by tokens and name
};

}  // namespace

LayersReport read_layers_report(const InputFile& file) {
  const JsonDocument document = read_json_file(file, kMaxReportBytes, kReportDepth);
  const JsonValue root(document, file.string());
  root.allow_only({"environment", "tables"});
  const JsonValue tables = root["tables"];
  LayersReport report{.path = file.string(), .layers = {}};
  bool found = false;
  for (int64_t i = 0; i < tables.size(); ++i) {
    const JsonValue table = tables.element(i);
    table.allow_only({"name", "columns", "rows"});
    if (table["name"].string() != "layers") {
      continue;
    }
    require(!found, "{}: there are two tables of layers", report.path);
    found = true;
    const JsonValue rows = table["rows"];
    for (int64_t row = 0; row < rows.size(); ++row) {
      report.layers.push_back(read_reported_layer(rows.element(row)));
    }
  }
  require(!report.layers.empty(),
          "{}: there is no table of layers; sparsellm-bench layers --output json writes one",
          report.path);
  return report;
}

void add_layer_times(const LayersReport& report, LayerTable& table) {
  TimesOfReport(report, table).add();
}

}  // namespace sparsellm
