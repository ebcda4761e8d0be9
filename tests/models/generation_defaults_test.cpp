// Sampling defaults of generation_config.json.

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "models/config.h"
#include "tests/models/expect_error.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using testing::error_of;
using testing::expect_message;
using testing::TempDir;

GenerationDefaults read_defaults(std::string_view generation) {
  const TempDir dir;
  dir.write("generation_config.json", generation);
  return read_generation_defaults(dir.path());
}

TEST(GenerationDefaults, AreEmptyWithoutFileOrKeys) {
  const TempDir empty;
  for (const GenerationDefaults& defaults :
       {read_generation_defaults(empty.path()), read_defaults("{}"),
        read_defaults(R"({"do_sample": null, "temperature": null, "top_k": null, "top_p": null,
                          "min_p": null, "max_length": 4096})")}) {
    EXPECT_FALSE(defaults.do_sample.has_value());
    EXPECT_FALSE(defaults.temperature.has_value());
    EXPECT_FALSE(defaults.top_k.has_value());
    EXPECT_FALSE(defaults.top_p.has_value());
    EXPECT_FALSE(defaults.min_p.has_value());
  }
}

TEST(GenerationDefaults, AreRead) {
  GenerationDefaults defaults = read_defaults(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 50, "top_p": 0.9, "min_p": 0.05,
          "repetition_penalty": 1.1})");
  EXPECT_EQ(defaults.repetition_penalty, 1.1f);
  EXPECT_EQ(defaults.do_sample, true);
  EXPECT_EQ(defaults.temperature, 0.6f);
  EXPECT_EQ(defaults.top_k, 50);
  EXPECT_EQ(defaults.top_p, 0.9f);
  EXPECT_EQ(defaults.min_p, 0.05f);
  defaults = read_defaults(
      R"({"do_sample": false, "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0.0})");
  EXPECT_EQ(defaults.do_sample, false);
  EXPECT_EQ(defaults.temperature, 0.0f);
  EXPECT_EQ(defaults.top_k, 0);
  EXPECT_EQ(defaults.top_p, 1.0f);
  EXPECT_EQ(defaults.min_p, 0.0f);
}

TEST(GenerationDefaults, AreRangeChecked) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"do_sample": 1})", "do_sample is 1; expected true or false"},
      {R"({"temperature": -0.1})", "temperature is -0.1"},
      {R"({"temperature": 1e300})", "temperature is 1e+300"},
      {R"({"temperature": "hot"})", "temperature is \"hot\"; expected a number"},
      {R"({"temperature": true})", "temperature is true"},
      {R"({"top_k": -1})", "top_k is -1"},
      {R"({"top_k": 2147483648})", "top_k is 2147483648"},
      {R"({"top_k": 50.0})", "top_k is 50.0; expected an integer"},
      {R"({"top_p": 0})", "top_p is 0; expected a number above 0"},
      {R"({"top_p": 1e-300})", "top_p is 1e-300; expected a number above 0"},
      {R"({"top_p": 1.01})", "top_p is 1.01"},
      {R"({"top_p": -0.5})", "top_p is -0.5"},
      {R"({"min_p": -0.01})", "min_p is -0.01"},
      {R"({"min_p": 1.5})", "min_p is 1.5"},
      {R"({"min_p": []})", "min_p is an array"},
      {R"({"repetition_penalty": 0})", "repetition_penalty is 0"},
      {R"({"repetition_penalty": -1})", "repetition_penalty is -1"},
      {"[]", "is an array; expected an object"},
  };
  for (const auto& [text, fragment] : cases) {
    SCOPED_TRACE(text);
    const std::string message = error_of([&, &t = text] { read_defaults(t); });
    expect_message(message, fragment);
    expect_message(message, "generation_config.json");
  }
}

}  // namespace
}  // namespace sparsellm
