#include "tools/bench/completion_stream.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_writer.h"
#include "tools/bench/completion_chunk.h"

namespace sparsellm {

HttpCall streamed_completion(const Request& request, std::string_view model) {
  JsonWriter json;
  json.object().member("model", model).key("prompt").array();
  for (const int32_t token : request.prompt) {
    json.value(token);
  }
  json.end().member("max_tokens", request.max_tokens).member("temperature", 0);
  json.member("ignore_eos", request.ignore_eos).member("stream", true);
  json.key("stream_options").object().member("include_usage", true).end().end();
  return {.path = "/v1/completions", .body = std::move(json).text()};
}

CompletionStream::CompletionStream(double arrival, Clock::time_point start,
                                   std::function<void()> on_finished)
    : start_(start), on_finished_(std::move(on_finished)), times_{.arrival = arrival} {}

void CompletionStream::on_body(std::string_view part) {
  constexpr size_t kMaxRefusal = 64 << 10;
  if (status_ != 200) {
    refusal_ += part.substr(0, kMaxRefusal - refusal_.size());
    return;
  }
  if (!error_.empty()) {
    return;
  }
  now_ = std::chrono::duration<double>(Clock::now() - start_).count();
  try {
    parser_.add(part, [this](std::string_view data) { take_event(data); });
  } catch (const Error& error) {
    fail_with(error.what());
  }
}

void CompletionStream::take_event(std::string_view data) {
  if (done_ || !error_.empty()) {
    return;
  }
  if (data == kStreamDone) {
    done_ = true;
    return;
  }
  const CompletionChunk chunk = read_completion_chunk(data);
  if (chunk.error) {
    fail_with(*chunk.error);
    return;
  }
  if (chunk.generated_tokens) {
    times_.tokens = *chunk.generated_tokens;
  }
  if (chunk.choices == 0) {
    return;
  }
  if (chunks_ == 0) {
    times_.first_token = now_;
  } else {
    gaps_.push_back(now_ - times_.last_token);
  }
  times_.last_token = now_;
  ++chunks_;
}

void CompletionStream::on_end(std::string_view error) {
  if (!error.empty()) {
    fail_with(error);
  } else if (status_ != 200) {
    fail_with(fmt::format("HTTP {}: {}", status_, refusal_text(refusal_)));
  } else if (!done_) {
    fail_with("the stream ended before [DONE]");
  } else if (chunks_ == 0) {
    fail_with("the stream had no token");
  }
  times_.tokens = times_.tokens == 0 ? chunks_ : times_.tokens;
  on_finished_();
}

// The first error is the one that explains the others.
void CompletionStream::fail_with(std::string_view why) {
  if (error_.empty()) {
    error_ = why.empty() ? "an error without a text" : why;
  }
}

}  // namespace sparsellm
