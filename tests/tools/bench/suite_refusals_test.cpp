// What is refused in the file of a suite, and how it is named.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/throws_error.h"
#include "tests/tools/bench/suite_text.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

::testing::AssertionResult refuses(const std::string& text, const std::string& message) {
  return throws_error([&] { read_suite_of(text); }, message);
}

constexpr char kEngineGroup[] =
    R"({"models": ["opt-13b"], "formats": ["dense", "tca_bme"], "sparsities": [0.6], "gpus": [1],
        "batches": [8], "outputs": [64]})";
constexpr char kKernelGroup[] =
    R"({"kind": "kernel", "shapes": ["64x48"], "formats": ["tca_bme"], "sparsities": [0.6],
        "tokens": [8]})";

// A group with one thing in it replaced.
std::string with(std::string group, const std::string& from, const std::string& to) {
  const size_t at = group.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return suite_text(group.replace(at, from.size(), to));
}

TEST(SuiteRefusals, WhatIsWrongOfASuiteIsNamed) {
  EXPECT_TRUE(throws_error([] { read_suite("/no/such/suite.json", suite_test_configs()); },
                           "/no/such/suite.json"));
  EXPECT_TRUE(refuses("{", "suite.json"));
  EXPECT_TRUE(refuses("[]", "suite.json"));
  EXPECT_TRUE(refuses(suite_text(""), "cells has 0 elements; expected 1 to 256"));
  EXPECT_TRUE(refuses(suite_text("1"), "cells[0] is 1; expected an object"));
  const std::string good = suite_text(kEngineGroup);
  EXPECT_EQ(read_suite_of(good).cells.size(), 2u);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_TRUE(refuses(changed(R"("title": "T")", R"("titel": "T")"),
                      R"(suite.json has the unknown key "titel")"));
  EXPECT_TRUE(refuses(changed(R"("title": "T", )", ""), "suite.json: title is missing"));
  EXPECT_TRUE(refuses(changed(R"("title": "T")", R"("title": "")"), "title"));
  EXPECT_TRUE(refuses(changed(R"("title": "T")", R"("title": "a\nb")"), "expected one line"));
  EXPECT_TRUE(refuses(changed(R"("gpu": "A100")", R"("gpu": 100)"), "suite.json: gpu is 100"));
  EXPECT_TRUE(refuses(changed(R"("source": "S")", R"("source": "S", "source": "S")"), "source"));
  EXPECT_TRUE(refuses(changed("tokens_per_gpu_second", "tokens"), "suite.json: metric"));
  EXPECT_TRUE(refuses(suite_text(std::string(kEngineGroup) + "," + kEngineGroup),
                      "cells[1] has the cell opt-13b/dense/1gpu/b8/o64, which an earlier group"));
}

TEST(SuiteRefusals, WhatIsWrongOfAGroupIsNamed) {
  struct Case {
    const char* from;
    const char* to;
    const char* message;
  };
  for (const Case& c : std::vector<Case>{
           {R"("gpus": [1])", R"("gpu": [1])", R"(cells[0] has the unknown key "gpu")"},
           {R"("gpus": [1])", R"("tokens": [1])", R"(cells[0] has the unknown key "tokens")"},
           {R"("gpus": [1])", R"("kind": "mlp")", "cells[0].kind is \"mlp\""},
           {R"("gpus": [1])", R"("gpus": 1)", "cells[0].gpus is 1; expected an array"},
           {R"("gpus": [1])", R"("gpus": [])", "cells[0].gpus has 0 elements"},
           {R"("gpus": [1])", R"("gpus": [1, 1])", "cells[0].gpus[1] is 1; it is in the list"},
           {R"("gpus": [1])", R"("gpus": [0])", "cells[0].gpus holds 0"},
           {R"("gpus": [1])", R"("gpus": [65])", "cells[0].gpus holds 65"},
           {R"("gpus": [1])", R"("gpus": [1.5])", "cells[0].gpus holds 1.5"},
           {R"("gpus": [1])", R"("gpus": [3])", "cells[0].gpus: opt-13b: 3 "},
           {R"("opt-13b")", R"("opt-13")", "cells[0].models: "},
           {R"("opt-13b")", R"("opt-13")", "opt-13.json: No such file"},
           {R"("opt-13b")", R"("../configs/opt-13b")", "cells[0].models has \"../configs"},
           {R"("opt-13b")", R"("/opt-13b")", "cells[0].models has \"/opt-13b\""},
           {R"("opt-13b")", R"("a/../opt-13b")", "cells[0].models has"},
           {R"("opt-13b")", R"("./opt-13b")", "cells[0].models has"},
           {R"("opt-13b")", R"("opt 13b")", "cells[0].models has"},
           {R"("opt-13b")", R"("")", "cells[0].models has \"\""},
           {R"("opt-13b")", R"("plans/flash-llm")", "cells[0].models: "},
           {R"("opt-13b")", R"("mixtral-8x7b")", "cells[0].models: "},
           {R"("opt-13b")", "3", "cells[0].models holds 3; expected strings"},
           {R"("opt-13b")", R"("opt-13b", "opt-13b")", "cells[0].models[1]"},
           {R"("models": ["opt-13b"], )", "", "cells[0].models is missing"},
           {R"("tca_bme")", R"("csr")", "cells[0].formats[1] is \"csr\"; expected one of dense, "},
           {R"("tca_bme")", R"("cusparse")", "cells[0].formats[1]"},
           {R"("tca_bme")", R"("dense")", "cells[0].formats[1]"},
           {R"("dense", "tca_bme")", R"("dense")", "cells[0].sparsities is an array; a group with"},
           {R"("sparsities": [0.6], )", "", "cells[0].sparsities is missing"},
           {R"("sparsities": [0.6])", R"("plans": ["flash-llm"], "sparsities": [0.6])",
            "cells[0].sparsities is an array; plans say"},
           {R"("sparsities": [0.6])", R"("plans": ["flash"])", "cells[0].plans: "},
           {R"("sparsities": [0.6])", R"("plans": ["../plans/flash-llm"])", "cells[0].plans has"},
           {"[0.6]", "[]", "cells[0].sparsities has 0 elements"},
           {"[0.6]", "[1.1]", "cells[0].sparsities[0] is 1.1"},
           {"[0.6]", "[-0.1]", "cells[0].sparsities[0] is -0.1"},
           {"[0.6]", "[1e999]", "suite.json"},
           {"[0.6]", "[NaN]", "suite.json"},
           {"[0.6]", "[\"0.6\"]", "cells[0].sparsities[0] is \"0.6\""},
           {"[0.6]", "[null]", "cells[0].sparsities[0]"},
           {"[0.6]", "[0.6, 0.6]", "cells[0].sparsities[1]"},
           {"[0.6]", R"([0.6], "patterns": ["diagonal"])", "cells[0].patterns[0] is \"diagonal\""},
           {"[0.6]", R"([0.6], "patterns": ["rows:9"])", "cells[0].patterns[0]"},
           {"[0.6]", R"([0.6], "patterns": ["outliers:0.5"])", "cells[0].patterns: outliers:0.5"},
           {"[0.6]", R"([0.6], "records": ["fast"])", "cells[0].records[0] is \"fast\""},
           {"[0.6]", R"([0.6], "dtype": "f32")", "cells[0].dtype is \"f32\""},
           {"[0.6]", R"([0.6], "dtype": ["f16"])", "cells[0].dtype is an array"},
           {"[0.6]", R"([0.6], "gpu_memory": ["24X"])", "cells[0].gpu_memory[0] is \"24X\""},
           {"[0.6]", R"([0.6], "gpu_memory": ["0G"])", "cells[0].gpu_memory[0]"},
           {"[0.6]", R"([0.6], "gpu_memory": ["99999999999T"])", "cells[0].gpu_memory[0]"},
           {"[0.6]", R"([0.6], "gpu_memory": [24])", "cells[0].gpu_memory"},
           {"[0.6]", R"([0.6], "breakdown": 1)", "cells[0].breakdown is 1"},
           {R"("batches": [8], )", "", "cells[0].batches is missing"},
           {"[8]", "[0]", "cells[0].batches holds 0"},
           {"[8]", "[9223372036854775808]", "cells[0].batches holds 9223372036854775808"},
           {"[64]", R"([64], "prompt": 0)", "cells[0].prompt is 0"},
           {"[64]", R"([64], "prompt": [64])", "cells[0].prompt is an array"},
           {"[64]", R"([64], "prompt": 1985)", "cells[0].outputs: opt-13b has 2048 positions"},
           {"[64]", "[1048577]", "cells[0].outputs holds 1048577"},
           {"[64]", R"([64], "activation_sparsity": {})", "cells[0].activation_sparsity"},
           {"[64]", R"([64], "activation_sparsity": [])", "cells[0].activation_sparsity has 0"},
           {"[64]", R"([64], "activation_sparsity": [{}])",
            "activation_sparsity[0].mode is missing"},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "on"}])",
            "expected one of off, exact"},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "off", "zeros": 0.5}])", "\"zeros\""},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "exact", "votes": "sign"}])",
            "votes"},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "exact", "zeros": 2}])",
            "zeros is 2"},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "predict", "zeros": 0.5}])",
            "activation_sparsity[0].predicted is missing"},
           {"[64]",
            R"([64], "activation_sparsity": [{"mode": "predict", "predicted": 0.6, "zeros": 0.5}])",
            "what is predicted counts as zero"},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "off"}, {"mode": "off"}])",
            "activation_sparsity[1] is an object; it is in the list already"},
       }) {
    EXPECT_TRUE(refuses(with(kEngineGroup, c.from, c.to), c.message)) << c.to;
  }
  // A model without zeros among its neurons.
  EXPECT_TRUE(refuses(suite_text(R"({"models": ["llama-2-7b"], "formats": ["dense"],
      "batches": [1], "activation_sparsity": [{"mode": "exact"}]})"),
                      "cells[0].activation_sparsity: llama-2-7b: activation sparsity needs relu"));
}

TEST(SuiteRefusals, WhatIsWrongOfKernelsIsNamed) {
  EXPECT_EQ(read_suite_of(suite_text(kKernelGroup)).cells.size(), 1u);
  const auto refused = [](const char* from, const char* to, const char* message) {
    EXPECT_TRUE(refuses(with(kKernelGroup, from, to), message)) << to;
  };
  refused(R"("tokens": [8])", R"("batches": [8])", R"(unknown key "batches")");
  refused(R"("tokens": [8])", R"("tokens": [8], "plans": ["flash-llm"])", R"(unknown key "plans")");
  refused(R"("tokens": [8])", R"("tokens": [0])", "cells[0].tokens holds 0");
  refused(R"(, "sparsities": [0.6])", "", "cells[0].sparsities is missing");
  refused(R"("shapes": ["64x48"], )", "", "cells[0].models is missing");
  refused("64x48", "64", "cells[0].shapes[0] is \"64\"");
  refused("64x48", "0x48", "cells[0].shapes[0]");
  refused("64x48", "16777216x16777216", "cells[0].shapes[0]");
  refused("64x48", "9999999999999999999x1", "cells[0].shapes[0]");
  refused(R"("64x48")", R"("64x48", "64x48")", "cells[0].shapes[1]");
  refused("tca_bme", "auto", "cells[0].formats[0]");
  refused(R"("tokens": [8])", R"("tokens": [8], "models": ["opt"])", "cells[0].models: ");
}

TEST(SuiteRefusals, HasABoundOnItsCells) {
  const auto numbers = [](int count) {
    std::string text;
    for (int i = 1; i <= count; ++i) {
      text += (i == 1 ? "" : ",") + std::to_string(i);
    }
    return "[" + text + "]";
  };
  const auto text = [&](int batches, int outputs) {
    return suite_text(R"({"models": ["opt-13b"], "formats": ["dense"], "batches": )" +
                      numbers(batches) + R"(, "outputs": )" + numbers(outputs) + "}");
  };
  EXPECT_EQ(read_suite_of(text(100, 100)).cells.size(), static_cast<size_t>(kMaxSuiteCells));
  EXPECT_TRUE(refuses(text(101, 100), "cells[0]: more than 10000 cells"));
  EXPECT_TRUE(refuses(text(257, 1), "cells[0].batches has 257 elements; expected 1 to 256"));
  const std::string group =
      R"("formats": ["dense"], "batches": )" + numbers(80) + R"(, "outputs": )" + numbers(80) + "}";
  EXPECT_TRUE(refuses(
      suite_text(R"({"models": ["opt-13b"], )" + group + R"(, {"models": ["opt-30b"], )" + group),
      "cells[1]: more than 10000 cells"));
}

TEST(SuiteRefusals, HasABoundOnItsCellsWithAllFormats) {
  std::string batches = "1";
  for (int i = 2; i <= 200; ++i) {
    batches += "," + std::to_string(i);
  }
  const std::string text = suite_text(
      R"({"models": ["opt-13b"], "formats": ["tca_bme"], "sparsities": [0.1, 0.2, 0.3, 0.4, 0.5,
          0.6, 0.7, 0.8, 0.9], "batches": [)" +
      batches + "], \"outputs\": [1, 2, 3]}");
  EXPECT_TRUE(refuses(text, "cells[0]: more than 10000 cells with all formats"));
}

TEST(SuiteRefusals, HasABoundOnStatedValues) {
  std::string numbers = "1";
  for (int i = 2; i <= 101; ++i) {
    numbers += "," + std::to_string(i);
  }
  const std::string figure = R"({"what": "W", "unit": "x", "place": "P", "at": [)" + numbers +
                             R"(], "values": [)" + numbers + "]}";
  EXPECT_EQ(read_suite_of(suite_text(kEngineGroup, figure)).stated[0].points.size(), 101u);
  EXPECT_TRUE(refuses(suite_text(kEngineGroup, figure + "," + figure),
                      "stated[1]: the suite has more than 200 stated values"));
}

TEST(SuiteRefusals, WhatIsWrongOfAStatedFigureIsNamed) {
  const auto stated = [](const std::string& members) {
    return suite_text(kEngineGroup, R"({"what": "W", "unit": "x", "place": "P", )" + members + "}");
  };
  const Suite good =
      read_suite_of(stated(R"("cells": "*/tca_bme/*/b{}/*", "over": "*/tiled_csl/*", "at": [8],
                                    "values": [1.5], "statistic": "share_faster",
                                    "metric": "decode_ms", "gpu": "H100")"));
  ASSERT_EQ(good.stated.size(), 1u);
  EXPECT_EQ(good.stated[0].gpu, "H100");
  EXPECT_EQ(good.stated[0].framework, "F");
  EXPECT_EQ(good.stated[0].metric, "decode_ms");
  EXPECT_EQ(good.stated[0].statistic, StatedFigure::Statistic::share_faster);
  EXPECT_EQ(read_suite_of(stated(R"("value": 3)")).stated[0].points[0].cells, "");

  EXPECT_TRUE(
      refuses(stated(R"("value": "yes")"), "stated[0].value is \"yes\"; expected a number"));
  EXPECT_TRUE(refuses(stated(R"("value": -1)"), "stated[0].value is -1"));
  EXPECT_TRUE(refuses(stated(R"("value": 1e300)"), "stated[0].value"));
  EXPECT_TRUE(refuses(stated(R"("cells": "*")"), "stated[0].value is missing"));
  EXPECT_TRUE(refuses(stated(R"("values": [1])"), R"(unknown key "values")"));
  EXPECT_TRUE(refuses(stated(R"("at": [8], "value": 1)"), R"(unknown key "value")"));
  EXPECT_TRUE(refuses(stated(R"("at": [8], "values": [1, 2])"), "stated[0].values has 2 elements"));
  EXPECT_TRUE(refuses(stated(R"("at": [8, 8], "values": [1, 2])"), "stated[0].at[1]"));
  EXPECT_TRUE(refuses(stated(R"("at": [], "values": [])"), "stated[0].at has 0 elements"));
  EXPECT_TRUE(refuses(stated(R"("at": [8], "values": [1], "cells": "*/b8/*")"),
                      "stated[0].cells is \"*/b8/*\"; all elements"));
  EXPECT_TRUE(refuses(stated(R"("at": [16], "values": [1], "cells": "*/b{}/*")"),
                      "stated[0].cells: \"*/b16/*\" matches no cell"));
  EXPECT_TRUE(refuses(stated(R"("value": 1, "cells": "*/b{}/*")"), "expected a pattern"));
  EXPECT_TRUE(refuses(stated(R"("value": 1, "cells": "")"), "expected a pattern"));
  EXPECT_TRUE(
      refuses(stated(R"("value": 1, "cells": "*", "over": "*/csr/*")"), "stated[0].over: "));
  EXPECT_TRUE(
      refuses(stated(R"("value": 1, "over": "*")"), "stated[0].over is \"*\"; there are no"));
  EXPECT_TRUE(refuses(stated(R"("value": 1, "statistic": "median")"), "stated[0].statistic"));
  EXPECT_TRUE(refuses(stated(R"("value": 1, "metric": "time")"), "stated[0].metric"));
  EXPECT_TRUE(refuses(stated(R"("value": 1, "gpu": "")"), "stated[0].gpu"));
  EXPECT_TRUE(refuses(suite_text(kEngineGroup, R"({"what": "W"})"), "stated[0].unit is missing"));
  EXPECT_TRUE(refuses(suite_text(kEngineGroup, "7"), "stated[0] is 7"));
}

}  // namespace
}  // namespace sparsellm
