#include "tokenizer/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tokenizer/oniguruma.h"

namespace sparsellm {
namespace {

static_assert(PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40, "\\p{White_Space} needs PCRE2 10.40");

constexpr size_t kMaxPatternBytes = 20'000;
constexpr uint32_t kMaxNesting = 50;
// Steps of one match. A repetition of one character takes a step for each when it backtracks, so
// that the limit grows with the text.
constexpr size_t kMatchSteps = 1'000'000;
constexpr size_t kMatchStepsPerByte = 32;
constexpr uint32_t kMatchHeapKib = 64 * 1024;

template <auto free_function>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

PCRE2_SPTR code_units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

void Regex::CodeDeleter::operator()(void* code) const {
  pcre2_code_free(static_cast<pcre2_code*>(code));
}

Regex::Regex(std::string_view pattern) : pattern_(quote(pattern)) {
  require(pattern.size() <= kMaxPatternBytes,
          "the regular expression {} has {} bytes; at most {} are supported", pattern_,
          pattern.size(), kMaxPatternBytes);
  const std::string translated = pcre2_from_oniguruma(pattern);

  const CompileContext context(pcre2_compile_context_create(nullptr));
  require(context != nullptr, "no memory for the regular expression {}", pattern_);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // what "." does not match
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  auto* code = pcre2_compile(code_units(translated), translated.size(), PCRE2_UTF | PCRE2_UCP,
                             &error, &error_offset, context.get());
  require(code != nullptr, "the regular expression {} does not compile: {}", pattern_,
          pcre2_message(error));
  code_.reset(code);

  uint32_t matches_empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  require(matches_empty == 0,
          "the regular expression {} can match the empty string, which is not supported", pattern_);
  // Without compiled code, where the library or the system has none, matching is only slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

void Regex::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const MatchContext context(pcre2_match_context_create(nullptr));
  const MatchData data(pcre2_match_data_create(1, nullptr));
  require(context != nullptr && data != nullptr, "no memory to match the regular expression {}",
          pattern_);
  const size_t steps = kMatchSteps + kMatchStepsPerByte * text.size();
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX)));
  pcre2_set_heap_limit(context.get(), kMatchHeapKib);

  const auto match = [&](size_t offset, uint32_t options) {
    return pcre2_match(code, code_units(text), text.size(), offset, PCRE2_NO_UTF_CHECK | options,
                       data.get(), context.get());
  };
  size_t done = 0;
  while (done < text.size()) {
    int result = match(done, 0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result = match(done, PCRE2_NO_JIT);  // its stack is the heap
    }
    if (result == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (result < 0) {
      fail("the regular expression {} failed on a text of {} bytes at byte {}: {}", pattern_,
           text.size(), done, pcre2_message(result));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    require(ends[0] >= done && ends[1] > ends[0], "the regular expression {} matched backwards",
            pattern_);
    if (ends[0] > done) {
      pieces.push_back(text.substr(done, ends[0] - done));
    }
    pieces.push_back(text.substr(ends[0], ends[1] - ends[0]));
    done = ends[1];
  }
  if (done < text.size()) {
    pieces.push_back(text.substr(done));
  }
}

}  // namespace sparsellm
