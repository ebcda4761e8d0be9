#include "tools/cli/activation_sparsity_args.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <system_error>

#include "kernels/base/json_reader.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

using Mode = ActivationSparsity::Mode;

constexpr const char* kStored = "stored";

// All of the text.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

constexpr const char* kModeHelp =
    "Skip neurons of ReLU models that are zero for a token after its prompt: off; exact, without a "
    "loss; predict, also those that signs predict to be zero; stored, as the model's config.json "
    "says, else off";

}  // namespace

std::optional<Mode> parse_mode(std::string_view name) {
  for (const Mode mode : {Mode::off, Mode::exact, Mode::predict}) {
    if (name == name_of(mode)) {
      return mode;
    }
  }
  return std::nullopt;
}

ActivationSparsityRequest::Alpha parse_alpha(const std::string& flag, const std::string& text) {
  const std::string_view all = text;
  const size_t colon = all.find(':');
  const auto value = parse_number<float>(all.substr(0, colon));
  if (!value || !std::isfinite(*value) || *value <= 0.0f) {
    throw UsageError(
        fmt::format("{} {}; expected a number above 0, or A:LAYERS", flag, quote(text)));
  }
  if (colon == std::string_view::npos) {
    return {.value = *value};
  }
  const auto layers = parse_number<int64_t>(all.substr(colon + 1));
  if (layers.value_or(0) < 1) {
    throw UsageError(
        fmt::format("{} {}; expected at least one layer after the colon", flag, quote(text)));
  }
  return {.value = *value, .layers = layers};
}

void replace_mode_arg(CLI::App& app, ActivationSparsityRequest& request,
                      std::optional<double>& random) {
  constexpr std::string_view kRandom = "random:";
  app.remove_option(app.get_option("--activation-sparsity"));
  app.add_option_function<std::string>(
         "--activation-sparsity",
         [&request, &random, kRandom](const std::string& name) {
           const std::string_view text = name;
           random = text.starts_with(kRandom) ? parse_number<double>(text.substr(kRandom.size()))
                                              : std::nullopt;
           request.mode = random ? Mode::exact : parse_mode(text);
           if ((!request.mode && text != kStored) || (random && !(*random >= 0 && *random <= 1))) {
             throw UsageError(fmt::format(
                 "--activation-sparsity {}; expected stored, off, exact, predict, or random:P with "
                 "P in [0, 1]",
                 quote(text)));
           }
         },
         fmt::format("{}; random:P, a control: a share P at random", kModeHelp))
      ->type_name("MODE")
      ->default_str(kStored);
}

void add_votes_arg(CLI::App& app, std::optional<Votes>& votes, const std::string& default_votes) {
  app.add_option_function<std::string>(
         "--votes",
         [&votes](const std::string& name) {
           votes = name == name_of(Votes::sign) ? Votes::sign : Votes::weighted;
         },
         fmt::format("What a vote of the prediction counts: sign, one each; weighted, the size of "
                     "the input [{}]",
                     default_votes))
      ->check(CLI::IsMember({"sign", "weighted"}))
      ->type_name("VOTES");
}

void add_activation_sparsity_args(CLI::App& app, ActivationSparsityRequest& request) {
  app.add_option_function<std::string>(
         "--activation-sparsity",
         [&request](const std::string& name) { request.mode = parse_mode(name); }, kModeHelp)
      ->check(CLI::IsMember({kStored, "off", "exact", "predict"}))
      ->type_name("MODE")
      ->default_str(kStored);
  add_votes_arg(app, request.votes, "as stored, else weighted");
  app.add_option_function<std::string>(
         "--alpha",
         [&request](const std::string& text) { request.alpha = parse_alpha("--alpha", text); },
         "Of the prediction, instead of what is stored: the larger, the fewer neurons are skipped; "
         "with :LAYERS of the first layers, the others have 1")
      ->type_name("A[:LAYERS]");
}

}  // namespace sparsellm
