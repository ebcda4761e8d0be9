#include "engine/choose.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/logit_scan.h"

namespace sparsellm {
namespace {

bool shows_logits(const LogitRow& row) {
  const Request& request = row.sequence->request();
  return request.on_logits &&
         (request.score_prompt || row.position >= row.sequence->prompt_length() - 1);
}

void show_logits(const LogitRow& row, std::span<const float> logits) {
  try {
    row.sequence->request().on_logits(row.position, logits);
  } catch (...) {
    finish(*row.sequence, FinishReason::error, current_error());
  }
}

Choice choose_next(const LogitRow& row, std::span<const float> logits, std::span<const int32_t> eos,
                   std::string_view not_finite) {
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
    if (choice.error == kLogitsNotFinite) {
      choice.error = not_finite;
    }
  }
  return choice;
}

// Of the prompt's token after the row.
TokenLogProbs prompt_log_probs(const LogitRow& row, std::span<const float> logits) {
  const Request& request = row.sequence->request();
  return token_log_probs(logits, request.prompt[static_cast<size_t>(row.position) + 1],
                         request.log_probs.value());
}

}  // namespace

void choose(std::span<const LogitRow> rows, const Tensor& values, std::span<const int32_t> eos,
            ThreadPool& threads, std::span<Choice> choices, std::string_view not_finite) {
  const auto logits = [&](size_t i) {
    return std::span<const float>(values.row<float>(static_cast<int64_t>(i)),
                                  static_cast<size_t>(values.size(1)));
  };
  // sample_token() looks at the logits that it gets; here the others that somebody wants.
  std::vector<uint8_t> unusable(rows.size());
  threads.parallel_for(std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const bool wanted = shows_logits(rows[i]) || has_prompt_log_probs(rows[i]);
      unusable[i] = wanted && !all_finite(logits(i)) ? 1 : 0;
    }
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& sequence = *rows[i].sequence;
    if (sequence.finish) {
      continue;
    }
    if (unusable[i] != 0) {
      finish(sequence, FinishReason::error, std::string(not_finite));
    } else if (shows_logits(rows[i])) {
      show_logits(rows[i], logits(i));
    }
  }
  std::vector<std::optional<TokenLogProbs>> of_prompt(rows.size());
  threads.parallel_for(std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (rows[i].sequence->finish) {
        continue;
      }
      if (rows[i].choice) {
        choices[static_cast<size_t>(*rows[i].choice)] =
            choose_next(rows[i], logits(i), eos, not_finite);
      }
      if (has_prompt_log_probs(rows[i])) {
        of_prompt[i] = prompt_log_probs(rows[i], logits(i));
      }
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
