#include "tools/results.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// Members in the order of writing, and floats with as many digits as a float needs.
using Json = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool, int64_t,
                                  uint64_t, float>;

// Invalid UTF-8 becomes U+FFFD: a token may hold a part of a character.
std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json log_prob_json(const Tokenizer& tokenizer, const TokenLogProb& token) {
  return {{"id", token.token},
          {"token", tokenizer.token_bytes(token.token, /*show_special=*/true)},
          {"logprob", token.log_prob}};
}

Json log_probs_json(const Tokenizer& tokenizer, const std::vector<TokenLogProbs>& tokens) {
  Json array = Json::array();
  for (const TokenLogProbs& token : tokens) {
    Json& entry = array.emplace_back(log_prob_json(tokenizer, token.token));
    Json& top = entry["top_logprobs"] = Json::array();
    for (const TokenLogProb& candidate : token.top) {
      top.push_back(log_prob_json(tokenizer, candidate));
    }
  }
  return array;
}

void put_completion(Json& object, const Tokenizer& tokenizer, const Prompt& prompt,
                    const Completion& completion) {
  object["text"] = completion.text;
  object["token_ids"] = completion.tokens;
  object["finish_reason"] = std::string(name_of(completion.finish));
  if (prompt.request.log_probs) {
    object["logprobs"] = log_probs_json(tokenizer, completion.log_probs);
  }
}

// {"id": ..., what is in `object`
std::string with_id(std::string_view id, const Json& object) {
  return id.empty() ? dump(object) : result_prefix(id) + dump(object).substr(1);
}

}  // namespace

Results::Results(int32_t samples) : samples_(static_cast<size_t>(samples)), unfinished_(samples) {
  for (int32_t i = 0; i < samples; ++i) {
    samples_[static_cast<size_t>(i)].sample = i;
  }
}

void Results::add(const TokenEvent& event) {
  Completion& completion = samples_.at(static_cast<size_t>(event.sample));
  if (event.token) {
    completion.tokens.push_back(*event.token);
  }
  completion.text += event.text;
  if (event.log_probs != nullptr) {
    completion.log_probs.push_back(*event.log_probs);
  }
  completion.prompt_log_probs.insert(completion.prompt_log_probs.end(),
                                     event.prompt_log_probs.begin(), event.prompt_log_probs.end());
  if (event.finish) {
    completion.finish = *event.finish;
    completion.error = event.error;
    --unfinished_;
  }
}

std::string_view Results::error() const {
  const auto failed = std::find_if(samples_.begin(), samples_.end(),
                                   [](const Completion& c) { return !c.error.empty(); });
  return failed != samples_.end() ? std::string_view(failed->error) : std::string_view();
}

std::string result_json(std::string_view id, const Tokenizer& tokenizer, const Prompt& prompt,
                        const Results& results) {
  Json object = Json::object();
  if (prompt.echo && prompt.text) {
    object["prompt"] = *prompt.text;
  } else if (prompt.echo) {
    object["prompt_ids"] = prompt.request.prompt;
  }
  const std::vector<Completion>& samples = results.samples();
  if (prompt.echo && prompt.request.log_probs) {
    object["prompt_logprobs"] = log_probs_json(tokenizer, samples.front().prompt_log_probs);
  }
  if (samples.size() == 1) {
    put_completion(object, tokenizer, prompt, samples.front());
  } else {
    Json& array = object["samples"] = Json::array();
    for (const Completion& completion : samples) {
      put_completion(array.emplace_back(Json::object()), tokenizer, prompt, completion);
    }
  }
  return with_id(id, object);
}

std::string error_json(std::string_view id, std::string_view error) {
  return with_id(id, Json{{"error", std::string(error)}});
}

std::string result_prefix(std::string_view id) { return fmt::format("{{\"id\":{},", id); }

std::string error_prefix(std::string_view id) { return result_prefix(id) + "\"error\":"; }

}  // namespace sparsellm
