// Which weights a conversion sets to zero, and that it leaves the others alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/engine/conversion/converted_model.h"
#include "tests/testing/paths.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::contents;
using testing::convert;
using testing::entries;
using testing::expect_pruned_values;
using testing::expect_same_bytes;
using testing::expect_same_others;
using testing::expect_same_tensor;
using testing::greedy;
using testing::load;
using testing::Model;
using testing::plan;
using testing::TempDir;
using testing::throws_error;
using testing::verified;
using testing::zeros;

fs::path llama() { return testing::data("models/fable-llama-relu-8m"); }
fs::path opt() { return testing::data("models/fable-opt-8m"); }
fs::path opt_gelu() { return testing::data("tiny/opt_gelu"); }
fs::path llama3() { return testing::data("tiny/llama3"); }  // bf16, two shards

struct PruneCase {
  const char* method;
  double sparsity;
  PruneScope scope = PruneScope::row;
  const char* format = "auto";
};

TEST(ConvertPrune, PrunesExactlyTheRequestedShare) {
  for (const PruneCase& c : {PruneCase{"magnitude", 0.5},
                             {"magnitude", 0.9, PruneScope::row, "tiled_csl"},
                             {"magnitude", 0.37, PruneScope::matrix, "tca_bme"},
                             {"random", 0.6, PruneScope::row, "dense"},
                             {"random", 0.25, PruneScope::matrix},
                             {"magnitude", 0.0},
                             {"magnitude", 1.0},
                             {"random", 1.0, PruneScope::matrix, "tiled_csl"}}) {
    for (const fs::path& input : {opt_gelu(), llama3()}) {
      SCOPED_TRACE(fmt::format("{} {} {} {}", c.method, c.sparsity, c.format, input.string()));
      const TempDir directory;
      const fs::path output = directory.path() / "out";
      const Conversion conversion =
          convert(input, output, plan(c.method, c.sparsity, c.format, c.scope), verified);
      const Model before(input);
      const Model after(output);
      expect_same_others(before, after);
      for (size_t i = 0; i < before.layers.size(); ++i) {
        SCOPED_TRACE(before.layers[i].module);
        const OwnedTensor a = before.dense(before.layers[i]);
        const OwnedTensor b = after.dense(before.layers[i]);
        expect_pruned_values(a.view, b.view);
        const auto share = [&](int64_t count) {
          return std::llround(c.sparsity * static_cast<double>(count));
        };
        const int64_t rows = a.view.size(0);
        const int64_t columns = a.view.size(1);
        if (c.scope == PruneScope::matrix) {
          EXPECT_EQ(zeros(b.view), std::max<int64_t>(share(rows * columns), zeros(a.view)));
        } else {
          for (int64_t row = 0; row < rows; ++row) {
            ASSERT_EQ(zeros(b.view, row), std::max<int64_t>(share(columns), zeros(a.view, row)));
          }
        }
        EXPECT_EQ(conversion.weights[i].nonzeros, rows * columns - zeros(b.view));
        EXPECT_EQ(conversion.weights[i].stored_nonzeros, rows * columns - zeros(a.view));
      }
    }
  }
}

TEST(ConvertPrune, ASparserModelStaysAsItIs) {
  const TempDir directory;
  const fs::path first = directory.path() / "first";
  const fs::path second = directory.path() / "second";
  convert(opt(), first, plan("magnitude", 0.6, "tca_bme"));
  convert(first, second, plan("random", 0.5, "tca_bme"));
  expect_same_bytes(first, second);
}

TEST(ConvertPrune, RandomZerosDifferFromLayerToLayer) {
  const TempDir directory;
  convert(llama3(), directory.path() / "out", plan("random", 0.5, "dense"));
  const Model model(directory.path() / "out");
  const OwnedTensor gate = model.dense(model.layers[4]);
  const OwnedTensor up = model.dense(model.layers[5]);
  ASSERT_EQ(gate.view.bytes(), up.view.bytes());
  int64_t both = 0;
  for (int64_t row = 0; row < gate.view.size(0); ++row) {
    for (int64_t column = 0; column < gate.view.size(1); ++column) {
      both += to_float(gate.view.row<BFloat16>(row)[column]) == 0.0f &&
                      to_float(up.view.row<BFloat16>(row)[column]) == 0.0f
                  ? 1
                  : 0;
    }
  }
  EXPECT_LT(both, gate.view.element_count() / 3);
}

// The zeros of a layer, as a share.
double sparsity_of(const Model& model, const LinearLayer& layer) {
  const OwnedTensor w = model.dense(layer);
  return static_cast<double>(zeros(w.view)) / static_cast<double>(w.view.element_count());
}

TEST(ConvertPrune, PlansOfTheProject) {
  constexpr int64_t kBlocks = 8;
  using Expected = std::function<double(const LinearLayer&)>;
  const auto is_first_of_mlp = [](const std::string& kind) {
    return kind == "fc1" || kind == "mlp.gate_proj" || kind == "mlp.up_proj";
  };
  const std::map<std::string, Expected> plans{
      {"uniform-50.json", [](const LinearLayer&) { return 0.5; }},
      {"uniform-60.json", [](const LinearLayer&) { return 0.6; }},
      {"uniform-70.json", [](const LinearLayer&) { return 0.7; }},
      {"uniform-80.json", [](const LinearLayer&) { return 0.8; }},
      {"flash-llm.json",
       [&](const LinearLayer& layer) {
         const bool at_an_end = layer.block < 2 || layer.block >= kBlocks - 2;
         return at_an_end && is_first_of_mlp(kind_of(layer)) ? 0.0 : 0.8;
       }},
      {"generalsparse.json", [](const LinearLayer& layer) {
         return layer.block == 0 || layer.block == kBlocks - 1 ? 0.7 : 0.9;
       }}};
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(testing::source_dir() / "configs" / "plans")) {
    files += entry.path().extension() == ".json" ? 1 : 0;
  }
  EXPECT_EQ(files, plans.size());
  for (const auto& [name, expected] : plans) {
    for (const fs::path& input : {llama(), opt()}) {
      if (name.starts_with("uniform") && (input == opt()) != (name == "uniform-70.json")) {
        continue;  // one model is enough
      }
      if (testing::kSanitized && input == llama()) {
        continue;
      }
      SCOPED_TRACE(fmt::format("{} for {}", name, input.filename().string()));
      const TempDir directory;
      const fs::path output = directory.path() / "out";
      convert(input, output,
              SparsityPlan::read(testing::source_dir() / "configs" / "plans" / name));
      const Model before(input);
      const Model after(output);
      ASSERT_EQ(before.config.num_layers, kBlocks);
      expect_same_others(before, after);
      for (const LinearLayer& layer : after.layers) {
        SCOPED_TRACE(layer.module);
        const double share = expected(layer);
        if (share == 0.0) {
          EXPECT_EQ(after.stored(layer).format, "dense");
          expect_same_tensor(*before.checkpoint.find(layer.module + ".weight"),
                             after.checkpoint.find(layer.module + ".weight"), layer.module);
        } else {
          // A row has at least 256 weights, and the share is rounded to one of them.
          EXPECT_NEAR(sparsity_of(after, layer), share, 0.5 / 256);
          EXPECT_EQ(after.stored(layer).format, "tca_bme");
        }
      }
      Engine engine = load(output, {}, false);
      EXPECT_EQ(greedy(engine).size(), 12u);
    }
  }
}

CalibrationFile calibration(int64_t tokens) {
  return {.file = testing::data("text/calibration.txt"), .tokens = tokens};
}

TEST(ConvertPrune, Wanda) {
  constexpr int64_t kTokens = testing::kSanitized ? 20 : 150;
  const TempDir directory;
  const auto wanda = [&](const fs::path& input, const std::string& name, int threads) {
    return convert(input, directory.path() / name, plan("wanda", 0.5, "auto"),
                   [&](ConvertOptions& options) {
                     options.calibration = calibration(kTokens);
                     options.threads = threads;
                     options.verify = true;
                   });
  };
  wanda(opt(), "one", 1);
  wanda(opt(), "two", 2);
  EXPECT_EQ(contents(directory.path() / "one" / "model.safetensors"),
            contents(directory.path() / "two" / "model.safetensors"));

  const Model before(opt());
  const Model after(directory.path() / "one");
  expect_same_others(before, after);
  for (const LinearLayer& layer : before.layers) {
    SCOPED_TRACE(layer.module);
    const OwnedTensor a = before.dense(layer);
    const OwnedTensor b = after.dense(layer);
    expect_pruned_values(a.view, b.view);
    for (int64_t row = 0; row < b.view.size(0); ++row) {
      ASSERT_EQ(zeros(b.view, row), layer.columns / 2);
    }
  }
  // It is not magnitude.
  convert(opt(), directory.path() / "magnitude", plan("magnitude", 0.5, "auto"));
  EXPECT_NE(contents(directory.path() / "magnitude" / "model.safetensors"),
            contents(directory.path() / "one" / "model.safetensors"));

  // In whatever form the same weights are stored, the result is the same.
  convert(opt(), directory.path() / "encoded", plan("none", 0, "tiled_csl"));
  wanda(directory.path() / "encoded", "from encoded", 2);
  expect_same_bytes(directory.path() / "one", directory.path() / "from encoded");
}

TEST(ConvertPrune, WholeBlocks) {
  const TempDir directory;
  const BlockShape block{8, 4};
  const Conversion conversion =
      convert(opt_gelu(), directory.path() / "out",
              SparsityPlan::uniform({.method = parse_prune_method("magnitude"),
                                     .sparsity = 0.75,
                                     .block = block,
                                     .norms = {}},
                                    "tca_bme"),
              verified);
  const Model before(opt_gelu());
  const Model after(directory.path() / "out");
  expect_same_others(before, after);
  for (size_t i = 0; i < before.layers.size(); ++i) {
    const LinearLayer& layer = before.layers[i];
    SCOPED_TRACE(layer.module);
    EXPECT_EQ(conversion.weights[i].method, "magnitude of 8x4 blocks");
    const OwnedTensor w = after.dense(layer);
    expect_pruned_values(before.dense(layer).view, w.view);
    const int64_t across = (layer.columns + block.columns - 1) / block.columns;
    for (int64_t row = 0; row < layer.rows; row += block.rows) {
      int64_t empty = 0;
      for (int64_t column = 0; column < layer.columns; column += block.columns) {
        const Range columns{column, std::min(block.columns, layer.columns - column)};
        int64_t nonzeros = 0;
        for (int64_t r = row; r < std::min(row + block.rows, layer.rows); ++r) {
          nonzeros += columns.count - zeros(w.view, r, columns);
        }
        empty += nonzeros == 0 ? 1 : 0;
      }
      ASSERT_EQ(empty, std::llround(0.75 * static_cast<double>(across))) << "row " << row;
    }
  }
}

TEST(ConvertPrune, GroupsOfNOfM) {
  const TempDir directory;
  const Model before(opt_gelu());
  for (const char* method : {"2:4", "1:8", "3:7"}) {
    const PruneMethod parsed = parse_prune_method(method);
    std::vector<std::string> files;
    for (const bool calibrated : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, calibrated: {}", method, calibrated));
      const fs::path output = directory.path() / fmt::format("{}-{}", parsed.group, calibrated);
      convert(opt_gelu(), output, plan(method, 0, "tca_bme"), [&](ConvertOptions& options) {
        if (calibrated) {
          options.calibration = calibration(40);
        }
      });
      const Model after(output);
      expect_same_others(before, after);
      for (const LinearLayer& layer : before.layers) {
        SCOPED_TRACE(layer.module);
        const OwnedTensor a = before.dense(layer);
        const OwnedTensor b = after.dense(layer);
        expect_pruned_values(a.view, b.view);
        for (int64_t row = 0; row < layer.rows; ++row) {
          for (int64_t begin = 0; begin < layer.columns; begin += parsed.group) {
            const Range group{begin, std::min<int64_t>(parsed.group, layer.columns - begin)};
            ASSERT_EQ(zeros(b.view, row, group),
                      std::max<int64_t>(zeros(a.view, row, group), group.count - parsed.kept))
                << "row " << row << ", column " << begin;
          }
        }
      }
      files.push_back(contents(output / "model.safetensors"));
    }
    EXPECT_NE(files[0], files[1]);
  }
}

// Its sequences are as long as the model's positions allow.
TEST(ConvertPrune, MoreCalibrationThanPositions) {
  const TempDir directory;
  for (const fs::path& input : {opt_gelu(), llama3()}) {
    const int64_t positions = read_model_config(input).max_positions;
    ASSERT_LT(positions, 2048);
    const auto file = [&](int64_t tokens) {
      const fs::path output = directory.path() / input.filename() / std::to_string(tokens);
      fs::create_directories(output.parent_path());
      convert(input, output, plan("wanda", 0.5, "tca_bme"),
              [&](ConvertOptions& options) { options.calibration = calibration(tokens); });
      return contents(output / "model.safetensors");
    };
    const std::string all = file(positions);
    EXPECT_NE(file(positions / 2), all);
    EXPECT_NE(file(2 * positions + 1), all);
  }
}

TEST(ConvertPrune, WandaNeedsAText) {
  const TempDir directory;
  const fs::path output = directory.path() / "out";
  const auto run = [&](const std::optional<CalibrationFile>& file) {
    return [&, file] {
      convert(llama3(), output, plan("wanda", 0.5, "auto"),
              [&](ConvertOptions& options) { options.calibration = file; });
    };
  };
  EXPECT_TRUE(throws_error(run(std::nullopt), "needs a text for calibration"));
  EXPECT_TRUE(throws_error(run(calibration(1)), "1 tokens are too few"));
  EXPECT_TRUE(
      throws_error(run(CalibrationFile{.file = "/no/such/text", .tokens = 9}), "/no/such/text"));
  const fs::path empty = directory.write("empty.txt", "");
  EXPECT_TRUE(throws_error(run(CalibrationFile{.file = empty, .tokens = 9}), "no tokens"));
  EXPECT_EQ(entries(directory.path()), std::set<std::string>{"empty.txt"});
}

}  // namespace
}  // namespace sparsellm
