#include "engine/delivery.h"

#include <algorithm>
#include <exception>
#include <new>

namespace sparsellm {
namespace {

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// To a listener that has thrown at the last event. No listener is left for an exception of this
// call.
void emit_error(const Sequence& sequence, std::string_view error) {
  try {
    sequence.submission->on_token({.request = sequence.submission->id,
                                   .sample = sequence.sample,
                                   .finish = FinishReason::error,
                                   .error = error});
  } catch (...) {
  }
}

void emit(Sequence& sequence, TokenEvent event) {
  const OnToken& on_token = sequence.submission->on_token;
  if (!on_token) {
    return;
  }
  event.request = sequence.submission->id;
  event.sample = sequence.sample;
  event.finish = sequence.finish;
  try {
    on_token(event);
    return;
  } catch (...) {
    if (!event.finish) {
      finish(sequence, FinishReason::error, current_error());
      return;
    }
    // Without its last event the result would be short, and would count as whole.
    const std::string error = current_error();
    const bool is_known = event.finish == FinishReason::error && event.error == error;
    sequence.finish = FinishReason::error;
    if (!is_known) {
      emit_error(sequence, error);
    }
  }
}

// Text that was held back, now that nothing follows.
std::string remaining_text(Sequence& sequence) {
  if (!sequence.text) {
    return {};
  }
  std::string text = sequence.stops.add(sequence.text->finish());
  text += sequence.stops.finish();
  return text;
}

// If the prompt's are complete and this is the first event.
std::span<const TokenLogProbs> prompt_log_probs(const Sequence& sequence, bool first_event) {
  const bool complete = std::ssize(sequence.prompt_log_probs) == sequence.prompt_length() - 1;
  return first_event && complete ? std::span(sequence.prompt_log_probs)
                                 : std::span<const TokenLogProbs>();
}

}  // namespace

std::string current_error() noexcept {
  constexpr const char* kOutOfMemory = "out of memory";  // short enough to need none
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return kOutOfMemory;
    } catch (const std::exception& error) {
      return error.what();
    } catch (...) {
      return "an exception of an unknown type";
    }
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

void finish(Sequence& sequence, FinishReason reason, std::string_view error) {
  if (sequence.finish) {
    return;
  }
  std::string rest;
  std::string lack_of_memory;
  try {
    rest = remaining_text(sequence);
  } catch (...) {
    // There has to be an end all the same, but not one that counts as whole.
    lack_of_memory = current_error();
    if (reason != FinishReason::error) {
      reason = FinishReason::error;
      error = lack_of_memory;
    }
  }
  sequence.finish = reason;
  const bool first_event = sequence.known_length() == sequence.prompt_length();
  emit(sequence,
       {.text = rest, .prompt_log_probs = prompt_log_probs(sequence, first_event), .error = error});
}

void deliver(Sequence& sequence, const Choice& choice, std::span<const int32_t> eos) {
  if (!choice.error.empty()) {
    finish(sequence, FinishReason::error, choice.error);
    return;
  }
  const bool first_event = sequence.known_length() == sequence.prompt_length();
  sequence.tokens.push_back(choice.token);
  const bool stop =
      contains(eos, choice.token) || contains(sequence.request().stop_token_ids, choice.token);
  const bool last = stop || sequence.known_length() == sequence.max_length;
  std::string text;
  if (sequence.text && !stop) {
    text = sequence.stops.add(sequence.text->add(choice.token));
  }
  if (last || sequence.stops.found()) {
    text += remaining_text(sequence);  // which may complete a stop text
    sequence.finish = stop || sequence.stops.found() ? FinishReason::stop : FinishReason::length;
  }
  emit(sequence, {.token = choice.token,
                  .text = text,
                  .log_probs = choice.log_probs ? &*choice.log_probs : nullptr,
                  .prompt_log_probs = prompt_log_probs(sequence, first_event)});
}

}  // namespace sparsellm
