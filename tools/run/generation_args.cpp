#include "tools/run/generation_args.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>

#include "kernels/base/json_reader.h"
#include "tokenizer/utf8.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

void add_sampling_args(CLI::App& app, GenerationArgs& args) {
  app.add_option("--temp,--temperature", args.temperature,
                 "Temperature; 0 is greedy [generation_config.json, else 0.8]");
  app.add_option("--top-k", args.top_k,
                 "Keep the K likeliest tokens; 0: all [generation_config.json, else 40]");
  app.add_option("--top-p", args.top_p,
                 "Keep the likeliest tokens of probability P together [generation_config.json, "
                 "else 0.95]");
  app.add_option("--min-p", args.min_p,
                 "Keep tokens with P times the probability of the likeliest "
                 "[generation_config.json, else 0.05]");
  app.add_option("--repeat-penalty,--repetition-penalty", args.repetition_penalty,
                 "Divides positive logits of tokens in prompt and continuation, multiplies "
                 "negative ones; 1: off [generation_config.json, else 1]");
  app.add_option("--frequency-penalty", args.frequency_penalty,
                 "Taken off the logit of a token for each time that the continuation has it")
      ->capture_default_str();
  app.add_option("--presence-penalty", args.presence_penalty,
                 "Taken off the logit of a token that the continuation has")
      ->capture_default_str();
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&args](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             args.logit_bias.push_back(parse_logit_bias(text));
           }
         },
         "Added to the logit of a token, e.g. 15043+1 or 15043-0.5; may be repeated")
      ->type_name("ID(+|-)BIAS")
      ->allow_extra_args(false);
  app.add_option("-s,--seed", args.seed, "Seed of the sampling; -1: a fresh one")
      ->check(CLI::Range(int64_t{-1}, kMaxSeed))
      ->capture_default_str();
}

void add_stop_args(CLI::App& app, GenerationArgs& args) {
  app.add_option("-n,--predict,--n-predict,--max-tokens", args.max_tokens,
                 "Tokens to generate; -1: until the end of the text or of the context")
      ->check(CLI::Range(int64_t{-1}, kMaxGeneratedTokens))
      ->capture_default_str();
  app.add_flag("--ignore-eos", args.ignore_eos, "Never choose the end of the text");
  app.add_option("--stop", args.stop,
                 "Text that ends the continuation and is not printed; may be repeated; one that "
                 "begins with a dash: --stop=-")
      ->allow_extra_args(false);
  app.add_option("--stop-token", args.stop_token_ids,
                 "Token id that ends the continuation; may be repeated")
      ->check(CLI::Range(int32_t{0}, std::numeric_limits<int32_t>::max()))
      ->allow_extra_args(false);
}

void check_stop(const std::string& text) {
  require(!text.empty(), "--stop has an empty text");
  try {
    check_text(text);
  } catch (const Error& error) {
    fail("--stop {}: {}", quote(text), error.what());
  }
}

}  // namespace

void add_generation_args(CLI::App& app, GenerationArgs& args) {
  add_stop_args(app, args);
  add_sampling_args(app, args);
  app.add_option("--samples", args.samples,
                 "Continuations of the prompt; more than one are printed one after the other, "
                 "each after a line \"--- sample 1 of 4 ---\"")
      ->check(CLI::Range(int32_t{1}, kMaxSamples))
      ->capture_default_str();
  app.add_option("--logprobs", args.log_probs,
                 "Log-probability of each token and of the N likeliest at its place; needs --json "
                 "or --prompts")
      ->check(CLI::Range(int32_t{0}, kMaxTopLogProbs))
      ->type_name("N");
  app.add_flag("--echo", args.echo,
               "The prompt in front of the continuation; with --logprobs also its "
               "log-probabilities");
}

Prompt make_prompt(const GenerationArgs& args, const GenerationDefaults& defaults) {
  const bool greedy_by_default = defaults.do_sample.has_value() && !*defaults.do_sample;
  const float temperature = greedy_by_default ? 0.0f : defaults.temperature.value_or(0.8f);
  Prompt prompt;
  Request& request = prompt.request;
  request.sampling = {
      .temperature = args.temperature.value_or(temperature),
      .top_k = args.top_k.value_or(defaults.top_k.value_or(40)),
      .top_p = args.top_p.value_or(defaults.top_p.value_or(0.95f)),
      .min_p = args.min_p.value_or(defaults.min_p.value_or(0.05f)),
      .repetition_penalty =
          args.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1.0f)),
      .frequency_penalty = args.frequency_penalty,
      .presence_penalty = args.presence_penalty,
      .logit_bias = args.logit_bias,
  };
  try {
    validate(request.sampling);
    for (const std::string& text : args.stop) {
      check_stop(text);
    }
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  request.max_tokens = args.max_tokens;
  request.ignore_eos = args.ignore_eos;
  request.stop = args.stop;
  request.stop_token_ids = args.stop_token_ids;
  request.samples = args.samples;
  request.log_probs = args.log_probs;
  if (args.seed >= 0) {
    request.seed = static_cast<uint64_t>(args.seed);
  }
  prompt.echo = args.echo;
  return prompt;
}

LogitBias parse_logit_bias(const std::string& text) {
  LogitBias bias;
  const char* const end = text.data() + text.size();
  const auto [sign, id_error] = std::from_chars(text.data(), end, bias.token);
  bool good = id_error == std::errc() && bias.token >= 0 && sign != end;
  if (good) {
    // from_chars takes a minus, but no plus.
    const char* const number = *sign == '+' ? sign + 1 : sign;
    const auto [rest, error] = std::from_chars(number, end, bias.bias);
    good =
        (*sign == '-' || (*sign == '+' && *number != '-')) && error == std::errc() && rest == end;
  }
  if (!good) {
    throw UsageError(
        fmt::format("--logit-bias {}; expected a token id, + or -, and a number, such as 15043-0.5",
                    quote(text)));
  }
  return bias;
}

}  // namespace sparsellm
