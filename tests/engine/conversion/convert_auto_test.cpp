// Which formats "auto" and "smallest" choose, and what models become of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "sparse/registry.h"
#include "tests/engine/conversion/converted_model.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/synthetic_model.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::convert;
using testing::expect_same_weights;
using testing::greedy;
using testing::load;
using testing::Model;
using testing::plan;
using testing::TempDir;

int64_t model_bytes(const Conversion& conversion) {
  return conversion.bytes() + conversion.other_bytes;
}

// Widths that fill records of 128 columns, and those that do not.
TEST(ConvertAuto, NoModelIsLargerThanOneWithFewerZeros) {
  for (const auto& [hidden, intermediate] : {std::pair{256, 384}, {64, 192}, {100, 130}}) {
    SCOPED_TRACE(hidden);
    const TempDir directory;
    testing::write_synthetic_model(directory.path() / "in",
                                   {.hidden = hidden, .intermediate = intermediate, .blocks = 1});
    for (const std::string format : {"auto", "smallest"}) {
      for (const PruneScope scope : {PruneScope::row, PruneScope::matrix}) {
        int64_t bytes = std::numeric_limits<int64_t>::max();
        uintmax_t file = std::numeric_limits<uintmax_t>::max();
        for (int percent = 50; percent <= 95; percent += 3) {
          const fs::path output = directory.path() / "out";
          const Conversion conversion = convert(
              directory.path() / "in", output, plan("magnitude", percent / 100.0, format, scope),
              [](ConvertOptions& options) { options.replace = true; });
          EXPECT_LE(model_bytes(conversion), bytes) << percent << " % as " << format;
          EXPECT_LE(fs::file_size(output / "model.safetensors"), file) << percent << " %";
          bytes = model_bytes(conversion);
          file = fs::file_size(output / "model.safetensors");
        }
      }
    }
  }
}

TEST(ConvertAuto, IsNeverLargerThanAFormatForItNorSmallestThanAny) {
  const TempDir directory;
  testing::write_synthetic_model(directory.path() / "in",
                                 {.hidden = 256, .intermediate = 384, .blocks = 1});
  for (const double sparsity : {0.0, 0.1, 0.5, 0.79, 0.9, 0.97, 1.0}) {
    const ConvertOptions options{.input = directory.path() / "in",
                                 .output = {},
                                 .plan = plan("magnitude", sparsity, "smallest"),
                                 .threads = 2};
    const std::vector<Inspection> inspections = inspect_model(options);
    const auto weights_as = [&](std::string_view format) {
      return std::find_if(inspections.begin(), inspections.end(),
                          [&](const Inspection& as) { return as.format == format; })
          ->conversion.weights;
    };
    const std::vector<ConvertedWeight> automatic = weights_as("auto");
    const std::vector<ConvertedWeight> smallest = weights_as("smallest");
    for (const WeightFormat* format : weight_formats()) {
      const std::vector<ConvertedWeight> as = weights_as(format->name());
      for (size_t i = 0; i < as.size(); ++i) {
        EXPECT_LE(smallest[i].bytes, as[i].bytes) << format->name() << " " << sparsity;
        if (format->for_auto()) {
          EXPECT_LE(automatic[i].bytes, as[i].bytes) << format->name() << " " << sparsity;
        }
      }
    }
    for (const ConvertedWeight& weight : automatic) {
      EXPECT_TRUE(weight_format(weight.format).for_auto());
    }
    EXPECT_EQ(inspections.front().conversion.bytes(), inspections[2].conversion.bytes());
  }
}

// In other layouts than those which are the fastest, the model is the same.
TEST(ConvertAuto, TheModelIsTheSame) {
  const fs::path input = testing::data("models/fable-llama-relu-8m");
  const TempDir directory;
  const auto out = [&](const std::string& name) { return directory.path() / name; };
  for (const double sparsity : {0.79, 0.9}) {
    const auto to = [&](const std::string& format) {
      convert(input, out(format), plan("magnitude", sparsity, format), [](ConvertOptions& options) {
        options.verify = true;
        options.replace = true;
      });
      return out(format);
    };
    to("dense");
    const Model expected(out("dense"));
    Engine dense = load(out("dense"), {}, false);
    const std::vector<int32_t> tokens = greedy(dense);
    for (const std::string format : {"auto", "smallest", "tca_bme"}) {
      SCOPED_TRACE(format);
      const Model model(to(format));
      expect_same_weights(expected, model);
      EXPECT_EQ(model.stored(model.layers.front()).format,
                format == "smallest" && sparsity > 0.85 ? "tiled_csl" : "tca_bme");
      Engine engine = load(out(format), {}, false);
      EXPECT_EQ(greedy(engine), tokens);
    }
    const auto bytes = [&](const std::string& format) {
      return fs::file_size(out(format) / "model.safetensors");
    };
    EXPECT_LT(bytes("auto"), bytes("tca_bme"));
    // The layout is a choice of each conversion, whatever the one before chose.
    for (const auto& [from, format] : {std::pair{"auto", "tca_bme"}, {"tca_bme", "auto"}}) {
      convert(out(from), out("on"), plan("none", 0, format),
              [](ConvertOptions& options) { options.replace = true; });
      testing::expect_same_bytes(out(format), out("on"));
    }
  }
}

}  // namespace
}  // namespace sparsellm
