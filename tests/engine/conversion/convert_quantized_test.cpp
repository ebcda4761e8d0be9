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
#include "tests/engine/conversion/quantized_checkpoint.h"
#include "tests/models/expect_error.h"
#include "tests/models/storage/write_quantized.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/synthetic_model.h"
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
using testing::verified;
using Kind = testing::QuantizedKind;
using Quantized = testing::QuantizedCheckpoint;
using Form = WeightStore::Form;

const std::vector<int32_t> kText{3, 7, 5, 11, 250, 31, 8, 8, 1, 99, 42, 17, 160, 2};

const Kind& kind_at(size_t i) { return testing::checkpoint_kinds()[i]; }

void expect_same_codes(const QuantizedMatrix& got, const QuantizedMatrix& expected) {
  EXPECT_EQ(got.type, expected.type);
  EXPECT_EQ(got.group, expected.group);
  EXPECT_EQ(got.codes, expected.codes);
  EXPECT_EQ(got.scales, expected.scales);
}

// All quantised weights of a converted model have their codes and scales, in this format or, if it
// is empty, in any.
void expect_codes(const fs::path& converted, const Quantized& from, DType dtype,
                  const std::string& format = "tca_bme") {
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
    if (!format.empty()) {
      ASSERT_EQ(stored.format, format);
    }
    EXPECT_EQ(stored.dtype, dtype);
    const EncodedWeight encoded = model.store.encoded(name, threads);
    ASSERT_EQ(encoded.version, stored.format == "tca_bme" ? 3 : 1);
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

std::string dense_format_of(ValueType type) { return fmt::format("dense_{}", name_of(type)); }

std::string values_text(const Kind& kind) {
  return kind.type == ValueType::i4 ? fmt::format("i4:{}", kind.group)
                                    : std::string(name_of(kind.type));
}

std::set<std::string> values_of_config(const fs::path& directory) {
  const auto config = nlohmann::json::parse(contents(directory / "config.json"));
  return config.at("quantization_config").at("values").get<std::set<std::string>>();
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
  std::map<std::string, int64_t> bytes;
  for (const std::string format : {"tca_bme", "auto", "smallest"}) {
    SCOPED_TRACE(format);
    const fs::path output = model.output(format);
    const Conversion conversion = convert(model.path(), output, plan("none", 0, format), verified);
    expect_codes(output, model, DType::bf16, format == "tca_bme" ? format : "");
    bytes[format] = conversion.bytes();
    testing::expect_same_others(Model(model.plain()), Model(output));
    EXPECT_EQ(testing::formats_of_config(output), conversion.sparse_formats());
    EXPECT_EQ(values_of_config(output), conversion.narrow_values());
    EXPECT_FALSE(conversion.narrow_values().empty());
    testing::expect_near(logits(output), expected, testing::kLogitTolerance);
  }
  EXPECT_LE(bytes["smallest"], bytes["tca_bme"]);
  EXPECT_LE(bytes["smallest"], bytes["auto"]);
}

// The formats are those of weights that are rounded to the same values: narrow_rules.h.
TEST(ConvertQuantizedFormat, IsThatOfNarrowValues) {
  const testing::TempDir directory;
  const fs::path base = directory.path() / "base";
  testing::write_synthetic_model(base, {.hidden = 256, .intermediate = 384, .blocks = 1});
  for (const Kind& kind : testing::checkpoint_kinds()) {
    SCOPED_TRACE(kind.name);
    const Quantized model(base, kind);
    const bool half = kind.prune != "none";
    for (const bool smallest : {false, true}) {
      const bool dense = kind.type == ValueType::i4   ? !half || !smallest
                         : kind.type == ValueType::i8 ? !half
                                                      : false;
      for (const std::string& values : {std::string(), values_text(kind)}) {
        const Conversion conversion =
            convert(model.path(), model.output("out"),
                    SparsityPlan::uniform({}, smallest ? "smallest" : "auto", values),
                    [](ConvertOptions& options) { options.replace = options.verify = true; });
        EXPECT_EQ(conversion.sparse_formats(),
                  std::set<std::string>{dense ? dense_format_of(kind.type) : "tca_bme"})
            << (smallest ? "smallest " : "auto ") << values;
        EXPECT_EQ(conversion.narrow_values().size(), 1u);
        expect_codes(model.output("out"), model, DType::f16, "");
      }
    }
  }
}

// Also in groups of 32, which nobody chooses.
TEST_P(ConvertQuantized, KeepsCodesAndScalesWithoutBitmaps) {
  const Quantized model(data("tiny/llama3"), GetParam());
  const ValueType type = model.codes.begin()->second.type;
  if (type == ValueType::f8) {
    GTEST_SKIP() << "no dense format has values of e4m3";
  }
  const std::string format = dense_format_of(type);
  const fs::path output = model.output(format);
  convert(model.path(), output, plan("none", 0, format), verified);
  expect_codes(output, model, DType::bf16, format);
  EXPECT_EQ(testing::formats_of_config(output), std::set<std::string>{format});
  const testing::LogitRows expected = logits(model.plain());
  testing::expect_near(logits(output), expected, testing::kLogitTolerance);
  testing::expect_near(logits(model.path(), format), expected, testing::kLogitTolerance);
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

INSTANTIATE_TEST_SUITE_P(Kinds, ConvertQuantized, ::testing::ValuesIn(testing::checkpoint_kinds()),
                         [](const auto& kind) { return kind.param.name; });

// What pruning leaves has its codes.
TEST(ConvertQuantizedModels, ArePrunedToo) {
  for (const Kind& kind : {kind_at(0), kind_at(4), kind_at(8)}) {
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
  const Quantized model(data("tiny/llama3"), kind_at(2));
  convert(model.path(), model.output("f16"), plan("none", 0, "auto"), [](ConvertOptions& options) {
    options.dtype = DType::f16;
    options.verify = true;
  });
  expect_codes(model.output("f16"), model, DType::f16);
}

TEST(ConvertQuantizedModels, AreInspected) {
  for (const Kind& kind : testing::checkpoint_kinds()) {
    SCOPED_TRACE(kind.name);
    const Quantized model(data("tiny/llama3"), kind);
    const ConvertOptions options = options_for(model.path(), model.output("out"));
    const Conversion converted = convert_model(options);
    for (const Inspection& each : inspect_model(options)) {
      if (each.format == "planned" || each.format == "auto") {
        EXPECT_EQ(each.conversion.bytes(), converted.bytes()) << each.format;
        EXPECT_EQ(each.conversion.other_bytes, converted.other_bytes);
      }
    }
  }
}

// Some layers, one of several that are joined among them, and a tied head.
TEST(ConvertQuantizedModels, LayersMayBeIgnored) {
  for (const char* base : {"tiny/llama3", "tiny/qwen2_tied"}) {
    for (const Kind& kind : {kind_at(0), kind_at(6), kind_at(8)}) {
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
      expect_codes(output, model, DType::bf16, "");
      testing::expect_same_weights(Model(model.plain()), Model(output));
      testing::expect_near(logits(output), expected, testing::kLogitTolerance);
    }
  }
}

// With their scales in the checkpoint.
TEST(ConvertQuantizedModels, ActivationsAreNotQuantized) {
  Quantized model(data("tiny/llama3"), kind_at(0));
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
    Quantized model(data("tiny/llama3"), kind_at(4));
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
      {kind_at(1), [&](Quantized& m) { m.tensor(up + ".weight").bytes[3] = '\x7f'; },
       weight + "\": the code in row 0, column 3 is 127, which is no number of f8"},
      {kind_at(1), first_scale(0.0f), weight + "\": the scale of row 0, group 0 is 0"},
      {kind_at(1), first_scale(-1.0f), weight + "\": the scale of row 0, group 0 is -1"},
      {kind_at(1), first_scale(3e38f), up + ".weight\": the value in row "},
      {kind_at(10), first_scale(0.1f),
       weight + "_packed\": the scale of row 0, group 0 is 0.1, which is not a number of f16"},
      {kind_at(6), [&](Quantized& m) { m.tensor(up + ".bitmask").bytes[0] = '\x11'; }, "bit"},
      {kind_at(5), [&](Quantized& m) { m.tensor(up + ".weight_scale").name = "other"; },
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
