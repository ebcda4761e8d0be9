// The input is what rank 0 tells the processes of other ranks between engines
// (tools/cli/session_message.h), and in it the options of an engine (engine/rank_options.h).

#include <span>
#include <string>
#include <string_view>

#include "engine/rank_options.h"
#include "kernels/base/error.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tools/cli/session_message.h"

namespace sparsellm::fuzz {
namespace {

constexpr int kModels = 2;

std::string written(const RankOptions& read) {
  return rank_options_text(read.options, read.formats);
}

}  // namespace

void fuzz_one(std::string_view input) {
  const SessionMessage message = parse_session_message(std::as_bytes(std::span(input)), kModels);
  expect(message.engine >= 0 && message.model >= 0 && message.model < kModels &&
             message.status >= 0 && message.status <= 255,
         "an engine, a model and an exit code that there are");
  expect(parse_session_message(session_message_bytes(message), kModels) == message,
         "a message that is read as it was written");
  if (message.engine > 0) {
    const EngineOptions own;
    const RankOptions options = read_rank_options(message.options, own);
    const std::string text = written(options);
    expect(written(read_rank_options(text, own)) == text, "options that are read as written");
  }
}

}  // namespace sparsellm::fuzz
