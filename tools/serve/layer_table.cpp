#include "tools/serve/layer_table.h"

#include <utility>

#include "kernels/base/json_writer.h"

namespace sparsellm {
namespace {

void add_number(std::string_view key, const std::optional<double>& number, JsonWriter& json) {
  json.key(key);
  if (number) {
    json.value(*number);
  } else {
    json.null();
  }
}

void add_times(const LayerTableRow& row, JsonWriter& json) {
  json.member("times_of_block", row.measured_block).key("times").array();
  for (const LayerTimes& times : row.times) {
    json.object().member("tokens", times.tokens);
    add_number("us_sparse", times.us_sparse, json);
    add_number("us_dense", times.us_dense, json);
    add_number("speedup",
               times.us_sparse && times.us_dense ? std::optional(*times.us_dense / *times.us_sparse)
                                                 : std::nullopt,
               json);
    json.end();
  }
  json.end();
}

}  // namespace

LayerTable layer_table_of(std::vector<BlockWeight> weights, int ranks) {
  LayerTable table{.ranks = ranks};
  table.rows.reserve(weights.size());
  for (BlockWeight& weight : weights) {
    table.rows.push_back({.weight = std::move(weight)});
  }
  return table;
}

std::string layers_body(std::string_view model, const LayerTable& table) {
  JsonWriter json;
  json.object().member("model", model).member("rank", 0).member("ranks", table.ranks);
  json.key("layers").array();
  for (const LayerTableRow& row : table.rows) {
    const BlockWeight& weight = row.weight;
    json.object().member("block", weight.block).member("name", weight.name);
    json.member("out", weight.out).member("in", weight.in);
    add_number("density", weight.density(), json);
    json.member("format", weight.format).member("bytes", weight.bytes);
    if (!row.times.empty()) {
      add_times(row, json);
    }
    json.end();
  }
  json.end().end();
  return std::move(json).text();
}

}  // namespace sparsellm
