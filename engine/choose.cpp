#include "engine/choose.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace sparsellm {
namespace {

void show_logits(const LogitRow& row, std::span<const float> logits) {
  Sequence& sequence = *row.sequence;
  const Request& request = sequence.request();
  const bool asked_for = request.score_prompt || row.position >= sequence.prompt_length() - 1;
  if (sequence.finish || !request.on_logits || !asked_for) {
    return;
  }
  try {
    request.on_logits(row.position, logits);
  } catch (...) {
    finish(sequence, FinishReason::error, current_error());
  }
}

Choice choose_next(const LogitRow& row, std::span<const float> logits,
                   std::span<const int32_t> eos) {
  const Sequence& sequence = *row.sequence;
  const Request& request = sequence.request();
  Choice choice;
  try {
    choice.token = sample_token(
        logits, request.sampling,
        {.tokens = sequence.tokens, .prompt_length = sequence.prompt_length()},
        request.ignore_eos ? eos : std::span<const int32_t>(), sequence.seed, row.position + 1);
    if (request.log_probs) {
      choice.log_probs = token_log_probs(logits, choice.token, *request.log_probs);
    }
  } catch (...) {
    choice.error = current_error();
  }
  return choice;
}

// Of the prompt's token behind the row.
std::optional<TokenLogProbs> prompt_log_probs(const LogitRow& row, std::span<const float> logits) {
  const Sequence& sequence = *row.sequence;
  const Request& request = sequence.request();
  if (!request.prompt_log_probs || sequence.sample != 0 ||
      row.position + 1 >= sequence.prompt_length()) {
    return std::nullopt;
  }
  return token_log_probs(logits, request.prompt[static_cast<size_t>(row.position) + 1],
                         request.log_probs.value());
}

}  // namespace

void choose(std::span<const LogitRow> rows, const Tensor& values, std::span<const int32_t> eos,
            ThreadPool& threads, std::span<Choice> choices) {
  const auto logits = [&](size_t i) {
    return std::span<const float>(values.row<float>(static_cast<int64_t>(i)),
                                  static_cast<size_t>(values.size(1)));
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    show_logits(rows[i], logits(i));
  }
  std::vector<std::optional<TokenLogProbs>> of_prompt(rows.size());
  threads.parallel_for(std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (rows[i].sequence->finish) {
        continue;
      }
      if (rows[i].choice) {
        choices[static_cast<size_t>(*rows[i].choice)] = choose_next(rows[i], logits(i), eos);
      }
      of_prompt[i] = prompt_log_probs(rows[i], logits(i));
    }
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& sequence = *rows[i].sequence;
    if (rows[i].position < sequence.prompt_length()) {
      sequence.reported = rows[i].position + 1;
    }
    if (of_prompt[i]) {
      sequence.prompt_log_probs.push_back(*std::move(of_prompt[i]));
    }
  }
}

}  // namespace sparsellm
