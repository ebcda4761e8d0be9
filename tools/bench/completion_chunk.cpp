#include "tools/bench/completion_chunk.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_events.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {
namespace {

constexpr std::string_view kChunkSource = "an event of the stream";
constexpr int kChunkDepth = 16;  // log-probabilities are deeper than the rest

// No tree is made: there is a chunk for every token.
class ChunkEvents final : private JsonEvents {
 public:
  ChunkEvents() : JsonEvents(kChunkSource, kChunkDepth) {}

  CompletionChunk read(std::string_view text) && {
    JsonEvents::read(text);
    return std::move(chunk_);
  }

 private:
  void on_key(std::string& key) override {
    if (depth() == 1) {
      name_ = std::move(key);
    } else if (depth() == 2) {
      inner_ = std::move(key);
    }
  }

  void on_value(nlohmann::json& value) override {
    if (depth() == 0) {
      require(value.is_object(), "{} is {}; expected an object", kChunkSource, describe(value));
    } else if (depth() == 1 && name_ == "error" && !value.is_null()) {
      // Of a text it is the message, of an object the message is in it.
      chunk_.error =
          value.is_string() ? std::move(value.get_ref<std::string&>()) : "an error without a text";
    } else if (depth() == 2 && name_ == "choices") {
      chunk_.choices += value.is_object() ? 1 : 0;
    } else if (depth() == 2 && name_ == "usage" && inner_ == "completion_tokens") {
      chunk_.generated_tokens = to_integer(value, 0, int64_t{1} << 40);
    } else if (depth() == 2 && name_ == "error" && inner_ == "message" && value.is_string()) {
      chunk_.error = std::move(value.get_ref<std::string&>());
    }
  }

  void on_end() override {}

  CompletionChunk chunk_;
  std::string name_;   // of the member that is read
  std::string inner_;  // of a member of it
};

}  // namespace

CompletionChunk read_completion_chunk(std::string_view data) { return ChunkEvents().read(data); }

std::string refusal_text(std::string_view body) {
  constexpr size_t kShown = 200;
  try {
    if (std::optional<std::string> error = read_completion_chunk(body).error) {
      return *std::move(error);
    }
  } catch (const Error&) {  // something else than a server of OpenAI's API answers
  }
  return body.empty() ? "no text" : quote(body.substr(0, kShown));
}

}  // namespace sparsellm
