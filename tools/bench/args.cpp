#include "tools/bench/args.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <string_view>

#include "kernels/base/json_reader.h"
#include "tools/cli/args.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxSize = 1 << 24;

// The whole of `text` as a number from 1 to kMaxSize.
std::optional<int64_t> parse_count(std::string_view text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const bool good = error == std::errc() && rest == end && number >= 1 && number <= kMaxSize;
  return good ? std::optional(number) : std::nullopt;
}

// "A<separator>B"
std::optional<std::pair<int64_t, int64_t>> parse_pair(std::string_view text, char separator) {
  const size_t at = text.find(separator);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  const std::optional<int64_t> first = parse_count(text.substr(0, at));
  const std::optional<int64_t> second = parse_count(text.substr(at + 1));
  return first && second ? std::optional(std::pair(*first, *second)) : std::nullopt;
}

bool begins_with_digit_or_sign(std::string_view text) {
  return text.find_first_of("0123456789+-.") == 0;
}

template <class T>
void set_once(std::optional<T>& setting, T value, const std::string& flag, const char* what) {
  if (setting) {
    throw UsageError(fmt::format("{} gives {} a second time", flag, what));
  }
  setting = value;
}

}  // namespace

CLI::Option* add_kernel_cache(CLI::App& app, std::filesystem::path& directory) {
  return app
      .add_option("--kernel-cache", directory,
                  "Keeps the code of generated kernels, which later runs need not compile")
      ->type_name("DIR")
      ->check(not_empty());
}

void add_output_args(CLI::App& app, OutputArgs& args, OutputTokens tokens) {
  const bool takes_tokens = tokens == OutputTokens::yes;
  app.add_option_function<std::vector<std::string>>(
         "--output",
         [&args, takes_tokens](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             if (takes_tokens && begins_with_digit_or_sign(text)) {
               set_once(args.tokens, parse_length_range("--output", text), "--output",
                        "the number of tokens");
             } else {
               set_once(args.format, parse_report_format("--output", text), "--output",
                        "the format");
             }
           }
         },
         takes_tokens ? "A number: tokens generated for each prompt [512]. A word: the format of "
                        "the report, as with --format"
                      : "The same as --format")
      ->type_name(takes_tokens ? "TOKENS|FORMAT" : "FORMAT")
      ->allow_extra_args(false);
  app.add_option_function<std::string>(
         "--format",
         [&args](const std::string& text) {
           set_once(args.format, parse_report_format("--format", text), "--format", "the format");
         },
         "Of the report on stdout: table, md, csv, json or jsonl [table]")
      ->type_name("FORMAT");
}

LengthRange parse_length_range(const std::string& flag, const std::string& text) {
  if (const std::optional<int64_t> length = parse_count(text)) {
    return {.min = *length, .max = *length};
  }
  const auto range = parse_pair(text, ':');
  if (!range || range->first > range->second) {
    throw UsageError(
        fmt::format("{} {}; expected a number of tokens, or the least and the most, such as 32:512",
                    flag, quote(text)));
  }
  return {.min = range->first, .max = range->second};
}

std::pair<int64_t, int64_t> parse_shape(const std::string& flag, const std::string& text) {
  const auto shape = parse_pair(text, 'x');
  if (!shape) {
    throw UsageError(fmt::format("{} {}; expected outputs x inputs of a layer, such as 28672x7168",
                                 flag, quote(text)));
  }
  return *shape;
}

std::pair<int64_t, int64_t> parse_matrix_size(const std::string& flag, const std::string& text) {
  const auto size = parse_pair(text, 'x');
  if (!size) {
    throw UsageError(fmt::format("{} {}; expected rows x columns of a matrix, such as 100000x50000",
                                 flag, quote(text)));
  }
  return *size;
}

MlpShape parse_mlp_shape(const std::string& flag, const std::string& text) {
  constexpr std::string_view kPlain = ":plain";
  std::string_view sizes = text;
  const bool is_plain = sizes.ends_with(kPlain);
  if (is_plain) {
    sizes.remove_suffix(kPlain.size());
  }
  const auto shape = parse_pair(sizes, 'x');
  if (!shape) {
    throw UsageError(
        fmt::format("{} {}; expected neurons x inputs of an MLP, such as 11008x4096, or "
                    "28672x7168:plain without a gate",
                    flag, quote(text)));
  }
  return {.neurons = shape->first, .hidden = shape->second, .gated = !is_plain};
}

ZeroPattern parse_pattern(const std::string& flag, const std::string& text) {
  const std::optional<ZeroPattern> pattern = parse_zero_pattern(text);
  if (!pattern) {
    throw UsageError(fmt::format("{} {}; expected {}", flag, quote(text), kZeroPatternSyntax));
  }
  return *pattern;
}

void check_pattern(const std::string& flag, const ZeroPattern& pattern, double sparsity) {
  const std::string reason = why_not(pattern, sparsity);
  if (!reason.empty()) {
    throw UsageError(fmt::format("{} {}", flag, reason));
  }
}

double parse_poisson(const std::string& flag, const std::string& text) {
  constexpr std::string_view kProcess = "poisson:";
  double rate = 0.0;
  bool good = text.starts_with(kProcess);
  if (good) {
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + kProcess.size(), end, rate);
    good = error == std::errc() && rest == end && std::isfinite(rate) && rate >= 1e-3;
  }
  if (!good) {
    throw UsageError(
        fmt::format("{} {}; expected requests per second, such as poisson:2.5", flag, quote(text)));
  }
  return rate;
}

}  // namespace sparsellm
