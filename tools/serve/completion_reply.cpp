#include "tools/serve/completion_reply.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "tokenizer/utf8.h"
#include "tools/serve/json_text.h"

namespace sparsellm {
namespace {

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Front front = utf8_front(bytes);
    if (front.kind != Utf8Front::Kind::character) {
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(front.length));
  }
  return true;
}

std::string& next_element(std::string& array) {
  if (!array.empty()) {
    array += ',';
  }
  return array;
}

// JSON has no infinity: a token that cannot come has the smallest float instead, as others do.
void append_number(float value, std::string& out) {
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(out), "{}", value);
  } else {
    out += "-3.4028235e+38";
  }
}

std::string_view reason_of(FinishReason finish) {
  return finish == FinishReason::length ? "length" : "stop";
}

constexpr std::string_view kEvent = "data: ";
constexpr std::string_view kEventEnd = "\n\n";

}  // namespace

std::string shown_token(const Tokenizer& tokenizer, int32_t id) {
  std::string bytes = tokenizer.token_bytes(id, /*show_special=*/true);
  if (is_utf8(bytes)) {
    return bytes;
  }
  std::string text = "bytes:";
  for (const char byte : bytes) {
    fmt::format_to(std::back_inserter(text), "\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

CompletionReply::CompletionReply(const Tokenizer& tokenizer, size_t prompts, ReplyFormat format)
    : tokenizer_(tokenizer),
      format_(std::move(format)),
      choices_(prompts * static_cast<size_t>(format_.samples)),
      prompt_log_probs_(format_.echoes.size()),
      open_(choices_.size()) {
  head_ = "{\"id\":";
  append_json(format_.id, head_);
  head_ +=
      fmt::format(",\"object\":\"text_completion\",\"created\":{},\"model\":", format_.created);
  append_json(format_.model, head_);
  head_ += ",\"choices\":[";
}

void CompletionReply::add(const LoopEvents& events, const LoopEvents::Event& event,
                          std::string& chunks) {
  const size_t index = choice_of(event);
  Choice& choice = choices_[index];
  if (choice.finish) {
    return;
  }
  if (!std::exchange(choice.begun, true)) {
    begin(events, event, choice);
  }
  const std::string_view text = events.text_of(event);
  choice.text += text;
  choice.characters += count_characters(text);
  if (event.token) {
    ++generated_;
    if (event.log_probs >= 0) {
      append_log_probs(events.log_probs[static_cast<size_t>(event.log_probs)],
                       choice.offsets->add(*event.token), choice.log_probs);
    }
  }
  if (event.finish) {
    end_offsets(event, choice);
    choice.finish = event.finish;
    --open_;
    if (*event.finish == FinishReason::error && error_.empty()) {
      error_ = events.error_of(event);
    }
  }
  if (format_.stream) {
    take_chunk(index, chunks);
  }
}

// The echo of the prompt.
void CompletionReply::begin(const LoopEvents& events, const LoopEvents::Event& event,
                            Choice& choice) {
  const auto prompt = static_cast<size_t>(event.request);
  if (prompt < format_.echoes.size()) {
    if (event.prompt_log_probs >= 0) {
      const auto first = events.log_probs.begin() + event.prompt_log_probs;
      prompt_log_probs_[prompt].assign(first, first + event.prompt_log_probs_count);
    }
    choice.text = format_.echoes[prompt].text;
    choice.characters = count_characters(choice.text);
    if (!format_.echoes[prompt].tokens.empty()) {
      echo_log_probs(prompt, choice);
    }
  }
  choice.offsets.emplace(tokenizer_, /*continues=*/true, format_.show_special_tokens,
                         choice.characters);
}

// Where a normalizer changes the text, its tokens are not all of the text's characters; what
// follows the prompt stands where it does all the same.
void CompletionReply::echo_log_probs(size_t prompt, Choice& choice) const {
  const Echo& echo = format_.echoes[prompt];
  TextOffsets offsets(tokenizer_, /*continues=*/false, echo.has_special_tokens);
  const auto offset_of = [&](int32_t token) {
    return std::min(offsets.add(token), choice.characters);
  };
  LogProbs& lists = choice.log_probs;
  append_token(echo.tokens.front(), offset_of(echo.tokens.front()), lists);
  next_element(lists.values) += "null";
  next_element(lists.top) += "null";
  for (const TokenLogProbs& token : prompt_log_probs_[prompt]) {
    append_log_probs(token, offset_of(token.token.token), lists);
  }
}

// A stop text, and what comes after it, is no part of the answer: its tokens stand at the end.
void CompletionReply::end_offsets(const LoopEvents::Event& event, Choice& choice) const {
  std::vector<int64_t>& offsets = choice.log_probs.offsets;
  if (offsets.empty()) {
    return;
  }
  for (int64_t& offset : offsets) {
    offset = std::min(offset, choice.characters);
  }
  if (event.token && tokenizer_.token_bytes(*event.token, format_.show_special_tokens).empty()) {
    offsets.back() = choice.characters;
  }
}

void CompletionReply::append_token(int32_t id, int64_t offset, LogProbs& lists) const {
  append_json(shown_token(tokenizer_, id), next_element(lists.tokens));
  lists.offsets.push_back(offset);
}

// The chosen token is among the likeliest even where it is not one of them, as in OpenAI's API.
void CompletionReply::append_log_probs(const TokenLogProbs& token, int64_t offset,
                                       LogProbs& lists) const {
  append_token(token.token.token, offset, lists);
  append_number(token.token.log_prob, next_element(lists.values));
  std::string& top = next_element(lists.top);
  top += '{';
  bool has_token = false;
  std::vector<std::string> shown;
  const auto append = [&](const TokenLogProb& candidate) {
    std::string text = shown_token(tokenizer_, candidate.token);
    if (std::find(shown.begin(), shown.end(), text) != shown.end()) {
      return;  // two tokens with one text: the likelier counts
    }
    top += shown.empty() ? "" : ",";
    append_json(text, top);
    top += ':';
    append_number(candidate.log_prob, top);
    shown.push_back(std::move(text));
  };
  for (const TokenLogProb& candidate : token.top) {
    has_token = has_token || candidate.token == token.token.token;
    append(candidate);
  }
  if (!has_token) {
    append(token.token);
  }
  top += '}';
}

// What has come since the chunk before.
void CompletionReply::take_chunk(size_t index, std::string& chunks) {
  Choice& choice = choices_[index];
  if (chunks.empty()) {  // most have one
    chunks.reserve(head_.size() + choice.text.size() + 128);
  }
  chunks.append(kEvent).append(head_);
  append_choice(index, choice, chunks);
  chunks += format_.include_usage ? "],\"usage\":null}" : "]}";
  chunks += kEventEnd;
  choice.text.clear();
  if (format_.log_probs) {
    choice.log_probs = {};
  }
}

void CompletionReply::append_choice(size_t index, const Choice& choice, std::string& out) const {
  out.append("{\"index\":").append(fmt::format_int(index).c_str()).append(",\"text\":");
  append_json(choice.text, out);
  if (format_.log_probs) {
    const LogProbs& lists = choice.log_probs;
    out.append(",\"logprobs\":{\"tokens\":[").append(lists.tokens);
    out.append("],\"token_logprobs\":[").append(lists.values);
    out.append("],\"top_logprobs\":[").append(lists.top);
    out += fmt::format("],\"text_offset\":[{}]}}", fmt::join(lists.offsets, ","));
  } else {
    out += ",\"logprobs\":null";
  }
  if (choice.finish) {
    out.append(",\"finish_reason\":\"").append(reason_of(*choice.finish)).append("\"}");
  } else {
    out += ",\"finish_reason\":null}";
  }
}

std::string CompletionReply::usage() const {
  return fmt::format(
      "\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{}}}",
      format_.prompt_tokens, generated_, format_.prompt_tokens + generated_);
}

std::string CompletionReply::body() const {
  std::string text = head_;
  for (size_t i = 0; i < choices_.size(); ++i) {
    text += i > 0 ? "," : "";
    append_choice(i, choices_[i], text);
  }
  return text + "]," + usage() + "}";
}

std::string CompletionReply::stream_end() const {
  std::string text;
  if (format_.include_usage) {
    text.append(kEvent).append(head_).append("],").append(usage()).append("}").append(kEventEnd);
  }
  return text.append(kEvent).append("[DONE]").append(kEventEnd);
}

std::string CompletionReply::stream_error(int status, std::string_view message) const {
  return std::string(kEvent).append(error_body(status, message)).append(kEventEnd);
}

}  // namespace sparsellm
