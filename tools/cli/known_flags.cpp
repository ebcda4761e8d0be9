#include "tools/cli/known_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/json_reader.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

struct Foreign {
  std::string_view word;     // without dashes in front, with - for _
  std::string_view instead;  // a flag that the tool may have, or nothing
  std::string_view note = {};
};

constexpr std::string_view kAllLayers = "which takes all layers: cpu, cuda or cuda:N";
constexpr std::string_view kHub =
    "a directory: 'hf download NAME --local-dir DIR' makes one of a model of the Hub";
constexpr std::string_view kTerminal =
    "without -p prompts are read from the terminal, a line at a time";
constexpr std::string_view kOneDevice = "a model runs on one device";
constexpr std::string_view kAttention = "attention has no such choice";
constexpr std::string_view kKvDtype = "the KV cache has the dtype that the model computes in";

// Words of llama.cpp, vLLM, transformers, Wanda and SparseGPT for what has another name here, or
// none. If a word is there more than once, the first flag that the tool has counts.
constexpr std::array kForeign{
    Foreign{"ngl", "--device", kAllLayers},
    Foreign{"gpu-layers", "--device", kAllLayers},
    Foreign{"n-gpu-layers", "--device", kAllLayers},
    Foreign{"gpu", "--device", kAllLayers},
    Foreign{"cuda", "--device", kAllLayers},
    Foreign{"cpu", "--device", kAllLayers},
    Foreign{"dev", "--device"},
    Foreign{"main-gpu", "--device", "as cuda:1"},
    Foreign{"mg", "--device", "as cuda:1"},
    Foreign{"tensor-parallel-size", "", kOneDevice},
    Foreign{"tp", "", kOneDevice},
    Foreign{"tensor-split", "", kOneDevice},
    Foreign{"ts", "", kOneDevice},
    Foreign{"split-mode", "", kOneDevice},
    Foreign{"sm", "", kOneDevice},
    Foreign{"tb", "--threads"},
    Foreign{"threads-batch", "--threads"},
    Foreign{"np", "--parallel"},
    Foreign{"max-num-seqs", "--parallel"},
    Foreign{"ub", "--batch-size"},
    Foreign{"ubatch-size", "--batch-size"},
    Foreign{"max-num-batched-tokens", "--batch-size"},
    Foreign{"kv-cache-memory", "--kv-memory"},
    Foreign{"kv-cache-memory-bytes", "--kv-memory"},
    Foreign{"gpu-memory-fraction", "--gpu-memory-utilization"},
    Foreign{"mem-fraction-static", "--gpu-memory-utilization"},
    Foreign{"ctx", "--ctx-size"},
    Foreign{"n-ctx", "--ctx-size"},
    Foreign{"context", "--ctx-size"},
    Foreign{"context-size", "--ctx-size"},
    Foreign{"context-length", "--ctx-size"},
    Foreign{"max-model-len", "--ctx-size"},
    Foreign{"max-seq-len", "--ctx-size"},
    Foreign{"c", "--context"},
    Foreign{"ctx-size", "--context"},
    Foreign{"ctx", "--context"},
    Foreign{"n-ctx", "--context"},
    Foreign{"max-model-len", "--context"},
    Foreign{"max-seq-len", "--context"},
    Foreign{"fa", "", kAttention},
    Foreign{"flash-attn", "", kAttention},
    Foreign{"attention-backend", "", kAttention},
    Foreign{"ctk", "", kKvDtype},
    Foreign{"ctv", "", kKvDtype},
    Foreign{"cache-type-k", "", kKvDtype},
    Foreign{"cache-type-v", "", kKvDtype},
    Foreign{"kv-cache-dtype", "", kKvDtype},
    Foreign{"hf", "--model", kHub},
    Foreign{"hfr", "--model", kHub},
    Foreign{"hf-repo", "--model", kHub},
    Foreign{"model-url", "--model", kHub},
    Foreign{"mu", "--model", kHub},
    Foreign{"model-path", "--model"},
    Foreign{"model-name-or-path", "--model"},
    Foreign{"pretrained", "--model"},
    Foreign{"checkpoint", "--model"},
    Foreign{"tokenizer", "", "the tokenizer's files are those of the model directory"},
    Foreign{"quantization", "--values",
            "for --weight-format tca_bme; what is stored is seen by the model"},
    Foreign{"cnv", "", kTerminal},
    Foreign{"conversation", "", kTerminal},
    Foreign{"i", "", kTerminal},
    Foreign{"interactive", "", kTerminal},
    Foreign{"interactive-first", "", kTerminal},
    Foreign{"chat", "", kTerminal},
    Foreign{"stream", "", "the text is printed as it is made"},
    Foreign{"e", "", "-p takes its text as it is; escapes are for the shell, as in $'a\\nb'"},
    Foreign{"escape", "", "-p takes its text as it is; escapes are for the shell, as in $'a\\nb'"},
    Foreign{"prompt-file", "--file"},
    Foreign{"input-file", "--file"},
    Foreign{"bf", "--file"},
    Foreign{"q", "--quiet"},
    Foreign{"silent", "--quiet"},
    Foreign{"log-disable", "--quiet"},
    Foreign{"no-display-prompt", "", "the prompt is printed with --echo alone"},
    Foreign{"max-new-tokens", "--n-predict"},
    Foreign{"max-length", "--n-predict"},
    Foreign{"num-predict", "--n-predict"},
    Foreign{"num-tokens", "--n-predict"},
    Foreign{"n-tokens", "--n-predict"},
    Foreign{"tokens", "--n-predict"},
    Foreign{"n", "--samples", "-n is for tokens"},
    Foreign{"num-samples", "--samples"},
    Foreign{"num-return-sequences", "--samples"},
    Foreign{"best-of", "--samples"},
    Foreign{"greedy", "--temp", "0 is greedy"},
    Foreign{"do-sample", "--temp", "0 is greedy"},
    Foreign{"repeat-last-n", "", "--repeat-penalty counts all tokens of prompt and continuation"},
    Foreign{"l", "--logit-bias"},
    Foreign{"r", "--stop"},
    Foreign{"reverse-prompt", "--stop"},
    Foreign{"stop-sequence", "--stop"},
    Foreign{"stop-token-ids", "--stop-token", "once for each id"},
    Foreign{"format", "--weight-format"},
    Foreign{"weight-format", "--format"},
    Foreign{"out", "--output"},
    Foreign{"o", "--output"},
    Foreign{"outfile", "--output"},
    Foreign{"output-dir", "--output"},
    Foreign{"output-file", "--output"},
    Foreign{"save", "--output"},
    Foreign{"save-model", "--output"},
    Foreign{"outtype", "--dtype"},
    Foreign{"overwrite", "--force"},
    Foreign{"input", "--model"},
    Foreign{"sparsity-ratio", "--sparsity"},
    Foreign{"prune-method", "--prune"},
    Foreign{"method", "--prune"},
    Foreign{"sparsity-type", "--prune", "as 2:4"},
    Foreign{"nsamples", "--calibration-tokens"},
    Foreign{"dataset", "--calibration", "a file with text"},
    Foreign{"calibration-data", "--calibration"},
    Foreign{"dataset", "--text", "a file with text"},
    Foreign{"f", "--text"},
    Foreign{"file", "--text"},
    Foreign{"ppl", "", "that is 'sparsellm-eval perplexity'"},
    Foreign{"perplexity", "", "that is 'sparsellm-eval perplexity'"},
};

// As the words of the table, of "--Top_K=5": top-k.
std::string plain_word(std::string_view arg) {
  arg = arg.substr(0, arg.find('='));
  arg.remove_prefix(std::min(arg.find_first_not_of('-'), arg.size()));
  std::string word;
  for (char c : arg) {
    word += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return word;
}

// Of insertions, deletions and substitutions that make one of the other (Levenshtein).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

const CLI::Option* find(const CLI::App& app, const std::string& flag) {
  return app.get_option_no_throw(flag);
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::string names_of(const std::vector<const CLI::App*>& commands) {
  std::string names;
  for (const CLI::App* command : commands) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

// The long flag that is meant by a word with a mistake or two in it; empty if none is near.
std::string nearest_flag(const CLI::App& app, const std::string& word) {
  std::string nearest;
  size_t least = std::min<size_t>(word.size() / 3, 2) + 1;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (const size_t distance = edit_distance(word, name); distance < least) {
        least = distance;
        nearest = "--" + name;
      }
    }
  }
  return nearest;
}

const Foreign* find_foreign(const CLI::App& app, std::string_view word) {
  const auto* const known =
      std::find_if(kForeign.begin(), kForeign.end(), [&](const Foreign& foreign) {
        return foreign.word == word &&
               (foreign.instead.empty() || find(app, std::string(foreign.instead)) != nullptr);
      });
  return known == kForeign.end() ? nullptr : known;
}

// `word`: the plain word of the argument.
[[noreturn]] void refuse(const CLI::App& app, const std::string& arg, const std::string& word) {
  const std::string given = arg.substr(0, arg.find('='));
  const std::string start = fmt::format("there is no flag {}", quote(given));
  if (given.size() == 2 && given != arg && find(app, given) != nullptr) {
    throw UsageError(fmt::format("{}; a value is given as in {} {}", quote(arg), given,
                                 arg.substr(given.size() + 1)));
  }
  if (word.size() > 1 && find(app, "--" + word) != nullptr) {
    throw UsageError(fmt::format("{}; use --{}", start, word));
  }
  if (const Foreign* const foreign = find_foreign(app, word)) {
    throw UsageError(fmt::format(
        "{}{}{}{}{}", start, foreign->instead.empty() ? "" : "; use ", foreign->instead,
        foreign->note.empty() ? "" : (foreign->instead.empty() ? ": " : ", "), foreign->note));
  }
  if (const std::string nearest = nearest_flag(app, word); !nearest.empty()) {
    throw UsageError(fmt::format("{}; did you mean {}?", start, nearest));
  }
  if (const std::vector<const CLI::App*> commands = commands_of(app); !commands.empty()) {
    throw UsageError(fmt::format("{} in front of a command: {}", start, names_of(commands)));
  }
  throw UsageError(start + " (--help lists the options)");
}

[[noreturn]] void refuse_word(const CLI::App& app, const std::string& word) {
  if (const std::vector<const CLI::App*> commands = commands_of(app); !commands.empty()) {
    throw UsageError(
        fmt::format("there is no command {}; there are {}", quote(word), names_of(commands)));
  }
  std::string ways;
  for (const char* flag : {"--model", "--prompt", "--text"}) {
    if (find(app, flag) != nullptr) {
      ways += fmt::format("{}{}", ways.empty() ? "; did you forget " : " or ", flag);
    }
  }
  throw UsageError(
      fmt::format("{} belongs to no flag{}", quote(word), ways.empty() ? ways : ways + "?"));
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

bool takes_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
}

// "-n100", "-vt8": whether these are letters of flags, with a value after the last. If that value
// is the next argument, `option` is whose it is.
bool is_bundle(const CLI::App& app, std::string_view arg, const CLI::Option*& option) {
  for (size_t i = 1; i < arg.size(); ++i) {
    option = find(app, std::string("-") + arg[i]);
    if (option == nullptr) {
      return false;
    }
    if (takes_value(*option)) {
      const std::string_view value = arg.substr(i + 1);
      const bool good =
          value.empty() || !takes_number(*option) ||
          std::string_view("0123456789+-.").find(value.front()) != std::string_view::npos;
      option = value.empty() ? option : nullptr;
      return good;
    }
  }
  option = nullptr;
  return true;
}

// Throws for an argument that begins with a dash unless `app` has it; returns the option whose
// value is the next argument, or nullptr if there is none.
const CLI::Option* check_flag(const CLI::App& app, const std::string& arg) {
  const CLI::Option* option = nullptr;
  if (arg.starts_with("--")) {
    const size_t equals = arg.find('=');
    option = find(app, arg.substr(0, equals));
    if (option == nullptr) {
      refuse(app, arg, plain_word(arg));
    }
    return equals == std::string::npos && takes_value(*option) ? option : nullptr;
  }
  const std::string word = plain_word(arg);
  const bool foreign =
      word.size() > 1 && (find(app, "--" + word) != nullptr || find_foreign(app, word) != nullptr);
  if (foreign || !is_bundle(app, arg, option)) {
    refuse(app, arg, word);
  }
  return option;
}

// A dash that word processors make of a hyphen.
bool begins_with_long_dash(std::string_view arg) {
  return arg.starts_with("\xe2\x80\x93") || arg.starts_with("\xe2\x80\x94");
}

bool asks_for_help(const std::string& arg) {
  return arg == "-h" || arg == "-help" || arg == "--help" || arg == "--version";
}

bool takes_words(const CLI::App& app) {
  const std::vector<const CLI::Option*> options = app.get_options();
  return std::any_of(options.begin(), options.end(),
                     [](const CLI::Option* option) { return option->get_positional(); });
}

}  // namespace

void require_known_flags(const CLI::App& app, std::span<const std::string> args) {
  if (std::any_of(args.begin(), args.end(), asks_for_help)) {
    return;
  }
  const CLI::App* current = &app;
  bool is_value = false;     // of the flag in front
  bool more_values = false;  // may follow it
  for (const std::string& arg : args) {
    if (std::exchange(is_value, false)) {
      continue;
    }
    if (arg == "--") {
      return;
    }
    if (begins_with_long_dash(arg)) {
      refuse(*current, arg, plain_word(arg.substr(3)));
    }
    if (arg.size() > 1 && arg.front() == '-') {
      const CLI::Option* const option = check_flag(*current, arg);
      is_value = option != nullptr;
      more_values = is_value && option->get_allow_extra_args();
      continue;
    }
    if (more_values) {
      continue;
    }
    const std::vector<const CLI::App*> commands = commands_of(*current);
    const auto command =
        std::find_if(commands.begin(), commands.end(),
                     [&](const CLI::App* candidate) { return candidate->check_name(arg); });
    if (command != commands.end()) {
      current = *command;
    } else if (!takes_words(*current)) {
      refuse_word(*current, arg);
    }
  }
}

}  // namespace sparsellm
