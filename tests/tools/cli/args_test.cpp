#include "tools/cli/args.h"

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "tests/testing/paths.h"
#include "tests/testing/throws_error.h"
#include "tools/cli/activation_sparsity_args.h"
#include "tools/run/generation_args.h"

namespace sparsellm {
namespace {

using testing::throws_error;

// The arguments are the command line without the program's name.
GenerationArgs parse(std::vector<std::string> words) {
  CLI::App app("test");
  GenerationArgs args;
  add_generation_args(app, args);
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  app.parse(words);
  return args;
}

TEST(Args, Sizes) {
  const std::vector<std::pair<std::string, int64_t>> good{
      {"1", 1},
      {"65536", 65536},
      {"3K", 3 << 10},
      {"512M", 1 << 29},
      {"8G", int64_t{8} << 30},
      {"1T", int64_t{1} << 40},
      {"8g", int64_t{8} << 30},
      {"8GiB", int64_t{8} << 30},
      {"8gib", int64_t{8} << 30},
      {"1k", 1 << 10},
      {"512MB", 512'000'000},
      {"512mb", 512'000'000},
      {"1KB", 1000},
      {"5TB", 5'000'000'000'000},
      {"7B", 7},
      {"1.5GiB", int64_t{3} << 29},
      {"1.5G", int64_t{3} << 29},
      {"0.5K", 512},
      {"1.5KB", 1500},
      {"1.0001K", 1024},
      {"8388607.9T", (int64_t{8388607} << 40) + 989560464998},
      {"9223372036854775807", std::numeric_limits<int64_t>::max()}};
  for (const auto& [text, bytes] : good) {
    EXPECT_EQ(parse_size("--kv-memory", text), bytes);
  }
  for (const char* text :
       {"",         "0",          "-1",        "K",      "1.5",     "1.5B", "1.",
        "1.G",      ".5G",        "1..5G",     "1.5.5G", "0.0001K", " 1",   "1 ",
        "1 G",      "0x10",       "1e9",       "inf",    "nanG",    "+1",   "9223372036854775808",
        "8388608T", "8388608TiB", "9223373TB", "1KK",    "1BK",     "1Ki",  "1GiBB",
        "1P",       "MB",         "1,5G"}) {
    EXPECT_TRUE(throws_error([&] { parse_size("--kv-memory", text); }, "--kv-memory")) << text;
  }
}

ModelArgs parse_model_args(std::vector<std::string> words) {
  CLI::App app("test");
  ModelArgs args;
  add_model_args(app, args);
  std::reverse(words.begin(), words.end());
  app.parse(words);
  return args;
}

TEST(Args, OfAModel) {
  const ModelArgs plain = parse_model_args({"-m", "folder"});
  EXPECT_EQ(plain.model, "folder");
  EXPECT_EQ(plain.device, "auto");
  EXPECT_EQ(plain.weight_format, "stored");
  EXPECT_EQ(plain.threads, 0);  // all cores
  EXPECT_TRUE(plain.tunes);
  const ModelArgs all =
      parse_model_args({"--model", "m", "--device", "cpu", "--dtype", "bf16", "--no-tune",
                        "--weight-format", "tca_bme", "--verify", "-t", "1024", "-v"});
  EXPECT_EQ(all.dtype, "bf16");
  EXPECT_FALSE(all.tunes);
  EXPECT_TRUE(all.verify && all.verbose);
  EXPECT_EQ(all.threads, 1024);
  EXPECT_EQ(parse_model_args({"-m", "m", "--tune-cache", "file"}).tune_cache, "file");
  const std::vector<std::vector<std::string>> wrong{
      {},
      {"-m", ""},
      {"-m", "m", "--dtype", "f32"},
      {"-m", "m", "--weight-format", "csr"},
      {"-m", "m", "--weight-format", "tca_bme", "--records", "small"},
      {"-m", "m", "-t", "1025"},
      {"-m", "m", "-t", "-1"},
      {"-m", "m", "--tune-cache", ""},
      {"-m", "m", "--tune-cache", "file", "--no-tune"},
      {"-m", "m", "--quiet", "--verbose"}};
  for (const std::vector<std::string>& words : wrong) {
    EXPECT_THROW(parse_model_args(words), CLI::ParseError) << words.size();
  }
}

TEST(Args, RecordsOfAModel) {
  for (const char* format : {"tca_bme", "auto"}) {
    const ModelArgs args = parse_model_args(
        {"-m", "m", "--device", "cpu", "--weight-format", format, "--records", "size"});
    EXPECT_NO_THROW(check_model_args(args));
    EXPECT_EQ(engine_options(args, {}).records, "size");
  }
  EXPECT_NO_THROW(check_model_args(parse_model_args({"-m", "m"})));
  for (const char* format : {"stored", "dense", "tiled_csl", "general_sparse"}) {
    const ModelArgs args =
        parse_model_args({"-m", "m", "--weight-format", format, "--records", "speed"});
    EXPECT_TRUE(throws_error([&] { check_model_args(args); },
                             fmt::format("--records is not for --weight-format {}", format)));
  }
}

TEST(Args, ValuesOfAModel) {
  const auto check = [](const char* format, const char* values) {
    check_model_args(parse_model_args({"-m", "m", "--weight-format", format, "--values", values}));
  };
  for (const char* format : {"tca_bme", "auto", "dense_i8"}) {
    EXPECT_NO_THROW(check(format, "i8"));
  }
  EXPECT_NO_THROW(check("dense_i4", "i4:32"));
  EXPECT_NO_THROW(check_model_args(parse_model_args({"-m", "m", "--weight-format", "dense_i4"})));
  for (const auto& [format, values] :
       {std::pair{"dense_i8", "i4"}, {"dense_i8", "f8"}, {"dense_i4", "i8"}}) {
    EXPECT_TRUE(
        throws_error([&] { check(format, values); },
                     fmt::format("--values {} is not for --weight-format {}", values, format)));
  }
  EXPECT_TRUE(throws_error([&] { check("dense", "i8"); }, "--values is not for"));
  EXPECT_TRUE(throws_error(
      [] {
        check_model_args(
            parse_model_args({"-m", "m", "--weight-format", "dense_i8", "--records", "size"}));
      },
      "--records is not for --weight-format dense_i8"));
}

// Sets a variable of the environment, or takes it away, until the end of a scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = ::getenv(name)) {
      before_ = before;
    }
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) {
    if (value != nullptr) {
      ::setenv(name_, value, 1);
    } else {
      ::unsetenv(name_);
    }
  }

  const char* name_;
  std::optional<std::string> before_;
};

TEST(Args, BecomeOptionsOfTheEngine) {
  ModelArgs args = parse_model_args({"-m", "m", "--device", "cpu", "--dtype", "f16"});
  EXPECT_EQ(engine_options(args, {}).dtype, std::nullopt);  // which is of GPUs
  EXPECT_EQ(engine_options(args, {}).weight_format, "");
  EXPECT_EQ(engine_options(args, {}).tuning, Tuning::measured);
  args.tunes = false;
  args.weight_format = "dense";
  EXPECT_EQ(engine_options(args, {}).weight_format, "dense");
  EXPECT_EQ(engine_options(args, {}).tuning, Tuning::off);
  {
    const Variable cache("XDG_CACHE_HOME", "/cache");
    EXPECT_EQ(engine_options(args, {}).tune_cache, "/cache/sparsellm/kernels.json");
    args.tune_cache = "file";
    EXPECT_EQ(engine_options(args, {}).tune_cache, "file");
    args.tune_cache.clear();
  }
  const Variable cache("XDG_CACHE_HOME", "relative");  // which the specification has ignored
  {
    const Variable home("HOME", "/home/me");
    EXPECT_EQ(engine_options(args, {}).tune_cache, "/home/me/.cache/sparsellm/kernels.json");
  }
  const Variable home("HOME", nullptr);
  EXPECT_EQ(engine_options(args, {}).tune_cache, "");
}

TEST(Args, LoadAnEngine) {
  ModelArgs args = parse_model_args(
      {"-m", testing::data("tiny/llama3").string(), "--device", "cpu", "-t", "1", "--verbose"});
  const auto log = make_log("tool", args);
  ::testing::internal::CaptureStderr();
  EngineOptions options;
  options.context_size = 32;
  const Engine engine = load_engine(args, options, *log);
  warn_about_device("cpu", *log);  // that was requested
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(engine.context_size(), 32);
  EXPECT_NE(text.find("LlamaForCausalLM, 2 layers"), std::string::npos) << text;
  EXPECT_NE(text.find("; context of 32 tokens"), std::string::npos) << text;
  EXPECT_EQ(text.find("warning"), std::string::npos) << text;
  args.model = "none";
  EXPECT_TRUE(throws_error([&] { load_engine(args, {}, *log); }, "none does not exist"));
}

TEST(Args, LogLevels) {
  EXPECT_EQ(make_log("tool", {})->level(), spdlog::level::warn);
  ModelArgs args;
  args.quiet = true;
  EXPECT_EQ(make_log("tool", args)->level(), spdlog::level::err);
  args.quiet = false;
  args.verbose = true;
  EXPECT_EQ(make_log("tool", args)->level(), spdlog::level::debug);
}

TEST(Args, LogLineOnStderr) {
  ::testing::internal::CaptureStderr();
  const auto log = make_log("sparsellm-run", {});
  log->warn("the KV cache is {}", "full");
  log->info("not shown");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "sparsellm-run: warning: the KV cache is full\n");
}

TEST(GenerationArgs, Defaults) {
  const Prompt prompt = make_prompt(parse({}), {});
  EXPECT_FALSE(prompt.text);
  EXPECT_FALSE(prompt.echo);
  EXPECT_FALSE(prompt.request.seed);
  EXPECT_EQ(prompt.request.max_tokens, -1);
  EXPECT_EQ(prompt.request.samples, 1);
  EXPECT_EQ(prompt.request.sampling.temperature, 0.8f);
  EXPECT_EQ(prompt.request.sampling.top_k, 40);
  EXPECT_EQ(prompt.request.sampling.top_p, 0.95f);
  EXPECT_EQ(prompt.request.sampling.min_p, 0.05f);
  EXPECT_FALSE(prompt.request.sampling.has_penalties());
  GenerationDefaults defaults;
  defaults.do_sample = false;
  defaults.top_k = 7;
  EXPECT_EQ(make_prompt(parse({}), defaults).request.sampling.temperature, 0.0f);
  EXPECT_EQ(make_prompt(parse({}), defaults).request.sampling.top_k, 7);
  EXPECT_EQ(make_prompt(parse({"--top-k", "9"}), defaults).request.sampling.top_k, 9);
  defaults.do_sample = true;
  EXPECT_EQ(make_prompt(parse({}), defaults).request.sampling.temperature, 0.8f);
}

TEST(GenerationArgs, AllFlags) {
  const Prompt prompt = make_prompt(parse({"-n",
                                           "5",
                                           "--temp",
                                           "0.5",
                                           "--top-k",
                                           "3",
                                           "--top-p",
                                           "0.25",
                                           "--min-p",
                                           "0.125",
                                           "--repeat-penalty",
                                           "1.5",
                                           "--frequency-penalty",
                                           "-0.5",
                                           "--presence-penalty",
                                           "2",
                                           "--logit-bias",
                                           "12+1.5",
                                           "--logit-bias",
                                           "7-3",
                                           "-s",
                                           "9",
                                           "--ignore-eos",
                                           "--stop",
                                           "[a,b]",
                                           "--stop=--",
                                           "--stop",
                                           "\n",
                                           "--stop-token",
                                           "4",
                                           "--stop-token",
                                           "5",
                                           "--samples",
                                           "6",
                                           "--logprobs",
                                           "2",
                                           "--echo"}),
                                    {});
  const Request& request = prompt.request;
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.sampling.top_p, 0.25f);
  EXPECT_EQ(request.sampling.min_p, 0.125f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(request.sampling.presence_penalty, 2.0f);
  ASSERT_EQ(request.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(request.sampling.logit_bias[0].token, 12);
  EXPECT_EQ(request.sampling.logit_bias[0].bias, 1.5f);
  EXPECT_EQ(request.sampling.logit_bias[1].token, 7);
  EXPECT_EQ(request.sampling.logit_bias[1].bias, -3.0f);
  EXPECT_EQ(request.seed, 9u);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"[a,b]", "--", "\n"}));
  EXPECT_EQ(request.stop_token_ids, (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(request.samples, 6);
  EXPECT_EQ(request.log_probs, 2);
  EXPECT_TRUE(prompt.echo);
}

TEST(ActivationSparsityArgs, AreARequest) {
  const auto parse = [](std::vector<std::string> words) {
    CLI::App app("test");
    ModelArgs args;
    add_model_args(app, args);
    words.insert(words.end(), {"-m", "model", "--device", "cpu"});
    std::reverse(words.begin(), words.end());
    app.parse(words);
    return engine_options(args, {}).activation_sparsity;
  };
  using Mode = ActivationSparsity::Mode;
  const ActivationSparsityRequest nothing = parse({});
  EXPECT_FALSE(nothing.mode || nothing.votes || nothing.alpha);
  EXPECT_FALSE(parse({"--activation-sparsity", "stored"}).mode);
  EXPECT_EQ(parse({"--activation-sparsity", "off"}).mode, Mode::off);
  EXPECT_EQ(parse({"--activation-sparsity", "exact"}).mode, Mode::exact);
  const ActivationSparsityRequest all =
      parse({"--activation-sparsity", "predict", "--votes", "sign", "--alpha", "1.03:20"});
  EXPECT_EQ(all.mode, Mode::predict);
  EXPECT_EQ(all.votes, Votes::sign);
  EXPECT_EQ(all.alpha->value, 1.03f);
  EXPECT_EQ(all.alpha->layers, 20);
  EXPECT_EQ(parse({"--votes", "weighted"}).votes, Votes::weighted);
  EXPECT_FALSE(parse({"--alpha", "0.5"}).alpha->layers);
  EXPECT_EQ(parse_alpha("--alpha", "1e-3").value, 1e-3f);
  for (const char* text : {"", "0", "-1", "nan", "inf", "1e39", "x", "1.0x", " 1", "1:", "1:0",
                           "1:-2", "1:2.5", "1:x", ":3", "1:2:3", "1:9223372036854775808"}) {
    EXPECT_TRUE(throws_error([&] { parse_alpha("--alpha", text); }, "--alpha")) << text;
  }
  EXPECT_THROW(parse({"--activation-sparsity", "some"}), CLI::ParseError);
  EXPECT_THROW(parse({"--votes", "all"}), CLI::ParseError);
}

TEST(GenerationArgs, StopTexts) {
  GenerationArgs args;
  args.stop = {"good", "bad\xff"};
  EXPECT_TRUE(throws_error([&] { make_prompt(args, {}); }, "--stop \"bad"));
  args.stop = {""};
  EXPECT_TRUE(throws_error([&] { make_prompt(args, {}); }, "--stop has an empty text"));
}

TEST(GenerationArgs, LogitBias) {
  EXPECT_EQ(parse_logit_bias("0+0").token, 0);
  EXPECT_EQ(parse_logit_bias("2147483647-1e3").bias, -1000.0f);
  for (const char* text : {"", "5", "5+", "5-", "+1", "-1+1", "5 +1", "5+ 1", "5*1", "5+-1", "5++1",
                           "5--1", "5+1x", "2147483648+1", "5+1e99", "x+1"}) {
    EXPECT_TRUE(throws_error([&] { parse_logit_bias(text); }, "--logit-bias")) << text;
  }
}

}  // namespace
}  // namespace sparsellm
