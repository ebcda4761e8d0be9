// What config.json and a user may say about activation sparsity.

#include "models/activation_sparsity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/json_reader.h"
#include "models/config.h"
#include "tests/models/expect_error.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Mode = ActivationSparsity::Mode;
using Request = ActivationSparsityRequest;

constexpr int64_t kLayers = 3;

ModelConfig model(Activation::Kind activation, ActivationSparsity stored = {}) {
  ModelConfig config;
  config.num_layers = kLayers;
  config.activation = {.kind = activation};
  config.activation_sparsity = std::move(stored);
  return config;
}

ActivationSparsity read(const std::string& text, Activation::Kind kind = Activation::Kind::relu) {
  const JsonDocument document = parse_json(text, "config.json", 8);
  return read_activation_sparsity(JsonValue(document, "config.json: sparsellm"), kLayers, {kind});
}

const ActivationSparsity kPredict{.mode = Mode::predict,
                                  .votes = Votes::sign,
                                  .alphas = {1.01f, 0.1f, 1e-3f},
                                  .skipped = 0.43f,
                                  .perplexity_loss = 0.004f};

TEST(ActivationSparsity, IsReadAsItIsWritten) {
  for (const ActivationSparsity& sparsity :
       {ActivationSparsity{}, ActivationSparsity{.mode = Mode::exact}, kPredict,
        ActivationSparsity{.mode = Mode::predict, .alphas = {1.0f, 3e38f, 1e-38f}},
        ActivationSparsity{.mode = Mode::predict, .alphas = {{}, 1.02f, {}}}}) {
    EXPECT_EQ(read(to_json(sparsity)), sparsity) << to_json(sparsity);
    EXPECT_EQ(read(to_json(sparsity), Activation::Kind::fatrelu), sparsity);
  }
  EXPECT_EQ(read("null"), ActivationSparsity());
  EXPECT_EQ(read(R"({"version": 1, "activation_sparsity": "off"})", Activation::Kind::silu),
            ActivationSparsity());
}

TEST(ActivationSparsity, IsReadFromAConfig) {
  const TempDir dir;
  const std::string base = R"({"architectures": ["OPTForCausalLM"], "vocab_size": 1000,
      "hidden_size": 64, "ffn_dim": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
      "activation_function": "relu")";
  dir.write("config.json", base + "}");
  EXPECT_EQ(read_model_config(dir.path()).activation_sparsity, ActivationSparsity());
  dir.write("config.json", base + R"(, "sparsellm": )" + to_json(kPredict) + "}");
  EXPECT_EQ(read_model_config(dir.path()).activation_sparsity, kPredict);
  dir.write("config.json", base + R"(, "sparsellm": {"version": 2}})");
  expect_message(error_of([&] { read_model_config(dir.path()); }),
                 "config.json: sparsellm.version");
}

TEST(ActivationSparsity, RefusesWhatIsWrongInAConfig) {
  const auto predict = [](const std::string& rest) {
    return R"({"version": 1, "activation_sparsity": "predict")" + rest + "}";
  };
  const struct {
    std::string text;
    const char* error;
  } kCases[] = {
      {"7", "sparsellm"},
      {R"({"activation_sparsity": "exact"})", "version"},
      {R"({"version": 2, "activation_sparsity": "exact"})", "versions up to 1"},
      {R"({"version": 0, "activation_sparsity": "exact"})", "version"},
      {R"({"version": 1})", "activation_sparsity"},
      {R"({"version": 1, "activation_sparsity": "some"})", "off, exact, predict"},
      {R"({"version": 1, "activation_sparsity": 3})", "activation_sparsity"},
      {R"({"version": 1, "activation_sparsity": "exact", "more": 1})", "more"},
      {R"({"version": 1, "activation_sparsity": "exact", "votes": "sign"})",
       "votes is for predict"},
      {R"({"version": 1, "activation_sparsity": "off", "alphas": []})", "alphas is for predict"},
      {R"({"version": 1, "activation_sparsity": "exact", "skipped": 0.1})", "skipped"},
      {predict(R"(, "alphas": [1, 1, 1])"), "votes"},
      {predict(R"(, "votes": "all", "alphas": [1, 1, 1])"), "sign, weighted"},
      {predict(R"(, "votes": "sign")"), "alphas"},
      {predict(R"(, "votes": "sign", "alphas": 1)"), "alphas"},
      {predict(R"(, "votes": "sign", "alphas": [1, 1])"), "2 numbers; the model has 3 layers"},
      {predict(R"(, "votes": "sign", "alphas": [1, 0, 1])"), "alphas[1]"},
      {predict(R"(, "votes": "sign", "alphas": [1, 1, -1])"), "alphas[2]"},
      {predict(R"(, "votes": "sign", "alphas": [1, 1, 1e39])"), "alphas[2]"},
      {predict(R"(, "votes": "sign", "alphas": [1, "1", 1])"), "alphas[1]"},
      {predict(R"(, "votes": "sign", "alphas": [null, null, null])"), "null for all layers"},
      {predict(R"(, "votes": "sign", "alphas": [1, 1, 1], "skipped": 1.1)"), "skipped"},
      {predict(R"(, "votes": "sign", "alphas": [1, 1, 1], "perplexity_loss": -2)"), "loss"},
  };
  for (const auto& each : kCases) {
    expect_message(error_of([&] { read(each.text); }), each.error);
  }
  expect_message(error_of([] { read(to_json({.mode = Mode::exact}), Activation::Kind::silu); }),
                 "needs relu or fatrelu; the model has silu");
}

TEST(ActivationSparsity, IsWhatIsStoredUnlessSomethingElseIsAskedFor) {
  const ModelConfig stored = model(Activation::Kind::relu, kPredict);
  EXPECT_EQ(activation_sparsity_for(stored, {}), kPredict);
  EXPECT_EQ(activation_sparsity_for(stored, {.mode = Mode::predict}), kPredict);
  EXPECT_EQ(activation_sparsity_for(stored, {.votes = Votes::sign}), kPredict);
  EXPECT_EQ(activation_sparsity_for(stored, {.mode = Mode::off}), ActivationSparsity());
  EXPECT_EQ(activation_sparsity_for(stored, {.mode = Mode::exact}),
            ActivationSparsity{.mode = Mode::exact});
  EXPECT_EQ(activation_sparsity_for(model(Activation::Kind::silu), {}), ActivationSparsity());

  // Figures of other alphas are dropped.
  EXPECT_EQ(activation_sparsity_for(stored, {.alpha = Request::Alpha{.value = 1.5f, .layers = 2}}),
            (ActivationSparsity{
                .mode = Mode::predict, .votes = Votes::sign, .alphas = {1.5f, 1.5f, 1.0f}}));
  const Request all{.mode = Mode::predict, .alpha = Request::Alpha{.value = 0.5f}};
  const ActivationSparsity expected{.mode = Mode::predict, .alphas = {0.5f, 0.5f, 0.5f}};
  EXPECT_EQ(activation_sparsity_for(model(Activation::Kind::fatrelu), all), expected);
  const Request each{.mode = Mode::predict, .votes = Votes::sign, .alphas = {{}, 0.5f, 2.0f}};
  EXPECT_EQ(activation_sparsity_for(stored, each),
            (ActivationSparsity{
                .mode = Mode::predict, .votes = Votes::sign, .alphas = {{}, 0.5f, 2.0f}}));
  // What was chosen stays if it is asked for once more.
  EXPECT_EQ(activation_sparsity_for(model(Activation::Kind::fatrelu, expected), all), expected);
}

TEST(ActivationSparsity, OfEachLayer) {
  const Request request{.mode = Mode::predict,
                        .votes = Votes::sign,
                        .alphas = {0.5f, 1.0f, 2.0f},
                        .thresholds = {-1.0f, 0.0f, 1.0f}};
  const ActivationSparsity expected{.mode = Mode::predict,
                                    .votes = Votes::sign,
                                    .alphas = {0.5f, 1.0f, 2.0f},
                                    .thresholds = {-1.0f, 0.0f, 1.0f}};
  EXPECT_EQ(activation_sparsity_for(model(Activation::Kind::relu), request), expected);
  EXPECT_EQ(activation_sparsity_for(model(Activation::Kind::relu, expected), request), expected);
  Request wrong = request;
  wrong.thresholds.pop_back();
  expect_message(error_of([&] { activation_sparsity_for(model(Activation::Kind::relu), wrong); }),
                 "thresholds of 2 layers; the model has 3");
  wrong = request;
  wrong.mode = Mode::exact;
  EXPECT_NE(error_of([&] { activation_sparsity_for(model(Activation::Kind::relu), wrong); }), "");
}

TEST(ActivationSparsity, RefusesWhatCannotBe) {
  const ModelConfig relu = model(Activation::Kind::relu);
  const ModelConfig stored = model(Activation::Kind::relu, kPredict);
  const auto expect_error = [](const ModelConfig& config, const Request& request,
                               std::string_view error) {
    expect_message(error_of([&] { activation_sparsity_for(config, request); }), error);
  };
  for (const Mode mode : {Mode::exact, Mode::predict}) {
    expect_error(model(Activation::Kind::silu), {.mode = mode}, "relu or fatrelu");
    expect_error(model(Activation::Kind::gelu_tanh), {.mode = mode}, "the model has gelu");
  }
  expect_error(relu, {.mode = Mode::predict},
               "sparsellm-convert --activation-sparsity predict --calibration FILE");
  expect_error(stored, {.votes = Votes::weighted}, "weighted votes has no alphas");
  expect_error(relu, {.votes = Votes::sign}, "predict, not off");
  expect_error(relu, {.alphas = {1.0f, 1.0f, 1.0f}}, "predict, not off");
  expect_error(stored, {.alphas = {1.0f, 1.0f}}, "alphas of 2 layers; the model has 3");
  expect_error(stored, {.alphas = {{}, {}, {}}}, "at least one needs an alpha");
  expect_error(stored, {.mode = Mode::exact, .alpha = Request::Alpha{}}, "predict, not exact");
  expect_error(stored, {.mode = Mode::off, .votes = Votes::sign}, "predict, not off");
  for (const float alpha : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    expect_error(stored, {.alpha = Request::Alpha{.value = alpha}}, "above 0");
  }
  for (const int64_t layers : {0, 4, -1}) {
    expect_error(stored, {.alpha = Request::Alpha{.layers = layers}}, "use 1 to 3");
  }
}

TEST(ActivationSparsity, IsDescribed) {
  EXPECT_EQ(describe({.mode = Mode::exact}), "exact");
  EXPECT_EQ(describe({.mode = Mode::predict, .alphas = {1.5f, 1.5f}}),
            "predict by weighted votes, alpha 1.5");
  EXPECT_EQ(describe({.mode = Mode::predict, .alphas = {{}, 1.5f, 1.25f}}),
            "predict by weighted votes, alpha 1.25 to 1.5, in 1 of 3 layers nothing is predicted");
  EXPECT_EQ(describe(kPredict),
            "predict by sign votes, alpha 0.001 to 1.01; when calibrated, 43.0 % of the neurons "
            "were skipped and the perplexity changed by +0.40 %");
}

}  // namespace
}  // namespace sparsellm
