#include "models/activation_sparsity.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/config.h"

namespace sparsellm {
namespace {

using Mode = ActivationSparsity::Mode;

constexpr int64_t kSparsityVersion = 1;

// Why an activation has no neurons to skip; empty if it has some.
std::string why_without_zeros(const Activation& activation) {
  using Kind = Activation::Kind;
  return activation.kind == Kind::relu || activation.kind == Kind::fatrelu
             ? std::string()
             : fmt::format("activation sparsity needs relu or fatrelu; the model has {}",
                           name_of(activation.kind));
}

template <class T>
T read_name(const JsonValue& value, std::initializer_list<T> all) {
  std::vector<std::string_view> names;
  for (const T each : all) {
    if (value.string() == name_of(each)) {
      return each;
    }
    names.push_back(name_of(each));
  }
  value.refuse(fmt::format("supported are {}", fmt::join(names, ", ")));
}

using Alphas = std::vector<std::optional<float>>;

bool predicts_somewhere(const Alphas& alphas) {
  return std::ranges::any_of(alphas, [](const auto& alpha) { return alpha.has_value(); });
}

Alphas read_alphas(const JsonValue& value, int64_t layers) {
  require(value.size() == layers, "{} has {} numbers; the model has {} layers", value.name(),
          value.size(), layers);
  Alphas alphas;
  for (int64_t i = 0; i < layers; ++i) {
    const JsonValue alpha = value.element(i);
    alphas.push_back(alpha.is_null()
                         ? std::nullopt
                         : std::optional(alpha.number(0.0f, std::numeric_limits<float>::max())));
    if (alphas.back() == 0.0f) {
      alpha.refuse("expected a number above 0");
    }
  }
  require(predicts_somewhere(alphas), "{} are null for all layers; exact predicts nothing",
          value.name());
  return alphas;
}

std::string alphas_json(const Alphas& alphas) {
  std::vector<std::string> texts;
  for (const std::optional<float>& alpha : alphas) {
    texts.push_back(alpha ? fmt::format("{}", *alpha) : "null");
  }
  return fmt::format("[{}]", fmt::join(texts, ","));
}

// "alpha 0.99 to 1.03, in 2 of 8 layers nothing is predicted"
std::string describe_alphas(const Alphas& alphas) {
  std::vector<float> values;
  for (const std::optional<float>& alpha : alphas) {
    if (alpha) {
      values.push_back(*alpha);
    }
  }
  const auto [least, most] = std::ranges::minmax(values);
  std::string text = fmt::format("alpha {}", least);
  if (most > least) {
    text += fmt::format(" to {}", most);
  }
  if (values.size() < alphas.size()) {
    text += fmt::format(", in {} of {} layers nothing is predicted", alphas.size() - values.size(),
                        alphas.size());
  }
  return text;
}

std::optional<float> read_figure(const JsonValue& value, float min, float max) {
  return value.present() ? std::optional(value.number(min, max)) : std::nullopt;
}

Alphas alphas_for(const ActivationSparsityRequest::Alpha& alpha, int64_t layers) {
  require(std::isfinite(alpha.value) && alpha.value > 0.0f,
          "alpha {} of activation sparsity; use a number above 0", alpha.value);
  const int64_t count = alpha.layers.value_or(layers);
  require(count >= 1 && count <= layers, "alpha for {} layers; use 1 to {}, those of the model",
          count, layers);
  Alphas alphas(static_cast<size_t>(layers), 1.0f);
  std::fill_n(alphas.begin(), count, alpha.value);
  return alphas;
}

}  // namespace

std::string_view name_of(Mode mode) {
  switch (mode) {
    case Mode::off:
      return "off";
    case Mode::exact:
      return "exact";
    case Mode::predict:
      return "predict";
  }
  return "?";
}

std::string_view name_of(Votes votes) { return votes == Votes::sign ? "sign" : "weighted"; }

ActivationSparsity read_activation_sparsity(const JsonValue& value, int64_t layers,
                                            const Activation& activation) {
  ActivationSparsity sparsity;
  if (!value.present()) {
    return sparsity;
  }
  const JsonValue version = value["version"];
  if (version.integer(1, std::numeric_limits<int64_t>::max()) > kSparsityVersion) {
    version.refuse(
        fmt::format("this build reads versions up to {}; use a newer one", kSparsityVersion));
  }
  value.allow_only(
      {"version", "activation_sparsity", "votes", "alphas", "skipped", "perplexity_loss"});
  const JsonValue mode = value["activation_sparsity"];
  sparsity.mode = read_name(mode, {Mode::off, Mode::exact, Mode::predict});
  if (const std::string why = why_without_zeros(activation);
      sparsity.mode != Mode::off && !why.empty()) {
    mode.refuse(why);
  }
  if (sparsity.mode != Mode::predict) {
    for (const char* of_predict : {"votes", "alphas", "skipped", "perplexity_loss"}) {
      if (const JsonValue member = value[of_predict]; member.present()) {
        fail("{} is for predict, but {} is {}", member.name(), mode.name(), name_of(sparsity.mode));
      }
    }
    return sparsity;
  }
  sparsity.votes = read_name(value["votes"], {Votes::sign, Votes::weighted});
  sparsity.alphas = read_alphas(value["alphas"], layers);
  sparsity.skipped = read_figure(value["skipped"], 0.0f, 1.0f);
  sparsity.perplexity_loss =
      read_figure(value["perplexity_loss"], -1.0f, std::numeric_limits<float>::max());
  return sparsity;
}

std::string to_json(const ActivationSparsity& sparsity) {
  std::string text = fmt::format(R"({{"version":{},"activation_sparsity":"{}")", kSparsityVersion,
                                 name_of(sparsity.mode));
  if (sparsity.mode == Mode::predict) {
    text += fmt::format(R"(,"votes":"{}","alphas":{})", name_of(sparsity.votes),
                        alphas_json(sparsity.alphas));
    if (sparsity.skipped) {
      text += fmt::format(R"(,"skipped":{})", *sparsity.skipped);
    }
    if (sparsity.perplexity_loss) {
      text += fmt::format(R"(,"perplexity_loss":{})", *sparsity.perplexity_loss);
    }
  }
  return text + "}";
}

ActivationSparsity activation_sparsity_for(const ModelConfig& config,
                                           const ActivationSparsityRequest& request) {
  ActivationSparsity chosen = config.activation_sparsity;
  if (request.mode && *request.mode != chosen.mode) {
    chosen = {.mode = *request.mode};
  }
  require(
      chosen.mode == Mode::predict || (!request.votes && !request.alpha && request.alphas.empty()),
      "votes and alpha are for activation sparsity predict, not {}", name_of(chosen.mode));
  require(chosen.mode != Mode::off || request.thresholds.empty(),
          "thresholds are for activation sparsity exact and predict, not off");
  if (chosen.mode == Mode::off) {
    return chosen;
  }
  const std::string why = why_without_zeros(config.activation);
  require(why.empty(), "{}", why);
  if (request.votes && *request.votes != chosen.votes) {
    chosen = {.mode = Mode::predict, .votes = *request.votes};
  }
  if (request.alpha) {
    chosen = {.mode = Mode::predict,
              .votes = chosen.votes,
              .alphas = alphas_for(*request.alpha, config.num_layers)};
  }
  if (!request.alphas.empty()) {
    require(std::ssize(request.alphas) == config.num_layers && predicts_somewhere(request.alphas),
            "alphas of {} layers; the model has {}, of which at least one needs an alpha",
            request.alphas.size(), config.num_layers);
    chosen = {.mode = Mode::predict, .votes = chosen.votes, .alphas = request.alphas};
  }
  if (!request.thresholds.empty()) {
    require(std::ssize(request.thresholds) == config.num_layers,
            "thresholds of {} layers; the model has {}", request.thresholds.size(),
            config.num_layers);
    chosen.thresholds = request.thresholds;
  }
  require(chosen.mode != Mode::predict || !chosen.alphas.empty(),
          "activation sparsity predict by {} votes has no alphas: sparsellm-convert "
          "--activation-sparsity predict --calibration FILE finds them, --alpha gives them",
          name_of(chosen.votes));
  return chosen;
}

std::string describe(const ActivationSparsity& sparsity) {
  std::string text(name_of(sparsity.mode));
  if (sparsity.mode != Mode::predict) {
    return text;
  }
  text +=
      fmt::format(" by {} votes, {}", name_of(sparsity.votes), describe_alphas(sparsity.alphas));
  std::vector<std::string> figures;
  if (sparsity.skipped) {
    figures.push_back(
        fmt::format("{:.1f} % of the neurons were skipped", 100.0f * *sparsity.skipped));
  }
  if (sparsity.perplexity_loss) {
    figures.push_back(
        fmt::format("the perplexity changed by {:+.2f} %", 100.0f * *sparsity.perplexity_loss));
  }
  if (!figures.empty()) {
    text += fmt::format("; when calibrated, {}", fmt::join(figures, " and "));
  }
  return text;
}

}  // namespace sparsellm
