// Models with narrow values on a CUDA device: those that compressed-tensors has quantised, those
// that a conversion has rounded, and those that are rounded while they load.

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/check_reference.h"
#include "tests/engine/conversion/converted_model.h"
#include "tests/engine/conversion/quantized_checkpoint.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::LogitRows;
using testing::QuantizedCheckpoint;
using testing::QuantizedKind;

const std::vector<int32_t> kWords{3, 7, 5, 11, 250, 31, 8, 8, 1, 99, 42, 17, 160, 2};
// A step of 16 bits on the device, against f32 on the CPU.
constexpr float kF16Tolerance = 0.04f;
constexpr float kBf16Tolerance = 0.2f;

EngineOptions on(Device device, const std::string& format, const std::string& values = {}) {
  EngineOptions options;
  options.device = device;
  options.context_size = 64;
  options.max_requests = 4;
  options.with_tokenizer = false;
  options.weight_format = format;
  options.records = values;
  return options;
}

// Of a prompt, and of its tokens as if they were generated one by one.
LogitRows logits_in(const fs::path& model, const EngineOptions& options, bool decoded = false) {
  Engine engine = Engine::load(model, options);
  return testing::score(engine, kWords, decoded ? std::optional<int64_t>(1) : std::nullopt);
}

void skip_without_gpu() {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "there is no CUDA device";
  }
}

class GpuQuantizedCheckpoint : public ::testing::TestWithParam<QuantizedKind> {
 protected:
  void SetUp() override { skip_without_gpu(); }
};
INSTANTIATE_TEST_SUITE_P(Kinds, GpuQuantizedCheckpoint,
                         ::testing::ValuesIn(testing::checkpoint_kinds()),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(GpuQuantizedCheckpoint, HasTheLogitsOfTheCpu) {
  const QuantizedCheckpoint model(testing::data("tiny/llama3"), GetParam());
  const LogitRows expected = logits_in(model.plain(), on({}, ""));
  for (const std::string format : {"", "dense", "tca_bme", "tiled_csl", "auto"}) {
    for (const bool decoded : {false, true}) {
      for (const bool deterministic : {false, true}) {
        SCOPED_TRACE(format + (decoded ? ", decoded" : "") + (deterministic ? ", same bits" : ""));
        EngineOptions options = on(testing::kGpu, format);
        options.deterministic = deterministic;
        testing::expect_near(logits_in(model.path(), options, decoded), expected, kBf16Tolerance);
        options.dtype = DType::f16;
        testing::expect_near(logits_in(model.path(), options, decoded), expected, kBf16Tolerance);
      }
    }
  }
}

// The codes of the checkpoint, not those of its values rounded once more.
TEST_P(GpuQuantizedCheckpoint, HasTheBitsOfAConversion) {
  const QuantizedCheckpoint model(testing::data("tiny/llama3"), GetParam());
  const fs::path converted = model.output("converted");
  testing::convert(model.path(), converted, testing::plan("none", 0, "tca_bme"));
  EngineOptions options = on(testing::kGpu, "tca_bme");
  options.deterministic = true;
  const LogitRows expected = logits_in(converted, options);
  testing::expect_near(logits_in(model.path(), options), expected, 0.0f);
}

TEST_P(GpuQuantizedCheckpoint, HasTheBitsOfADenseConversion) {
  if (GetParam().type == ValueType::f8) {
    GTEST_SKIP() << "no dense format has values of e4m3";
  }
  const QuantizedCheckpoint model(testing::data("tiny/llama3"), GetParam());
  const std::string format = fmt::format("dense_{}", name_of(GetParam().type));
  const fs::path converted = model.output("converted");
  testing::convert(model.path(), converted, testing::plan("none", 0, format));
  EngineOptions options = on(testing::kGpu, format);
  testing::expect_near(logits_in(converted, options), logits_in(model.plain(), on({}, "")),
                       kBf16Tolerance);
  options.deterministic = true;
  testing::expect_near(logits_in(model.path(), options), logits_in(converted, options), 0.0f);
}

// A format and its values.
class GpuValues : public ::testing::TestWithParam<std::pair<std::string, std::string>> {
 protected:
  void SetUp() override { skip_without_gpu(); }
  const testing::TempDir directory_;
};
INSTANTIATE_TEST_SUITE_P(Types, GpuValues,
                         ::testing::Values(std::pair("tca_bme", "i8"), std::pair("tca_bme", "f8"),
                                           std::pair("tca_bme", "i4"),
                                           std::pair("tca_bme", "i4:32"),
                                           std::pair("tca_bme", "i4:64"),
                                           std::pair("dense_i8", "i8"), std::pair("dense_i4", "i4"),
                                           std::pair("dense_i4", "i4:64")),
                         [](const auto& type) {
                           std::string name = type.param.first + "_" + type.param.second;
                           std::erase(name, ':');
                           return name;
                         });

// The same as a conversion makes, which has the logits of the CPU.
TEST_P(GpuValues, AreRoundedWhileAModelLoads) {
  const auto& [format, values] = GetParam();
  for (const char* base : {"models/fable-llama-relu-8m", "models/fable-opt-8m"}) {
    for (const double sparsity : {0.0, 0.6}) {
      SCOPED_TRACE(fmt::format("{}, {} zeros", base, sparsity));
      const fs::path pruned =
          directory_.path() / fmt::format("{}-{}", fs::path(base).filename().string(), sparsity);
      const fs::path rounded = pruned.string() + "-rounded";
      testing::convert(testing::data(base), pruned,
                       testing::plan(sparsity > 0.0 ? "magnitude" : "none", sparsity, "dense"));
      testing::convert(pruned, rounded, SparsityPlan::uniform({}, format, values));
      const LogitRows of_cpu = logits_in(rounded, on({}, ""));
      EngineOptions options = on(testing::kGpu, format, values);
      testing::expect_near(logits_in(pruned, options), of_cpu, kF16Tolerance);
      testing::expect_near(logits_in(pruned, options, true), of_cpu, kF16Tolerance);
      options.deterministic = true;
      const LogitRows loaded = logits_in(pruned, options);
      testing::expect_near(loaded, of_cpu, kF16Tolerance);
      options.weight_format.clear();  // those that are stored
      options.records.clear();
      testing::expect_near(logits_in(rounded, options), loaded, 0.0f);
    }
  }
}

}  // namespace
}  // namespace sparsellm
