#include "tools/run/results.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// Floats with as many digits as a float needs.
using Json =
    nlohmann::basic_json<std::map, std::vector, std::string, bool, int64_t, uint64_t, float>;

// Of a string or a number. Results are put together as text: a tree of millions of
// log-probabilities takes many times the memory of its text, and ends the program if there is none
// left to destroy it with. Invalid UTF-8 becomes U+FFFD: a token may hold a part of a character.
std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <class... Args>
void append(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

// `append_item` appends one of them.
template <class Items, class AppendItem>
void append_array(std::string& out, const Items& items, const AppendItem& append_item) {
  std::string_view separator;
  out += '[';
  for (const auto& item : items) {
    out += std::exchange(separator, ",");
    append_item(item);
  }
  out += ']';
}

void append_tokens(std::string& out, const std::vector<int32_t>& tokens) {
  append_array(out, tokens, [&out](int32_t token) { append(out, "{}", token); });
}

// Without the brace at the end.
void append_log_prob(std::string& out, const Tokenizer& tokenizer, const TokenLogProb& token) {
  append(out, "{{\"id\":{},\"token\":{},\"logprob\":{}", token.token,
         dump(tokenizer.token_bytes(token.token, /*show_special=*/true)), dump(token.log_prob));
}

void append_log_probs(std::string& out, const Tokenizer& tokenizer,
                      const std::vector<TokenLogProbs>& tokens) {
  append_array(out, tokens, [&](const TokenLogProbs& token) {
    append_log_prob(out, tokenizer, token.token);
    out += ",\"top_logprobs\":";
    append_array(out, token.top, [&](const TokenLogProb& candidate) {
      append_log_prob(out, tokenizer, candidate);
      out += '}';
    });
    out += '}';
  });
}

void append_completion(std::string& out, const Tokenizer& tokenizer, const Prompt& prompt,
                       const Completion& completion) {
  append(out, "\"text\":{},\"token_ids\":", dump(completion.text));
  append_tokens(out, completion.tokens);
  append(out, ",\"finish_reason\":\"{}\"", name_of(completion.finish));
  if (prompt.request.log_probs) {
    out += ",\"logprobs\":";
    append_log_probs(out, tokenizer, completion.log_probs);
  }
}

void append_neurons(std::string& out, const ResultNeurons& neurons) {
  if (neurons.mode == ActivationSparsity::Mode::off) {
    return;
  }
  append(out, ",\"activation_sparsity\":{{\"mode\":\"{}\"", name_of(neurons.mode));
  const bool known = neurons.counts.neurons > 0;
  const auto share = [&](double value) { return known ? fmt::format("{:.6f}", value) : "null"; };
  append(out, ",\"skipped\":{},\"active\":{}}}", share(neurons.counts.skipped_share()),
         share(neurons.counts.active_share()));
}

}  // namespace

Results::Results(int32_t samples)
    : samples_(static_cast<size_t>(samples)),
      has_finished_(static_cast<size_t>(samples)),
      unfinished_(samples) {
  for (int32_t i = 0; i < samples; ++i) {
    samples_[static_cast<size_t>(i)].sample = i;
  }
}

void Results::add(const TokenEvent& event) {
  const auto sample = static_cast<size_t>(event.sample);
  samples_.at(sample).add(event);
  // A listener that throws at the last event hears a second one.
  if (event.finish && !has_finished_[sample]) {
    has_finished_[sample] = true;
    --unfinished_;
  }
}

std::string_view Results::error() const {
  const auto failed = std::find_if(samples_.begin(), samples_.end(),
                                   [](const Completion& c) { return !c.error.empty(); });
  return failed != samples_.end() ? std::string_view(failed->error) : std::string_view();
}

std::string result_json(std::string_view id, const Tokenizer& tokenizer, const Prompt& prompt,
                        const Results& results, const ResultNeurons& neurons) {
  std::string out = id.empty() ? "{" : result_prefix(id);
  if (prompt.echo && prompt.text) {
    append(out, "\"prompt\":{},", dump(*prompt.text));
  } else if (prompt.echo) {
    out += "\"prompt_ids\":";
    append_tokens(out, prompt.request.prompt);
    out += ',';
  }
  const std::vector<Completion>& samples = results.samples();
  if (prompt.echo && prompt.request.log_probs) {
    out += "\"prompt_logprobs\":";
    append_log_probs(out, tokenizer, samples.front().prompt_log_probs);
    out += ',';
  }
  if (samples.size() == 1) {
    append_completion(out, tokenizer, prompt, samples.front());
  } else {
    out += "\"samples\":";
    append_array(out, samples, [&](const Completion& completion) {
      out += '{';
      append_completion(out, tokenizer, prompt, completion);
      out += '}';
    });
  }
  append_neurons(out, neurons);
  return out += '}';
}

std::string error_json(std::string_view id, std::string_view error) {
  return fmt::format("{}{}}}", error_prefix(id), dump(std::string(error)));
}

std::string result_prefix(std::string_view id) { return fmt::format("{{\"id\":{},", id); }

std::string error_prefix(std::string_view id) { return result_prefix(id) + "\"error\":"; }

}  // namespace sparsellm
