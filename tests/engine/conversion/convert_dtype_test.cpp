// Checkpoints that become f16 or bf16 on the way.

#include "engine/conversion/convert_dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/convert.h"
#include "sparse/registry.h"
#include "tests/engine/conversion/converted_model.h"
#include "tests/models/storage/write_safetensors.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::bytes_of;
using testing::contents;
using testing::convert;
using testing::entries;
using testing::expect_same_bytes;
using testing::expect_same_others;
using testing::expect_same_weights;
using testing::greedy;
using testing::load;
using testing::Model;
using testing::plan;
using testing::TempDir;
using testing::TestTensor;
using testing::throws_error;

fs::path llama3() { return testing::data("tiny/llama3"); }          // bf16, two shards
fs::path opt_gelu() { return testing::data("tiny/opt_gelu"); }      // learned positions, biases
fs::path llama_bias() { return testing::data("tiny/llama_bias"); }  // f32, tied, biases

using Change = std::function<void(std::vector<TestTensor>&)>;

DType dtype_named(const std::string& stored) {
  return stored == "F32" ? DType::f32 : stored == "F16" ? DType::f16 : DType::bf16;
}

// The checkpoint in one file, with all tensors in this dtype, each rounded once.
void write_as(const fs::path& input, const fs::path& output, DType dtype,
              const Change& change = {}) {
  const Checkpoint checkpoint(input);
  std::vector<TestTensor> tensors;
  for (const std::string& name : checkpoint.names()) {
    const StoredTensor& stored = *checkpoint.find(name);
    const DType from = dtype_named(stored.dtype);
    const int64_t count = std::ssize(stored.bytes) / size_of(from);
    std::string bytes(static_cast<size_t>(count * size_of(dtype)), '\0');
    convert(from, stored.bytes.data(), dtype, reinterpret_cast<std::byte*>(bytes.data()), count);
    tensors.push_back({name, std::string(safetensors_name(dtype)), stored.shape, std::move(bytes)});
  }
  if (change) {
    change(tensors);
  }
  fs::create_directories(output);
  for (const std::string& name : entries(input)) {
    if (name.find("safetensors") == std::string::npos) {
      fs::copy_file(input / name, output / name);
    }
  }
  std::ofstream(output / "model.safetensors", std::ios::binary)
      << testing::write_safetensors(tensors);
}

// f32 values that no 16-bit type holds.
void add_low_bits(std::vector<TestTensor>& tensors) {
  std::mt19937 random(7);
  for (TestTensor& tensor : tensors) {
    for (size_t i = 0; i + 4 <= tensor.bytes.size(); i += 4) {
      uint32_t bits = 0;
      std::memcpy(&bits, tensor.bytes.data() + i, 4);
      bits |= bits != 0 ? random() & 0xffffu : 0;
      std::memcpy(tensor.bytes.data() + i, &bits, 4);
    }
  }
}

TestTensor& find(std::vector<TestTensor>& tensors, const std::string& name) {
  for (TestTensor& tensor : tensors) {
    if (tensor.name == name) {
      return tensor;
    }
  }
  throw std::runtime_error("no tensor " + name);
}

void set_f32(TestTensor& tensor, size_t index, float value) {
  std::memcpy(tensor.bytes.data() + 4 * index, &value, 4);
}

auto to(DType dtype) {
  return [dtype](ConvertOptions& options) {
    options.dtype = dtype;
    options.verify = true;
  };
}

std::string torch_name(DType dtype) { return dtype == DType::f16 ? "float16" : "bfloat16"; }

// An f32 checkpoint of each architecture.
class ConvertDType : public ::testing::TestWithParam<DType> {
 protected:
  ConvertDType() {
    write_as(llama3(), out("llama3"), DType::f32, add_low_bits);
    write_as(opt_gelu(), out("opt_gelu"), DType::f32, add_low_bits);
    write_as(llama_bias(), out("llama_bias"), DType::f32, add_low_bits);
  }
  fs::path out(const std::string& name) const { return directory_.path() / name; }
  static constexpr const char* kModels[] = {"llama3", "opt_gelu", "llama_bias"};

 private:
  TempDir directory_;
};
INSTANTIATE_TEST_SUITE_P(DTypes, ConvertDType, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(ConvertDType, EveryTensorIsRoundedToNearestEven) {
  for (const std::string model : kModels) {
    const fs::path expected = out(model + "-rounded");
    write_as(out(model), expected, GetParam());
    const Model before(expected);
    Engine engine = load(expected, {}, false);
    const std::vector<int32_t> tokens = greedy(engine);
    for (const std::string format : {"auto", "smallest", "dense", "tiled_csl", "tca_bme"}) {
      SCOPED_TRACE(fmt::format("{} as {}", model, format));
      const fs::path output = out(model + "-" + format);
      const Conversion conversion =
          convert(out(model), output, plan("none", 0, format), to(GetParam()));
      const Model after(output);
      expect_same_weights(before, after);
      expect_same_others(before, after);
      if (format == "dense") {
        expect_same_bytes(expected, output);
      }
      int64_t other_bytes = 0;
      for (const std::string& name : after.other_tensors()) {
        other_bytes += std::ssize(after.checkpoint.find(name)->bytes);
      }
      EXPECT_EQ(conversion.other_bytes, other_bytes);
      for (const ConvertedWeight& weight : conversion.weights) {
        EXPECT_EQ(weight.dense_bytes, 2 * weight.elements());
      }
      Engine converted = load(output, {}, false);
      EXPECT_EQ(greedy(converted), tokens);
      const auto config = nlohmann::json::parse(contents(output / "config.json"));
      EXPECT_EQ(config.at("torch_dtype"), torch_name(GetParam()));
    }
  }
}

CalibrationFile calibration() {
  return {.file = testing::data("text/calibration.txt"), .tokens = 120};
}

// Pruning sees the rounded values, and so does calibration: in every tensor.
TEST_P(ConvertDType, OneStepIsAsGoodAsTwo) {
  for (const std::string model : {"llama3", "opt_gelu"}) {
    const fs::path rounded = out(model + "-rounded");
    convert(out(model), rounded, plan("none", 0, "dense"), to(GetParam()));
    for (const std::string method : {"magnitude", "wanda", "2:4", "random"}) {
      SCOPED_TRACE(fmt::format("{} by {}", model, method));
      const bool calibrates = method == "wanda" || method == "2:4";
      const auto how = plan(method, method == "2:4" ? 0.0 : 0.5, "auto");
      const auto with = [&](std::optional<DType> dtype) {
        return [&, dtype](ConvertOptions& options) {
          options.dtype = dtype;
          if (calibrates) {
            options.calibration = calibration();
          }
        };
      };
      convert(out(model), out(model + method + "one"), how, with(GetParam()));
      convert(rounded, out(model + method + "two"), how, with(std::nullopt));
      expect_same_bytes(out(model + method + "one"), out(model + method + "two"));
    }
  }
}

TEST_P(ConvertDType, ShardsAndDryRuns) {
  ConvertOptions options{.input = out("llama3"),
                         .output = out("shards"),
                         .plan = plan("magnitude", 0.6, "auto"),
                         .dtype = GetParam(),
                         .threads = 2,
                         .max_shard_bytes = 20'000};
  const Conversion conversion = convert_model(options);
  EXPECT_GE(Checkpoint(out("shards")).files().size(), 3u);
  options.output = out("whole");
  options.max_shard_bytes = 1'000'000;
  convert_model(options);
  expect_same_bytes(out("whole"), out("shards"));
  const Inspection planned = inspect_model(options).front();
  EXPECT_EQ(planned.conversion.bytes(), conversion.bytes());
  EXPECT_EQ(planned.conversion.other_bytes, conversion.other_bytes);
}

// From one 16-bit type to the other, of what was converted before.
TEST_P(ConvertDType, ConvertsOnFromEveryFormat) {
  const DType other = GetParam() == DType::f16 ? DType::bf16 : DType::f16;
  for (const std::string model : kModels) {
    const fs::path rounded = out(model + "-16");
    write_as(out(model), rounded, other);
    const fs::path expected = out(model + "-twice");
    write_as(rounded, expected, GetParam());
    const Model after_two(expected);
    for (const std::string from : {"dense", "tiled_csl", "tca_bme", "auto"}) {
      convert(rounded, out(model + from), plan("none", 0, from));
      for (const std::string format : {"dense", "tiled_csl", "tca_bme"}) {
        SCOPED_TRACE(fmt::format("{} from {} to {}", model, from, format));
        const fs::path output = out(model + from + format);
        convert(out(model + from), output, plan("none", 0, format), to(GetParam()));
        const Model after(output);
        expect_same_weights(after_two, after);
        expect_same_others(after_two, after);
      }
    }
  }
}

TEST_P(ConvertDType, TheSameDTypeChangesNothing) {
  write_as(out("llama3"), out("rounded"), GetParam());
  convert(out("rounded"), out("plain"), plan("none", 0, "auto"));
  convert(out("rounded"), out("again"), plan("none", 0, "auto"), to(GetParam()));
  expect_same_bytes(out("plain"), out("again"));
}

TEST_P(ConvertDType, TheConfigSaysSo) {
  const fs::path input = out("llama_bias");
  const auto original = nlohmann::json::parse(contents(input / "config.json"));
  const std::string name = torch_name(GetParam());
  const std::pair<nlohmann::json, nlohmann::json> cases[] = {
      {{{"torch_dtype", "float32"}}, {{"torch_dtype", name}}},
      {{{"dtype", "float32"}}, {{"dtype", name}}},
      {{{"dtype", "float32"}, {"torch_dtype", "float32"}},
       {{"dtype", name}, {"torch_dtype", name}}},
      {nlohmann::json::object(), {{"torch_dtype", name}}},
      {{{"torch_dtype", nullptr}}, {{"torch_dtype", name}}}};
  int number = 0;
  for (const auto& [before, after] : cases) {
    nlohmann::json config = original;
    config.erase("torch_dtype");
    nlohmann::json expected = config;
    config.update(before);
    expected.update(after);
    std::ofstream(input / "config.json") << config.dump();
    const fs::path output = out(fmt::format("out{}", number++));
    convert(input, output, plan("none", 0, "auto"), to(GetParam()));
    EXPECT_EQ(nlohmann::json::parse(contents(output / "config.json")), expected) << before;
    convert(input, out("plain"), plan("none", 0, "auto"),
            [](ConvertOptions& options) { options.replace = true; });
    EXPECT_EQ(contents(out("plain") / "config.json"), config.dump());
  }
}

// ---- Values that a type does not hold.

constexpr char kLinear[] = "model.layers.1.mlp.up_proj.weight";

// The largest f32 that is finite in the type, and the next one.
struct Border {
  float last;
  float first_infinite;
};
Border border_of(DType dtype) {
  const float last = std::bit_cast<float>(dtype == DType::f16 ? 0x477fefffu : 0x7f7f7fffu);
  return {last, std::nextafter(last, std::numeric_limits<float>::infinity())};
}

TEST_P(ConvertDType, WhatIsTooLargeIsAnErrorWithTheTensorAndHowMany) {
  const Border border = border_of(GetParam());
  for (const std::string tensor : {kLinear, "model.embed_tokens.weight", "model.norm.weight",
                                   "model.layers.0.input_layernorm.weight"}) {
    SCOPED_TRACE(tensor);
    const fs::path input = out("in-" + tensor);
    write_as(out("llama3"), input, DType::f32, [&](std::vector<TestTensor>& tensors) {
      TestTensor& changed = find(tensors, tensor);
      set_f32(changed, 0, border.first_infinite);
      set_f32(changed, 3, border.last);
      set_f32(changed, changed.bytes.size() / 4 - 1, -3.4028e38f);
    });
    for (const std::string method : {"none", "magnitude", "wanda"}) {
      const auto run = [&] {
        convert(input, out("out"), plan(method, method == "none" ? 0.0 : 0.5, "auto"),
                [&](ConvertOptions& options) {
                  options.dtype = GetParam();
                  if (method == "wanda") {
                    options.calibration = calibration();
                  }
                });
      };
      EXPECT_TRUE(throws_error(run, fmt::format("the tensor \"{}\" has 2 values too large for {}",
                                                tensor, name_of(GetParam()))));
      EXPECT_FALSE(fs::exists(out("out")));
    }
    EXPECT_TRUE(throws_error(
        [&] {
          inspect_model({.input = input,
                         .output = {},
                         .plan = plan("none", 0, "auto"),
                         .dtype = GetParam(),
                         .threads = 2});
        },
        fmt::format("the tensor \"{}\" has 2 values too large", tensor)));
  }
}

TEST_P(ConvertDType, InfinitiesAndNanStayAndSmallValuesBecomeSubnormalsAndZeros) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto [last, first_infinite] = border_of(GetParam());
  const float tiny = GetParam() == DType::f16 ? 0x1p-24f : 0x1p-133f;  // the smallest subnormal
  const std::vector<float> values{kInfinity, -kInfinity,   std::nanf(""), last,
                                  tiny,      tiny / 2,     -tiny * 0.75f, tiny * 1.5f,
                                  tiny / 4,  -tiny / 2.5f, -last};
  write_as(out("llama3"), out("in"), DType::f32, [&](std::vector<TestTensor>& tensors) {
    for (size_t i = 0; i < values.size(); ++i) {
      set_f32(find(tensors, kLinear), i, values[i]);
      set_f32(find(tensors, "model.embed_tokens.weight"), i, values[i]);
    }
  });
  write_as(out("in"), out("expected"), GetParam());
  convert(out("in"), out("dense"), plan("none", 0, "dense"), to(GetParam()));
  expect_same_bytes(out("expected"), out("dense"));
  convert(out("in"), out("sparse"), plan("none", 0, "tca_bme"), to(GetParam()));
  const OwnedTensor w = Model(out("sparse")).store.dense(kLinear, *std::make_unique<ThreadPool>(1));
  visit_float(GetParam(), [&]<class T>(T) {
    const T* const got = static_cast<const T*>(w.view.raw());
    EXPECT_EQ(to_float(got[0]), kInfinity);
    EXPECT_EQ(to_float(got[1]), -kInfinity);
    EXPECT_TRUE(std::isnan(to_float(got[2])));
    EXPECT_TRUE(std::isfinite(to_float(got[3])));
    EXPECT_EQ(to_float(got[4]), tiny);
    EXPECT_EQ(to_float(got[5]), 0.0f);  // to even
    EXPECT_EQ(to_float(got[6]), -tiny);
    EXPECT_EQ(to_float(got[7]), 2 * tiny);
    EXPECT_EQ(to_float(got[8]), 0.0f);
    EXPECT_EQ(to_float(got[9]), 0.0f);
  });
}

TEST_P(ConvertDType, OtherTypesOfTensors) {
  const auto with = [&](const std::string& name, const std::string& dtype, std::string bytes) {
    fs::path input = out("in" + dtype);
    write_as(out("llama3"), input, DType::f32, [&](std::vector<TestTensor>& tensors) {
      tensors.push_back({name, dtype, {2}, std::move(bytes)});
    });
    return input;
  };
  const fs::path integers = with("model.ids", "I64", bytes_of(std::vector<int64_t>{1, 70000}));
  convert(integers, out("out"), plan("none", 0, "auto"), to(GetParam()));
  const Checkpoint checkpoint(out("out"));
  const StoredTensor* const kept = checkpoint.find("model.ids");
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->dtype, "I64");

  const fs::path doubles = with("model.scale", "F64", bytes_of(std::vector<double>{1, 2}));
  EXPECT_TRUE(throws_error(
      [&] { convert(doubles, out("none"), plan("none", 0, "auto"), to(GetParam())); },
      "the tensor \"model.scale\" has the dtype F64; supported are F32, F16 and BF16"));
  EXPECT_FALSE(fs::exists(out("none")));
}

TEST(ConvertDTypes, FromBf16ToF16MayBeTooLarge) {
  const TempDir directory;
  const fs::path input = directory.path() / "in";
  write_as(llama3(), input, DType::bf16, [](std::vector<TestTensor>& tensors) {
    const BFloat16 large = to_bfloat16(65536.0f);
    std::memcpy(find(tensors, kLinear).bytes.data() + 10, &large, sizeof(large));
  });
  for (const std::string format : {"dense", "tca_bme", "tiled_csl"}) {
    convert(input, directory.path() / format, plan("none", 0, format));
    EXPECT_TRUE(throws_error(
        [&] {
          convert(directory.path() / format, directory.path() / "out", plan("none", 0, "auto"),
                  to(DType::f16));
        },
        fmt::format("the tensor \"{}\" has 1 value too large for f16", kLinear)));
    EXPECT_FALSE(fs::exists(directory.path() / "out"));
  }
}

// ---- Without it.

TEST(ConvertDTypes, AWeightSaysWhyItStaysDense) {
  const TempDir directory;
  const auto reasons = [&](const fs::path& input, const std::string& format, double sparsity) {
    std::map<std::string, int> found;
    const Conversion conversion =
        convert(input, directory.path() / "out", plan("magnitude", sparsity, format),
                [](ConvertOptions& options) { options.replace = true; });
    for (const ConvertedWeight& weight : conversion.weights) {
      EXPECT_EQ(weight.why_dense.empty(), format == "dense" || weight.format != "dense");
      ++found[weight.why_dense];
    }
    return found;
  };
  using Found = std::map<std::string, int>;
  constexpr const char* kByRules = "faster dense on NVIDIA H200, by the rules for 8 tokens";
  EXPECT_EQ(reasons(llama_bias(), "auto", 0.6),
            (Found{{"tca_bme holds f16 and bf16 values, not f32: pass --dtype f16 or bf16", 14}}));
  EXPECT_EQ(reasons(llama_bias(), "smallest", 0.6),
            (Found{{"stored as f32, which tiled_csl and tca_bme do not hold: pass --dtype f16 or "
                    "bf16",
                    14}}));
  EXPECT_EQ(reasons(llama_bias(), "dense", 0.6), (Found{{"", 14}}));
  EXPECT_EQ(reasons(llama3(), "auto", 0.0), (Found{{kByRules, 14}}));
  EXPECT_EQ(reasons(llama3(), "smallest", 0.0),
            (Found{{"no smaller as tiled_csl or tca_bme", 14}}));
  EXPECT_EQ(reasons(llama3(), "auto", 0.9), (Found{{"", 14}}));
  EXPECT_EQ(reasons(llama3(), "tca_bme", 0.0), (Found{{"", 14}}));
  EXPECT_TRUE(
      throws_error([&] { reasons(llama_bias(), "tca_bme", 0.6); }, "pass --dtype f16 or bf16"));
}

}  // namespace
}  // namespace sparsellm
