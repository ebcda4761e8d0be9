// Reports of sparsellm-bench layers as sparsellm-serve reads them: true ones, those that do not fit
// the model, and those that are none.

#include "tools/serve/layers_report.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tools/bench/layer_source.h"
#include "tools/bench/layers.h"
#include "tools/cli/report.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::TempDir;
using testing::throws_error;

constexpr int64_t kBlocks = 6;

// Two layers in each block; those at the ends are in another format.
LayerTable table_of_six() {
  std::vector<BlockWeight> weights;
  for (int64_t block = 0; block < kBlocks; ++block) {
    const bool at_end = block == 0 || block == kBlocks - 1;
    for (const char* name : {"qkv", "down"}) {
      weights.push_back({.block = block,
                         .name = name,
                         .out = 48,
                         .in = 16,
                         .format = at_end ? "dense" : "tca_bme",
                         .bytes = 1000 + block});
    }
  }
  return layer_table_of(std::move(weights), 1);
}

json row(int64_t block, const std::string& name, int64_t blocks, int64_t tokens) {
  const bool at_end = block == 0 || block == kBlocks - 1;
  return {{"block", block},
          {"layer", name},
          {"layers", blocks},
          {"out", 48},
          {"in", 16},
          {"format", at_end ? "dense" : "tca_bme"},
          {"bytes", 1000 + block},
          {"tokens", tokens},
          {"time_us", 10.0 * static_cast<double>(block) + static_cast<double>(tokens)},
          {"dense_us", 100.0},
          {"density_percent", "anything"},
          {"note", ""}};
}

// Of blocks (block, how many it stands for).
json rows_of(const std::vector<std::pair<int64_t, int64_t>>& blocks,
             const std::vector<int64_t>& tokens = {1, 8}) {
  json rows = json::array();
  for (const auto& [block, count] : blocks) {
    for (const char* name : {"qkv", "down"}) {
      for (const int64_t some : tokens) {
        rows.push_back(row(block, name, count, some));
      }
    }
  }
  return rows;
}

std::string report_text(const json& rows) {
  const json table{{"name", "layers"}, {"columns", json::array()}, {"rows", rows}};
  const json totals{{"name", "layer totals"}, {"rows", json::array()}};
  return json{{"environment", {{"version", "1"}}}, {"tables", {table, totals}}}.dump();
}

class ServeLayersReport : public ::testing::Test {
 protected:
  LayersReport read(const std::string& text) {
    return read_layers_report(dir_.write("report.json", text));
  }
  LayerTable with(const json& rows) {
    LayerTable table = table_of_six();
    add_layer_times(read(report_text(rows)), table);
    return table;
  }
  // Every message begins with the path.
  std::string path() const { return (dir_.path() / "report.json").string(); }
  ::testing::AssertionResult refuses(const json& rows, const std::string& why) {
    return throws_error([&] { with(rows); }, path() + ": " + why);
  }
  ::testing::AssertionResult refuses_cell(const char* key, const json& value,
                                          const std::string& why) {
    json rows = rows_of({{2, 4}, {5, 2}});
    rows[3][key] = value;
    return throws_error([&] { read(report_text(rows)); }, path() + ": tables[0].rows[3]." + why);
  }
  const TempDir& dir() const { return dir_; }

 private:
  TempDir dir_;
};

TEST_F(ServeLayersReport, IsWhatTheBenchmarkWrites) {
  BenchModelArgs args;
  args.model.model = testing::data("models/fable-llama-relu-8m").string();
  args.model.device = "cpu";
  args.model.weight_format = "tca_bme";
  LayerBenchOptions options;
  options.tokens = {1, 3};
  options.repeat = 1;
  options.rotation_bytes = 1 << 16;
  EngineOptions engine_options;
  engine_options.with_tokenizer = false;
  engine_options.max_requests = 3;
  engine_options.context_size = 64;
  engine_options.weight_format = "tca_bme";
  const Engine engine = Engine::load(args.model.model, engine_options);
  for (const auto blocks : {LayerBenchOptions::Blocks::alike, LayerBenchOptions::Blocks::all}) {
    options.blocks = blocks;
    std::string text;
    ReportWriter report(ReportFormat::json, {{.key = "cpu", .value = "some"}},
                        [&](std::string_view part) { text += part; });
    report_layers(options, open_layers(args, {.max_requests = 3}), report);
    report.finish();
    LayerTable table = layer_table_of(engine.block_weights(), 1);
    add_layer_times(read(text), table);
    ASSERT_EQ(table.rows.size(), 32u);
    for (const LayerTableRow& of : table.rows) {
      EXPECT_EQ(of.measured_block, blocks == LayerBenchOptions::Blocks::all ? of.weight.block : 4);
      ASSERT_EQ(of.times.size(), 2u);
      EXPECT_EQ(of.times[0].tokens, 1);
      EXPECT_EQ(of.times[1].tokens, 3);
      EXPECT_GT(of.times[0].us_sparse.value_or(0.0), 0.0);
      EXPECT_GT(of.times[0].us_dense.value_or(0.0), 0.0);
    }
  }
}

TEST_F(ServeLayersReport, ABlockStandsForThoseThatAreAlike) {
  const LayerTable table = with(rows_of({{2, 4}, {5, 2}}));
  for (const LayerTableRow& of : table.rows) {
    const int64_t block = of.weight.block == 0 || of.weight.block == 5 ? 5 : 2;
    EXPECT_EQ(of.measured_block, block);
    ASSERT_EQ(of.times.size(), 2u);
    EXPECT_EQ(of.times[0].us_sparse, 10.0 * static_cast<double>(block) + 1.0);
    EXPECT_EQ(of.times[1].us_sparse, 10.0 * static_cast<double>(block) + 8.0);
    EXPECT_EQ(of.times[1].us_dense, 100.0);
  }
}

// Which of the two stands for blocks 2 and 4 cannot be told.
TEST_F(ServeLayersReport, ABlockForWhichTwoMayStandHasNoTimes) {
  const LayerTable table = with(rows_of({{0, 1}, {1, 2}, {3, 2}, {5, 1}}));
  for (const LayerTableRow& of : table.rows) {
    const bool unknown = of.weight.block == 2 || of.weight.block == 4;
    EXPECT_EQ(of.times.empty(), unknown) << of.weight.block;
  }
}

TEST_F(ServeLayersReport, ABlockThatStandsForItselfAloneStandsForNoOther) {
  const LayerTable table = with(rows_of({{1, 1}, {2, 3}, {0, 2}}));
  EXPECT_EQ(table.rows[2].measured_block, 1);
  EXPECT_EQ(table.rows[6].measured_block, 2);
  EXPECT_EQ(table.rows[8].measured_block, 2);
  EXPECT_EQ(table.rows[10].measured_block, 0);
}

TEST_F(ServeLayersReport, WhatWasNotMeasuredIsAbsent) {
  json rows = rows_of({{2, 4}, {5, 2}});
  rows[0]["time_us"] = nullptr;
  rows[1]["dense_us"] = nullptr;
  rows[2]["time_us"] = 7;  // an integer is a number
  const LayerTable table = with(rows);
  const std::vector<LayerTimes>& times = table.rows[4].times;
  EXPECT_FALSE(times[0].us_sparse.has_value());
  EXPECT_TRUE(times[0].us_dense.has_value());
  EXPECT_FALSE(times[1].us_dense.has_value());
  EXPECT_EQ(table.rows[5].times[0].us_sparse, 7.0);
}

TEST_F(ServeLayersReport, OfAnotherModelIsRefused) {
  const json good = rows_of({{2, 4}, {5, 2}});
  const auto changed = [&](const char* key, const json& value) {
    json rows = good;
    rows[0][key] = value;
    return rows;
  };
  EXPECT_TRUE(refuses(changed("block", 6), "the model has no layer \"qkv\" in block 6"));
  EXPECT_TRUE(refuses(changed("layer", "up\n"), "the model has no layer \"up\\n\" in block 2"));
  EXPECT_TRUE(refuses(changed("out", 47), "layer qkv of block 2 is 47 x 16, but 48 x 16"));
  EXPECT_TRUE(refuses(changed("in", 17), "layer qkv of block 2 is 48 x 17, but 48 x 16"));
  EXPECT_TRUE(refuses(changed("format", "x"), "layer qkv of block 2 has 1002 bytes in \"x\", but"));
  EXPECT_TRUE(refuses(changed("bytes", 999), "layer qkv of block 2 has 999 bytes in"));
  EXPECT_TRUE(refuses(changed("tokens", 8), "layer qkv of block 2 is there twice for 8 tokens"));
  EXPECT_TRUE(refuses(changed("tokens", 2), "layer qkv is there for 2 blocks for 1 tokens"));
  EXPECT_TRUE(refuses(changed("layers", 3), "block 2 stands for both 3 and 4 blocks"));
  EXPECT_TRUE(refuses(rows_of({{2, 4}, {5, 3}}), "layer down is there for 7 blocks for 1 tokens"));
  EXPECT_TRUE(refuses(rows_of({{2, 4}}), "layer down is there for 4 blocks for 1 tokens, but the"));
  json incomplete = good;
  incomplete.erase(7);
  EXPECT_TRUE(refuses(incomplete, "layer down is there for 4 blocks for 8 tokens"));
}

TEST_F(ServeLayersReport, CellsAreChecked) {
  EXPECT_TRUE(refuses_cell("block", -1, "block is -1"));
  EXPECT_TRUE(refuses_cell("block", 1.5, "block is 1.5"));
  EXPECT_TRUE(refuses_cell("block", nullptr, "block is "));
  EXPECT_TRUE(refuses_cell("layer", 7, "layer is 7"));
  EXPECT_TRUE(refuses_cell("layers", 0, "layers is 0"));
  EXPECT_TRUE(refuses_cell("layers", int64_t{1} << 62, "layers is "));
  EXPECT_TRUE(refuses_cell("out", 0, "out is 0"));
  EXPECT_TRUE(refuses_cell("in", "16", "in is \"16\""));
  EXPECT_TRUE(refuses_cell("format", 7, "format is 7"));
  EXPECT_TRUE(refuses_cell("bytes", -5, "bytes is -5"));
  EXPECT_TRUE(refuses_cell("tokens", 0, "tokens is 0"));
  EXPECT_TRUE(refuses_cell("time_us", "fast\n", "time_us is \"fast\\n\"; expected microseconds"));
  EXPECT_TRUE(refuses_cell("time_us", 0, "time_us is 0"));
  EXPECT_TRUE(refuses_cell("dense_us", -1.0, "dense_us is -1"));
  EXPECT_TRUE(refuses_cell("dense_us", 1e300, "dense_us is 1e+300"));
  EXPECT_TRUE(refuses_cell("dense_us", false, "dense_us is false"));
  json rows = rows_of({{2, 4}, {5, 2}});
  rows[3].erase("time_us");
  EXPECT_TRUE(
      throws_error([&] { read(report_text(rows)); }, "tables[0].rows[3].time_us is missing"));
}

TEST_F(ServeLayersReport, WhatIsNoneIsRefused) {
  const auto refused = [&](const std::string& text, const std::string& why) {
    return throws_error([&] { read(text); }, path() + why);
  };
  EXPECT_TRUE(refused("", ""));
  EXPECT_TRUE(refused("# cpu: some\nblock,layer\n", ""));
  EXPECT_TRUE(refused(R"({"table": "environment"})", " has the unknown key \"table\""));
  EXPECT_TRUE(refused(R"({"table": "environment"})"
                      "\n"
                      R"({"table": "layers"})",
                      ""));
  EXPECT_TRUE(refused("[]", " is an array"));
  EXPECT_TRUE(refused("{}", ": tables is missing"));
  EXPECT_TRUE(refused(R"({"tables": {}})", ": tables is an object"));
  EXPECT_TRUE(refused(R"({"tables": [], "more": 1})", " has the unknown key \"more\""));
  EXPECT_TRUE(refused(R"({"tables": []})", ": there is no table of layers"));
  EXPECT_TRUE(refused(R"({"tables": [{"name": "matrix", "rows": []}]})", ": there is no table"));
  EXPECT_TRUE(refused(R"({"tables": [{"name": "layers", "rows": []}]})", ": there is no table"));
  EXPECT_TRUE(refused(R"({"tables": [{"name": "layers"}]})", ": tables[0].rows is missing"));
  EXPECT_TRUE(
      refused(R"({"tables": [{"name": "layers", "rows": [1]}]})", ": tables[0].rows[0] is"));
  EXPECT_TRUE(refused(R"({"tables": [{"name": "layers", "name": "layers"}]})", ": "));
  const std::string table = R"({"name": "layers", "rows": []})";
  EXPECT_TRUE(refused("{\"tables\": [" + table + "," + table + "]}", ": there are two tables"));
  const std::string deep(100000, '[');
  EXPECT_TRUE(refused("{\"tables\": " + deep, ": "));
  EXPECT_TRUE(refused("{\"tables\": [], \"environment\": 1e999}", ""));
  EXPECT_TRUE(refused(std::string((size_t{16} << 20) + 1, ' '), ""));
  EXPECT_TRUE(throws_error([&] { read_layers_report(dir().path() / "none.json"); }, "none.json"));
}

}  // namespace
}  // namespace sparsellm
