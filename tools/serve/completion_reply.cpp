#include "tools/serve/completion_reply.h"

#include <spdlog/fmt/fmt.h>

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

// Characters that begin in these bytes.
int64_t characters(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xc0) != 0x80; });
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
  const std::string bytes = tokenizer.token_bytes(id, /*show_special=*/true);
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
      prompt_log_probs_(format_.echoed_tokens.size()),
      open_(choices_.size()) {
  head_ = "{\"id\":";
  append_json(format_.id, head_);
  head_ +=
      fmt::format(",\"object\":\"text_completion\",\"created\":{},\"model\":", format_.created);
  append_json(format_.model, head_);
  head_ += ",\"choices\":[";
}

std::string CompletionReply::add(const LoopEvents& events, const LoopEvents::Event& event) {
  const size_t index = choice_of(event);
  Choice& choice = choices_[index];
  if (choice.finish) {
    return {};
  }
  if (!std::exchange(choice.begun, true)) {
    begin(events, event, choice);
  }
  choice.text += events.text_of(event);
  if (event.token) {
    ++generated_;
    if (event.log_probs >= 0) {
      append_log_probs(events.log_probs[static_cast<size_t>(event.log_probs)], choice);
    }
  }
  if (event.finish) {
    choice.finish = event.finish;
    --open_;
    if (*event.finish == FinishReason::error && error_.empty()) {
      error_ = events.error_of(event);
    }
  }
  return format_.stream ? take_chunk(index) : std::string();
}

// The echo of the prompt.
void CompletionReply::begin(const LoopEvents& events, const LoopEvents::Event& event,
                            Choice& choice) {
  const auto prompt = static_cast<size_t>(event.request);
  if (prompt < format_.echoes.size()) {
    choice.text = format_.echoes[prompt];
  }
  if (prompt >= format_.echoed_tokens.size()) {
    return;
  }
  std::vector<TokenLogProbs>& of_prompt = prompt_log_probs_[prompt];
  if (event.prompt_log_probs >= 0) {
    const auto first = events.log_probs.begin() + event.prompt_log_probs;
    of_prompt.assign(first, first + event.prompt_log_probs_count);
  }
  const std::vector<int32_t>& tokens = format_.echoed_tokens[prompt];
  choice.strips_space = tokenizer_.strips_leading_space();
  append_token(tokens.front(), choice);
  next_element(choice.log_probs.values) += "null";
  next_element(choice.log_probs.top) += "null";
  for (const TokenLogProbs& token : of_prompt) {
    append_log_probs(token, choice);
  }
}

void CompletionReply::append_token(int32_t id, Choice& choice) const {
  append_json(shown_token(tokenizer_, id), next_element(choice.log_probs.tokens));
  next_element(choice.log_probs.offsets) += std::to_string(choice.offset);
  const std::string bytes = tokenizer_.token_bytes(id);
  const bool strips = choice.strips_space && !bytes.empty();
  choice.offset += characters(strips ? tokenizer_.first_token_bytes(id) : bytes);
  choice.strips_space = choice.strips_space && !strips;
}

// The chosen token is among the likeliest even where it is not one of them, as in OpenAI's API.
void CompletionReply::append_log_probs(const TokenLogProbs& token, Choice& choice) const {
  append_token(token.token.token, choice);
  append_number(token.token.log_prob, next_element(choice.log_probs.values));
  std::string& top = next_element(choice.log_probs.top);
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
std::string CompletionReply::take_chunk(size_t index) {
  Choice& choice = choices_[index];
  std::string chunk;
  chunk.reserve(head_.size() + choice.text.size() + 128);
  chunk.append(kEvent).append(head_);
  append_choice(index, choice, chunk);
  chunk += format_.include_usage ? "],\"usage\":null}" : "]}";
  chunk += kEventEnd;
  choice.text.clear();
  choice.log_probs = {};
  return chunk;
}

void CompletionReply::append_choice(size_t index, const Choice& choice, std::string& out) const {
  fmt::format_to(std::back_inserter(out), "{{\"index\":{},\"text\":", index);
  append_json(choice.text, out);
  if (format_.log_probs) {
    const LogProbs& lists = choice.log_probs;
    out.append(",\"logprobs\":{\"tokens\":[").append(lists.tokens);
    out.append("],\"token_logprobs\":[").append(lists.values);
    out.append("],\"top_logprobs\":[").append(lists.top);
    out.append("],\"text_offset\":[").append(lists.offsets).append("]}");
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
