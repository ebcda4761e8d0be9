// Models whose weights the library compressed-tensors has quantised: converted, and loaded as they
// are.

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "sparse/prune/prune.h"
#include "sparse/quantize/quantize.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "tests/engine/check_reference.h"
#include "tests/engine/conversion/converted_model.h"
#include "tests/models/expect_error.h"
#include "tests/models/storage/write_quantized.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tools/convert/convert_report.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::contents;
using testing::convert;
using testing::data;
using testing::error_of;
using testing::expect_message;
using testing::load;
using testing::Model;
using testing::plan;
using testing::QuantizedStorage;
using testing::TempDir;
using testing::TestTensor;
using testing::verified;
using Codes = QuantizedStorage::Codes;
using Scales = QuantizedStorage::Scales;
using Form = WeightStore::Form;
using Ignored = std::function<bool(const std::string& module)>;

const std::vector<int32_t> kText{3, 7, 5, 11, 250, 31, 8, 8, 1, 99, 42, 17, 160, 2};

bool nothing(const std::string&) { return false; }

// A kind of checkpoint, as that library writes it.
struct Kind {
  std::string name;
  std::string format;  // of config.json
  ValueType type = ValueType::i8;
  int64_t group = 0;
  QuantizedStorage storage = {};
  std::string prune = "none";
  double sparsity = 0.0;
};

void PrintTo(const Kind& kind, std::ostream* to) { *to << kind.name; }

const Kind kKinds[] = {
    {"F8Rows", "float-quantized", ValueType::f8, 0, {.scale_dtype = "BF16"}},
    {"F8Matrix", "float-quantized", ValueType::f8, 0, {.scales = Scales::matrix}},
    {"F8Sparse24",
     "float-quantized",
     ValueType::f8,
     0,
     {.codes = Codes::bitmask_24, .scale_dtype = "BF16"},
     "2:4"},
    {"F8Bitmask",
     "naive-quantized",
     ValueType::f8,
     0,
     {.codes = Codes::bitmask, .scales = Scales::rows},
     "magnitude",
     0.7},
    {"I8Rows", "int-quantized", ValueType::i8, 0, {.scale_dtype = "F16"}},
    {"I8Matrix", "int-quantized", ValueType::i8, 0, {.scales = Scales::matrix}},
    {"I8Sparse24", "int-quantized", ValueType::i8, 0, {.codes = Codes::bitmask_24}, "2:4"},
    {"I8Bitmask",
     "int-quantized",
     ValueType::i8,
     0,
     {.codes = Codes::bitmask, .scale_dtype = "BF16"},
     "magnitude",
     0.6},
    {"I4Groups32", "pack-quantized", ValueType::i4, 32, {.scale_dtype = "BF16"}},
    {"I4Groups64", "pack-quantized", ValueType::i4, 64, {.scale_dtype = "F16"}},
    {"I4Groups128", "pack-quantized", ValueType::i4, 128, {.scale_dtype = "F32"}, "2:4"},
};

nlohmann::json quantization_config(const Kind& kind) {
  const bool is_packed = kind.type == ValueType::i4;
  nlohmann::json weights = {{"num_bits", is_packed ? 4 : 8},
                            {"type", kind.type == ValueType::f8 ? "float" : "int"},
                            {"strategy", is_packed                               ? "group"
                                         : kind.storage.scales == Scales::matrix ? "tensor"
                                                                                 : "channel"},
                            {"symmetric", true},
                            {"dynamic", false}};
  if (is_packed) {
    weights["group_size"] = kind.group;
  }
  nlohmann::json config = {
      {"quant_method", "compressed-tensors"},
      {"format", kind.format},
      {"ignore", {"lm_head"}},
      {"quantization_status", "compressed"},
      {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  if (kind.storage.codes != Codes::plain) {
    config["sparsity_config"] = {
        {"format", kind.storage.codes == Codes::bitmask ? "sparse-bitmask" : "sparse-24-bitmask"}};
  }
  return config;
}

float rounded_to(const std::string& dtype, float scale) {
  return dtype == "F16"    ? to_float(to_half(scale))
         : dtype == "BF16" ? to_float(to_bfloat16(scale))
                           : scale;
}

std::string bytes_in(const Tensor& w) {
  return {static_cast<const char*>(w.raw()), static_cast<size_t>(w.bytes())};
}

// A model of tests/data quantised, the same with the values of its codes, and these codes.
class Quantized {
 public:
  Quantized(const fs::path& base, const Kind& kind, const Ignored& ignored = nothing)
      : base_(base) {
    const Model model(base);
    std::vector<TestTensor> plain;
    for (const LinearLayer& layer : model.layers) {
      OwnedTensor w = model.dense(layer);
      const std::string name = layer.module + ".weight";
      const std::string dtype(safetensors_name(w.view.dtype()));
      const std::vector<int64_t> shape{layer.rows, layer.columns};
      if (ignored(layer.module)) {
        tensors.push_back({name, dtype, shape, bytes_in(w.view)});
        plain.push_back(tensors.back());
        continue;
      }
      const QuantizedMatrix& q = codes.emplace(name, quantized(w, kind)).first->second;
      for (TestTensor& tensor : testing::quantized_tensors(layer.module, q, kind.storage)) {
        tensors.push_back(std::move(tensor));
      }
      plain.push_back({name, dtype, shape, bytes_in(dequantize(q, w.view.dtype(), threads_).view)});
    }
    for (const std::string& name : model.other_tensors()) {
      const StoredTensor& tensor = *model.checkpoint.find(name);
      tensors.push_back(
          {name, tensor.dtype, tensor.shape,
           std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size())});
      plain.push_back(tensors.back());
    }
    config = nlohmann::json::parse(contents(base / "config.json"));
    write("plain", plain, config);
    config["quantization_config"] = quantization_config(kind);
    write();
  }

  // Again, after a change of the tensors or of the config.
  void write() const { write("quantized", tensors, config); }

  fs::path path() const { return directory_.path() / "quantized"; }
  fs::path plain() const { return directory_.path() / "plain"; }
  fs::path output(const std::string& name) const { return directory_.path() / name; }

  TestTensor& tensor(const std::string& name) {
    const auto found = std::ranges::find(tensors, name, &TestTensor::name);
    EXPECT_NE(found, tensors.end()) << name;
    return *found;
  }

  std::vector<TestTensor> tensors;
  nlohmann::json config;
  std::map<std::string, QuantizedMatrix> codes;  // by the weights' names

 private:
  QuantizedMatrix quantized(OwnedTensor& stored, const Kind& kind) {
    const Tensor& from = stored.view;
    OwnedTensor w = allocate_tensor({}, from.dtype(), {from.size(0), from.size(1)}, "a weight");
    std::memcpy(w.view.raw(), from.raw(), static_cast<size_t>(from.bytes()));
    prune(w.view, {.method = parse_prune_method(kind.prune), .sparsity = kind.sparsity}, threads_);
    // One group is one of 128.
    const bool has_groups =
        kind.group > 0 && from.size(1) > kind.group && from.size(1) % kind.group == 0;
    QuantizedMatrix q = quantize(w.view, kind.type, has_groups ? kind.group : 128, threads_);
    for (float& scale : q.scales) {
      scale = rounded_to(kind.storage.scale_dtype, scale);
      scale = kind.storage.scales == Scales::matrix ? q.scales.front() : scale;
    }
    return q;
  }

  void write(const std::string& name, const std::vector<TestTensor>& which,
             const nlohmann::json& with) const {
    std::vector<TestTensor> sorted = which;  // by falling alignment: nothing needs padding
    std::ranges::stable_sort(sorted, [](const auto& a, const auto& b) {
      return *stored_item_bits(a.dtype) > *stored_item_bits(b.dtype);
    });
    directory_.write(fs::path(name) / "model.safetensors", testing::write_safetensors(sorted));
    directory_.write(fs::path(name) / "config.json", with.dump());
  }

  fs::path base_;
  TempDir directory_;
  ThreadPool threads_{2};
};

void expect_same_codes(const QuantizedMatrix& got, const QuantizedMatrix& expected) {
  EXPECT_EQ(got.type, expected.type);
  EXPECT_EQ(got.group, expected.group);
  EXPECT_EQ(got.codes, expected.codes);
  EXPECT_EQ(got.scales, expected.scales);
}

// All quantised weights of a converted model have their codes and scales.
void expect_codes(const fs::path& converted, const Quantized& from, DType dtype) {
  const Model model(converted);
  ThreadPool threads(2);
  size_t quantized = 0;
  for (const LinearLayer& layer : model.layers) {
    const std::string name = layer.module + ".weight";
    const auto found = from.codes.find(name);
    if (found == from.codes.end()) {
      continue;
    }
    SCOPED_TRACE(name);
    ++quantized;
    const WeightStore::Stored stored = model.stored(layer);
    ASSERT_EQ(stored.form, Form::encoded);
    ASSERT_EQ(stored.format, "tca_bme");
    EXPECT_EQ(stored.dtype, dtype);
    const EncodedWeight encoded = model.store.encoded(name, threads);
    ASSERT_EQ(encoded.version, 3);
    expect_same_codes(tca_bme::quantized_of(encoded, threads), found->second);
  }
  EXPECT_EQ(quantized, from.codes.size());
}

testing::LogitRows logits(const fs::path& model, const std::string& format = {}) {
  Engine engine = load(model, format, false);
  return testing::score(engine, kText);
}

ConvertOptions options_for(const fs::path& input, const fs::path& output) {
  return {.input = input, .output = output, .plan = plan("none", 0, "auto"), .threads = 1};
}

class ConvertQuantized : public ::testing::TestWithParam<Kind> {};

TEST_P(ConvertQuantized, KeepsCodesAndScales) {
  const Quantized model(data("tiny/llama3"), GetParam());
  const Model stored(model.path());
  ThreadPool threads(2);
  for (const LinearLayer& layer : stored.layers) {
    SCOPED_TRACE(layer.module);
    EXPECT_EQ(stored.stored(layer).form, Form::quantized);
    const std::string name = layer.module + ".weight";
    expect_same_codes(stored.store.quantized(name, threads), model.codes.at(name));
  }
  const testing::LogitRows expected = logits(model.plain());
  for (const std::string format : {"auto", "smallest", "tca_bme"}) {
    SCOPED_TRACE(format);
    const fs::path output = model.output(format);
    convert(model.path(), output, plan("none", 0, format), verified);
    expect_codes(output, model, DType::bf16);
    testing::expect_same_others(Model(model.plain()), Model(output));
    EXPECT_EQ(testing::formats_of_config(output), std::set<std::string>{"tca_bme"});
  }
  testing::expect_near(logits(model.output("tca_bme")), expected, testing::kLogitTolerance);
}

TEST_P(ConvertQuantized, LoadsAsItIs) {
  const Quantized model(data("tiny/llama3"), GetParam());
  const testing::LogitRows expected = logits(model.plain());
  for (const std::string format : {"", "dense", "tca_bme", "tiled_csl", "auto"}) {
    SCOPED_TRACE(format);
    testing::expect_near(logits(model.path(), format), expected, testing::kLogitTolerance);
  }
}

// The same values as those of the plain model.
TEST_P(ConvertQuantized, BecomesOtherFormats) {
  const Quantized model(data("tiny/llama3"), GetParam());
  const fs::path output = model.output("dense");
  convert(model.path(), output, plan("none", 0, "dense"), verified);
  testing::expect_same_bytes(model.plain(), output);
  EXPECT_EQ(nlohmann::json::parse(contents(output / "config.json")),
            nlohmann::json::parse(contents(model.plain() / "config.json")));
  convert(model.path(), model.output("csl"), plan("none", 0, "tiled_csl"), verified);
  convert(model.plain(), model.output("plain-csl"), plan("none", 0, "tiled_csl"));
  testing::expect_same_bytes(model.output("plain-csl"), model.output("csl"));
}

INSTANTIATE_TEST_SUITE_P(Kinds, ConvertQuantized, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

// What pruning leaves has its codes.
TEST(ConvertQuantizedModels, ArePrunedToo) {
  for (const Kind& kind : {kKinds[0], kKinds[4], kKinds[8]}) {
    SCOPED_TRACE(kind.name);
    Quantized model(data("tiny/llama3"), kind);
    convert(model.path(), model.output("a"), plan("magnitude", 0.7, "tca_bme"), verified);
    convert(model.plain(), model.output("b"), plan("magnitude", 0.7, "dense"));
    testing::expect_same_weights(Model(model.output("a")), Model(model.output("b")));
    const Model pruned(model.output("b"));
    for (const LinearLayer& layer : pruned.layers) {
      QuantizedMatrix& q = model.codes.at(layer.module + ".weight");
      const OwnedTensor w = pruned.dense(layer);
      for (size_t i = 0; i < q.codes.size(); ++i) {
        q.codes[i] = to_float(w.view.data<BFloat16>()[i]) == 0.0f ? int8_t{0} : q.codes[i];
      }
    }
    expect_codes(model.output("a"), model, DType::bf16);
  }
}

TEST(ConvertQuantizedModels, AreConvertedToAnotherDTypeToo) {
  const Quantized model(data("tiny/llama3"), kKinds[2]);
  convert(model.path(), model.output("f16"), plan("none", 0, "auto"), [](ConvertOptions& options) {
    options.dtype = DType::f16;
    options.verify = true;
  });
  expect_codes(model.output("f16"), model, DType::f16);
}

TEST(ConvertQuantizedModels, AreInspected) {
  const Quantized model(data("tiny/llama3"), kKinds[2]);
  const ConvertOptions options = options_for(model.path(), model.output("out"));
  const Conversion converted = convert_model(options);
  for (const Inspection& each : inspect_model(options)) {
    if (each.format == "planned" || each.format == "tca_bme" || each.format == "auto") {
      EXPECT_EQ(each.conversion.bytes(), converted.bytes()) << each.format;
      EXPECT_EQ(each.conversion.other_bytes, converted.other_bytes);
    }
  }
}

// Some layers, one of several that are joined among them, and a tied head.
TEST(ConvertQuantizedModels, LayersMayBeIgnored) {
  for (const char* base : {"tiny/llama3", "tiny/qwen2_tied"}) {
    for (const Kind& kind : {kKinds[0], kKinds[6], kKinds[8]}) {
      SCOPED_TRACE(fmt::format("{} {}", base, kind.name));
      const auto ignored = [](const std::string& module) {
        return module.ends_with("1.self_attn.k_proj") || module.ends_with("0.mlp.gate_proj") ||
               module.ends_with("0.self_attn.o_proj");
      };
      Quantized model(data(base), kind, ignored);
      model.config["quantization_config"]["ignore"] = {"lm_head", "model.layers.1.self_attn.k_proj",
                                                       "re:.*0.mlp.gate_proj$",
                                                       "re:.*layers\\.0\\.self_attn\\.o_proj"};
      model.write();
      const testing::LogitRows expected = logits(model.plain());
      testing::expect_near(logits(model.path()), expected, testing::kLogitTolerance);
      const fs::path output = model.output("out");
      convert(model.path(), output, plan("none", 0, "auto"), verified);
      expect_codes(output, model, DType::bf16);
      testing::expect_same_weights(Model(model.plain()), Model(output));
      testing::expect_near(logits(output), expected, testing::kLogitTolerance);
    }
  }
}

// With their scales in the checkpoint.
TEST(ConvertQuantizedModels, ActivationsAreNotQuantized) {
  Quantized model(data("tiny/llama3"), kKinds[0]);
  const testing::LogitRows expected = logits(model.path());
  auto& quantization = model.config["quantization_config"];
  const nlohmann::json scheme = {{"num_bits", 8}, {"type", "float"}, {"dynamic", false}};
  quantization["config_groups"]["group_0"]["input_activations"] = scheme;
  quantization["kv_cache_scheme"] = scheme;
  for (const char* name :
       {"model.layers.0.mlp.up_proj.input_scale", "model.layers.1.self_attn.k_scale",
        "model.layers.1.self_attn.v_scale", "model.layers.0.self_attn.q_proj.input_zero_point"}) {
    model.tensors.push_back({name, "F32", {1}, testing::scale_bytes({0.5f}, "F32")});
  }
  model.write();
  std::ostringstream text;
  spdlog::logger log("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
  log.set_pattern("%v");
  log.set_level(spdlog::level::warn);
  EngineOptions options;
  options.context_size = testing::kContext;
  options.with_tokenizer = false;
  options.log = &log;
  Engine engine = Engine::load(model.path(), options);
  testing::expect_near(testing::score(engine, kText), expected, 0.0f);
  const std::string warning = (model.path() / "config.json").string() +
                              ": quantization_config: activations or the KV cache are to be "
                              "quantised, which is left out here: they stay in the dtype that the "
                              "model computes in";
  EXPECT_EQ(text.str(), warning + "\n");
  ConvertOptions conversion = options_for(model.path(), model.output("out"));
  conversion.with_tokenizer = false;
  const std::vector<std::string> warnings = conversion_warnings(convert_model(conversion));
  EXPECT_EQ(std::ranges::count(warnings, warning), 1);
  testing::expect_same_others(Model(model.plain()), Model(conversion.output));
}

// Both ways of a model: conversion and loading.
void expect_refused(const Quantized& model, const std::string& fragment) {
  SCOPED_TRACE(fragment);
  model.write();
  const fs::path output = model.output("refused");
  for (const std::string format : {"auto", "dense"}) {
    expect_message(error_of([&] { convert(model.path(), output, plan("none", 0, format)); }),
                   fragment);
    EXPECT_FALSE(fs::exists(output));
  }
  expect_message(error_of([&] { load(model.path(), {}, false); }), fragment);
  expect_message(error_of([&] { load(model.path(), "dense", false); }), fragment);
}

TEST(ConvertQuantizedModels, WhatIsNotSupportedIsRefusedByName) {
  const std::string up = "model.layers.1.mlp.up_proj";
  struct Case {
    std::function<void(Quantized&)> change;
    std::string fragment;
  };
  const Case cases[] = {
      {[](Quantized& m) { m.config["quantization_config"]["format"] = "marlin-24"; },
       R"(quantization_config.format is "marlin-24")"},
      {[](Quantized& m) {
         m.config["quantization_config"]["config_groups"]["group_0"]["weights"]["symmetric"] =
             false;
       },
       "weights.symmetric is false; zero points"},
      {[&](Quantized& m) {
         m.tensors.push_back({up + ".weight_zero_point", "I8", {0}, ""});
       },
       "up_proj.weight_zero_point\" is there: zero points"},
      {[&](Quantized& m) {
         m.tensors.push_back({up + ".weight_g_idx", "I32", {0}, ""});
       },
       "up_proj.weight_g_idx\" is there: groups"},
      {[](Quantized& m) {
         m.tensors.push_back({"lm_head.weight_scale", "F32", {0}, ""});
       },
       R"("lm_head.weight_scale" is of a quantised weight that is no linear layer)"},
      {[](Quantized& m) {
         m.tensors.push_back({"lm_head.weight_packed", "I32", {0}, ""});
       },
       R"("lm_head.weight_packed" is of a quantised weight that is no linear layer)"},
  };
  for (const Case& c : cases) {
    Quantized model(data("tiny/llama3"), kKinds[4]);
    c.change(model);
    expect_refused(model, c.fragment);
  }
}

TEST(ConvertQuantizedModels, DamageIsRefusedByLayer) {
  const std::string up = "model.layers.1.mlp.up_proj";
  struct Case {
    const Kind& kind;
    std::function<void(Quantized&)> change;
    std::string fragment;
  };
  const auto first_scale = [&](float value) {
    return [=](Quantized& m) {
      m.tensor(up + ".weight_scale").bytes.replace(0, 4, testing::scale_bytes({value}, "F32"));
    };
  };
  const std::string weight = "the weight \"" + up + ".weight";
  const Case cases[] = {
      {kKinds[1], [&](Quantized& m) { m.tensor(up + ".weight").bytes[3] = '\x7f'; },
       weight + "\": the code in row 0, column 3 is 127, which is no number of f8"},
      {kKinds[1], first_scale(0.0f), weight + "\": the scale of row 0, group 0 is 0"},
      {kKinds[1], first_scale(-1.0f), weight + "\": the scale of row 0, group 0 is -1"},
      {kKinds[1], first_scale(3e38f), up + ".weight\": the value in row "},
      {kKinds[10], first_scale(0.1f),
       weight + "_packed\": the scale of row 0, group 0 is 0.1, which is not a number of f16"},
      {kKinds[6], [&](Quantized& m) { m.tensor(up + ".bitmask").bytes[0] = '\x11'; }, "bit"},
      {kKinds[5], [&](Quantized& m) { m.tensor(up + ".weight_scale").name = "other"; },
       up + ".weight_scale\" is missing"},
  };
  for (const Case& c : cases) {
    Quantized model(data("tiny/llama3"), c.kind);
    c.change(model);
    expect_refused(model, c.fragment);
  }
}

}  // namespace
}  // namespace sparsellm
